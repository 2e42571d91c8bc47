//! `belljar verify`: checks that records are complete, unchanged and in order.

use belljar::home::Home;
use belljar::ledger::{Ledger, LedgerError};
use belljar::record::{HomeKey, KeyError, LogState, Report, verify_recorded};
use belljar::store::{self, RunInfo, Which};
use serde_json::json;

use super::{CommandResult, EXIT_INCOMPLETE, exit_code, find_all_or_newest, open_home};
use crate::cli::VerifyArgs;
use crate::report::{self, BAD, GOOD};

pub(crate) fn run(args: &VerifyArgs) -> i32 {
    exit_code(act(args))
}

fn act(args: &VerifyArgs) -> CommandResult {
    let home = open_home()?;
    let runs = if args.all {
        store::list(&home, Which::All)?
    } else {
        find_all_or_newest(&home, &args.runs)?
    };
    let key = HomeKey::load(home.path());
    let ledger = Ledger::open_to_read(&home)?;
    let mut objects = Vec::new();
    let mut all_sound = true;
    for run in &runs {
        let found = check(&home, ledger.as_ref(), &key, run)?;
        all_sound &= found.verdict.is_sound();
        if args.json {
            objects.push(json!({
                "id": run.id, "sound": found.verdict.is_sound(),
                "verdict": found.verdict.to_string(), "live": run.is_live(),
                "events": found.events, "output_bytes": found.output_bytes,
            }));
        } else {
            report::out(&line(run, &found));
        }
    }
    if args.json {
        report::json(&objects)?;
    }
    Ok(if all_sound { 0 } else { EXIT_INCOMPLETE })
}

fn check(
    home: &Home,
    ledger: Option<&Ledger>,
    key: &Result<HomeKey, KeyError>,
    run: &RunInfo,
) -> Result<Report, LedgerError> {
    let key = match key {
        Ok(key) => key,
        Err(error) => return Ok(Report::without_key(error)),
    };
    let row = ledger.map(|ledger| ledger.get(&run.id)).transpose()?.flatten();
    let life = match run.life {
        store::Life::Over => LogState::Over,
        // The supervisor or reconcile has yet to write the record's end.
        store::Life::Live(_) | store::Life::Unfinished => LogState::Live,
    };
    Ok(verify_recorded(home, &run.id, key, row.as_ref(), life))
}

fn line(run: &RunInfo, found: &Report) -> String {
    let style = if found.verdict.is_sound() { GOOD } else { BAD };
    let so_far = match run.life {
        store::Life::Over => "",
        store::Life::Live(_) => " so far; the run is alive",
        store::Life::Unfinished => " so far; the end is missing: belljar reconcile",
    };
    let verdict = belljar::spec::text::escape(found.verdict.to_string().as_bytes());
    let (events, bytes) = (found.events, found.output_bytes);
    format!(
        "{}  {style}{verdict}{style:#}{so_far} ({events} events, {bytes} bytes of output)\n",
        run.id
    )
}

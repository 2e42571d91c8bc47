//! `belljar prune`: removes old runs.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use belljar::config::{self, Flags, Invocation};
use belljar::home::Home;
use belljar::ledger::Ledger;
use belljar::retention::{self, PruneMode, PruneRules, Removal};
use belljar::spec::{Retention, RunId};
use belljar::store::{self, Which};
use belljar::workspace::is_unreviewed;

use super::{
    CommandResult, EXIT_SOMETHING_OFF, environment, exit_code, open_home, reconcile_first,
};
use crate::cli::PruneArgs;
use crate::report;

pub(crate) fn run(args: &PruneArgs) -> i32 {
    exit_code(act(args))
}

/// What was, or would be, removed.
#[derive(Debug, Default)]
struct Gone {
    runs: Vec<RunId>,
    /// Only what they left behind; their records stay.
    sandboxes: Vec<RunId>,
    /// They stay: nobody has decided about their changes.
    unreviewed: Vec<RunId>,
    failed: Vec<String>,
}

fn act(args: &PruneArgs) -> CommandResult {
    let home = open_home()?;
    reconcile_first(&home)?;
    let gone = if args.keep.is_some() || args.older_than.is_some() {
        by_rules(&home, args)?
    } else {
        by_retention(&home, args)?
    };
    if args.json {
        report::json(&serde_json::json!({
            "dry_run": args.dry_run, "runs": gone.runs, "sandboxes": gone.sandboxes,
            "unreviewed": gone.unreviewed, "failed": gone.failed,
        }))?;
    } else if !args.quiet {
        let would = if args.dry_run { "would be " } else { "" };
        let whole = gone.runs.iter().map(|run| format!("{run} {would}removed\n"));
        let parts = gone.sandboxes.iter();
        let parts = parts.map(|run| format!("{run} {would}emptied; its record stays\n"));
        report::out(&whole.chain(parts).collect::<String>());
        for run in &gone.unreviewed {
            let run = run.tail();
            report::eprintln(&format!(
                "{run} stays: its changes were neither applied nor discarded; belljar diff {run}"
            ));
        }
    }
    for failed in &gone.failed {
        report::eprintln(&format!("error: {failed}"));
    }
    Ok(if gone.failed.is_empty() { 0 } else { EXIT_SOMETHING_OFF })
}

fn by_rules(home: &Home, args: &PruneArgs) -> Result<Gone, Box<dyn std::error::Error>> {
    let rules = PruneRules {
        keep: args.keep,
        older_than: args.older_than.map(Duration::from),
        now: SystemTime::now(),
    };
    let mode = if args.dry_run { PruneMode::DryRun } else { PruneMode::Remove };
    let mut gone = Gone::default();
    for pruned in retention::prune(home, rules, mode)? {
        match pruned.removal {
            Removal::WouldRemove | Removal::Removed => gone.runs.push(pruned.run.id),
            Removal::Unreviewed => gone.unreviewed.push(pruned.run.id),
            Removal::Failed(error) => gone.failed.push(error.to_string()),
        }
    }
    Ok(gone)
}

/// What every run does for its own name at its end, for all names.
fn by_retention(home: &Home, args: &PruneArgs) -> Result<Gone, Box<dyn std::error::Error>> {
    let retention = retention(home)?;
    let runs = store::list(home, Which::All)?;
    let names: BTreeSet<Option<String>> = runs.into_iter().map(|run| run.name).collect();
    let mut gone = Gone::default();
    for name in names {
        if args.dry_run {
            let ledger = Ledger::open(home)?;
            let whole = ledger.stopped_beyond(&name, retention.runs)?;
            let parts = ledger.kept_beyond(&name, retention.sandboxes)?;
            let parts: Vec<RunId> = parts.into_iter().filter(|run| !whole.contains(run)).collect();
            let undecided = |run: &RunId| is_unreviewed(home, run);
            gone.unreviewed.extend(whole.iter().chain(&parts).filter(|run| undecided(run)));
            gone.sandboxes.extend(parts.into_iter().filter(|run| !undecided(run)));
            gone.runs.extend(whole.into_iter().filter(|run| !undecided(run)));
        } else {
            let retained = retention::apply_retention(home, &name, retention)?;
            gone.runs.extend(retained.runs);
            gone.sandboxes.extend(retained.sandboxes);
            gone.unreviewed.extend(retained.unreviewed);
            gone.failed.extend(retained.failed.iter().map(ToString::to_string));
        }
    }
    Ok(gone)
}

fn retention(home: &Home) -> Result<Retention, Box<dyn std::error::Error>> {
    // The rules want a command; which one has no bearing on this.
    let flags = Flags { command: vec!["true".into()], ..Flags::default() };
    let invocation = Invocation::new(std::env::current_dir()?, environment(), flags);
    Ok(config::load(&invocation, home)?.retention)
}

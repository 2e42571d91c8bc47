//! `belljar wait`: waits until runs have ended.

use std::time::Duration;

use belljar::home::Home;
use belljar::spec::{EXIT_NOT_STARTED, Exit, RunId};
use belljar::store::{self, Life};
use belljar::{Client, Error};

use super::{
    CommandResult, ended_run, exit_code_json, find_all_or_newest, in_runtime, open_home,
    reconcile_first,
};
use crate::cli::WaitArgs;
use crate::report;

const RETRY_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) fn run(args: &WaitArgs) -> i32 {
    exit_code_json(act(args), args.json)
}

/// Returns the first exit code that is not 0.
fn act(args: &WaitArgs) -> CommandResult {
    let home = open_home()?;
    let found = find_all_or_newest(&home, &args.runs)?;
    in_runtime(async {
        let (mut code, mut objects) = (0, Vec::new());
        for (at, run) in found.into_iter().enumerate() {
            let ended = wait_for(&home, &run.id).await?;
            if code == 0 {
                code = ended;
            }
            if args.json {
                let query = args.runs.get(at).map_or(run.id.as_str(), String::as_str);
                objects.push(ended_run(query, &store::find(&home, run.id.as_str())?));
            }
        }
        if args.json {
            report::json(&objects)?;
        }
        Ok(code)
    })
}

async fn wait_for(home: &Home, run: &RunId) -> CommandResult {
    while is_live(home, run) {
        let response = match Client::connect(home.path(), run).await {
            Ok(client) => client.stopped().await,
            Err(error) => Err(error),
        };
        match response {
            Ok(report) => return Ok(report.exit.process_code()),
            // The supervisor has not opened its socket yet, has closed it already, or is dying.
            Err(Error::Lost { .. }) => tokio::time::sleep(RETRY_INTERVAL).await,
            Err(error) => return Err(error.into()),
        }
    }
    if store::life::of(home, run) == Life::Unfinished {
        reconcile_first(home)?;
    }
    let over = store::find(home, run.as_str())?;
    Ok(over.exit.map_or(EXIT_NOT_STARTED, Exit::process_code))
}

fn is_live(home: &Home, run: &RunId) -> bool {
    matches!(store::life::of(home, run), Life::Live(_))
}

//! `belljar wait`: waits until runs have ended.

use std::time::Duration;

use belljar::home::Home;
use belljar::spec::{EXIT_NOT_STARTED, Exit, RunId};
use belljar::store::{self, Life, RunInfo};
use belljar::{Client, Error};

use super::{CommandResult, exit_code, in_runtime, open_home, reconcile_first};
use crate::cli::WaitArgs;

const RETRY_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) fn run(args: &WaitArgs) -> i32 {
    exit_code(act(args))
}

/// Returns the first exit code that is not 0.
fn act(args: &WaitArgs) -> CommandResult {
    let home = open_home()?;
    let found = args.runs.iter().map(|query| store::find(&home, query));
    let found = found.collect::<Result<Vec<RunInfo>, _>>()?;
    in_runtime(async {
        let mut code = 0;
        for run in found {
            let ended = wait_for(&home, &run.id).await?;
            if code == 0 {
                code = ended;
            }
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

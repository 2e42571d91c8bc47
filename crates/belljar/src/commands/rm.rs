//! `belljar rm`: removes ended runs and their records.

use belljar::home::Home;
use belljar::retention::{self, UnreviewedChanges};
use belljar::store::RunInfo;
use serde_json::json;

use super::{
    CommandResult, EXIT_INCOMPLETE, exit_code_json, failed_run, find_all, in_runtime, named,
    open_home, reconcile_first, stop,
};
use crate::cli::RmArgs;
use crate::report;

pub(crate) fn run(args: &RmArgs) -> i32 {
    exit_code_json(act(args), args.json)
}

fn act(args: &RmArgs) -> CommandResult {
    let home = open_home()?;
    reconcile_first(&home)?;
    let (mut code, mut objects) = (0, Vec::new());
    for (query, run) in args.runs.iter().zip(find_all(&home, &args.runs)?) {
        match remove(&home, &run, args.force) {
            Ok(()) if args.json => {
                objects.push(json!({ "run": query, "id": run.id, "done": true }));
            }
            Ok(()) if args.quiet => report::out(&format!("{}\n", run.id)),
            Ok(()) => report::out(&format!("{} removed\n", named(&run))),
            Err(error) => {
                report::failure(error.as_ref());
                objects.push(failed_run(query, error.as_ref()));
                code = EXIT_INCOMPLETE;
            }
        }
    }
    if args.json {
        report::json(&objects)?;
    }
    Ok(code)
}

fn remove(home: &Home, run: &RunInfo, force: bool) -> Result<(), Box<dyn std::error::Error>> {
    if force && run.is_live() {
        in_runtime(async {
            match stop::stop(home, run, None).await {
                Ok(()) => Ok(0),
                Err(error) => Err(error as Box<dyn std::error::Error>),
            }
        })?;
    }
    let undecided = if force { UnreviewedChanges::Remove } else { UnreviewedChanges::Keep };
    retention::remove(home, run, undecided)?;
    Ok(())
}

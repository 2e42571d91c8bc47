//! `belljar discard`: discards the changes of runs.

use belljar::home::Home;
use belljar::store::RunInfo;
use belljar::workspace;
use serde_json::json;

use super::{
    CommandResult, EXIT_INCOMPLETE, exit_code_json, failed_run, find_all, in_runtime, named,
    open_home, prompt, reconcile_first, stop,
};
use crate::cli::DiscardArgs;
use crate::report;

pub(crate) fn run(args: &DiscardArgs) -> i32 {
    exit_code_json(act(args), args.json)
}

fn act(args: &DiscardArgs) -> CommandResult {
    let home = open_home()?;
    reconcile_first(&home)?;
    let (mut code, mut objects) = (0, Vec::new());
    for (query, run) in args.runs.iter().zip(find_all(&home, &args.runs)?) {
        match discard(&home, &run, args) {
            Ok(Some(())) if args.json => {
                objects.push(json!({ "run": query, "id": run.id, "done": true }));
            }
            Ok(Some(())) if args.quiet => report::out(&format!("{}\n", run.id)),
            Ok(Some(())) => {
                report::out(&format!("{}: its changes were discarded\n", named(&run)));
            }
            Ok(None) => {
                objects.push(json!({ "run": query, "done": false }));
                code = EXIT_INCOMPLETE;
            }
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

/// `None` if the user answered no.
fn discard(
    home: &Home,
    run: &RunInfo,
    args: &DiscardArgs,
) -> Result<Option<()>, Box<dyn std::error::Error>> {
    if run.is_live() && !args.force {
        return Err(workspace::DiscardError::Live { run: run.id }.into());
    }
    let question = format!("Discard the changes of run {} for good?", run.id.tail());
    if !args.yes && !prompt::confirm(&question)? {
        report::eprintln("nothing was discarded");
        return Ok(None);
    }
    if run.is_live() {
        in_runtime(async {
            match stop::stop(home, run, None).await {
                Ok(()) => Ok(0),
                Err(error) => Err(error as Box<dyn std::error::Error>),
            }
        })?;
    }
    workspace::discard(home, &run.id)?;
    Ok(Some(()))
}

//! `belljar discard`: discards the changes of runs.

use belljar::home::Home;
use belljar::store;
use belljar::workspace;

use super::{
    CommandResult, EXIT_INCOMPLETE, exit_code, in_runtime, open_home, prompt, reconcile_first, stop,
};
use crate::cli::DiscardArgs;
use crate::report;

pub(crate) fn run(args: &DiscardArgs) -> i32 {
    exit_code(act(args))
}

fn act(args: &DiscardArgs) -> CommandResult {
    let home = open_home()?;
    reconcile_first(&home)?;
    let mut code = 0;
    for query in &args.runs {
        match discard(&home, query, args) {
            Ok(Some(id)) if !args.quiet => report::out(&format!("{id}\n")),
            Ok(Some(_)) => {}
            Ok(None) => code = EXIT_INCOMPLETE,
            Err(error) => {
                report::failure(error.as_ref());
                code = EXIT_INCOMPLETE;
            }
        }
    }
    Ok(code)
}

/// `None` if the user answered no.
fn discard(
    home: &Home,
    query: &str,
    args: &DiscardArgs,
) -> Result<Option<String>, Box<dyn std::error::Error>> {
    let run = store::find(home, query)?;
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
            match stop::stop(home, &run, None).await {
                Ok(()) => Ok(0),
                Err(error) => Err(error as Box<dyn std::error::Error>),
            }
        })?;
    }
    workspace::discard(home, &run.id)?;
    Ok(Some(run.id.to_string()))
}

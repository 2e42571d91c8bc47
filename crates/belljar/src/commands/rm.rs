//! `belljar rm`: removes ended runs and their records.

use belljar::home::Home;
use belljar::retention::{self, UnreviewedChanges};
use belljar::store;

use super::{
    CommandResult, EXIT_INCOMPLETE, exit_code, in_runtime, open_home, reconcile_first, stop,
};
use crate::cli::RmArgs;
use crate::report;

pub(crate) fn run(args: &RmArgs) -> i32 {
    exit_code(act(args))
}

fn act(args: &RmArgs) -> CommandResult {
    let home = open_home()?;
    reconcile_first(&home)?;
    let mut code = 0;
    for query in &args.runs {
        match remove(&home, query, args.force) {
            Ok(id) if !args.quiet => report::out(&format!("{id}\n")),
            Ok(_) => {}
            Err(error) => {
                report::failure(error.as_ref());
                code = EXIT_INCOMPLETE;
            }
        }
    }
    Ok(code)
}

fn remove(home: &Home, query: &str, force: bool) -> Result<String, Box<dyn std::error::Error>> {
    let run = store::find(home, query)?;
    if force && run.is_live() {
        in_runtime(async {
            match stop::stop(home, &run, None).await {
                Ok(()) => Ok(0),
                Err(error) => Err(error as Box<dyn std::error::Error>),
            }
        })?;
    }
    let undecided = if force { UnreviewedChanges::Remove } else { UnreviewedChanges::Keep };
    retention::remove(home, &run, undecided)?;
    Ok(run.id.to_string())
}

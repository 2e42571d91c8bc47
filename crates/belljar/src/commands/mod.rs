//! One file a command.

mod agent_follow;
mod agent_log;
mod agent_run;
mod agent_summary;
pub(crate) mod apply;
pub(crate) mod attach;
pub(crate) mod backends;
mod background;
mod bundle;
mod changes;
pub(crate) mod config;
mod control_files;
pub(crate) mod cp;
mod descriptor;
pub(crate) mod diff;
pub(crate) mod discard;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod exec;
mod follow;
mod hunks;
pub(crate) mod image;
pub(crate) mod init;
pub(crate) mod logs;
pub(crate) mod new;
mod outputs;
pub(crate) mod port;
mod progress;
mod prompt;
pub(crate) mod prove;
pub(crate) mod prune;
pub(crate) mod ps;
pub(crate) mod reconcile;
pub(crate) mod result;
pub(crate) mod resume;
mod reuse;
pub(crate) mod rm;
pub(crate) mod run;
mod run_file;
mod screen;
pub(crate) mod shell;
pub(crate) mod show;
mod show_agent;
pub(crate) mod show_plan;
mod stderr_tail;
pub(crate) mod stop;
mod terminal;
mod time_format;
mod timings;
pub(crate) mod trust;
pub(crate) mod verify;
pub(crate) mod wait;
pub(crate) mod why;
mod wrap;

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsString;
use std::future::Future;

use belljar::home::{Home, HomeError};
use belljar::spec::{EXIT_NOT_STARTED, RunId};
use belljar::store::{self, RunInfo};

use crate::report::{self, WARN};

/// It was done, and something is not as it should be.
const EXIT_SOMETHING_OFF: i32 = 1;

/// An exit code, or why belljar could not do it.
type CommandResult = Result<i32, Box<dyn Error>>;

pub(crate) fn environment() -> BTreeMap<OsString, OsString> {
    std::env::vars_os().collect()
}

pub(crate) fn open_home() -> Result<Home, HomeError> {
    Home::open(&environment())
}

/// The code to exit with; an error is printed.
fn exit_code(result: CommandResult) -> i32 {
    result.unwrap_or_else(|error| {
        report::failure(error.as_ref());
        EXIT_NOT_STARTED
    })
}

#[derive(Debug, thiserror::Error)]
#[error(
    "run {run} is not alive ({state}), so nothing can be done in it; belljar ps lists those that are"
)]
struct NotAlive {
    run: RunId,
    state: String,
}

/// The run that somebody wants to enter.
fn find_live(home: &Home, query: &str) -> Result<RunInfo, Box<dyn Error>> {
    let run = store::find(home, query)?;
    if run.is_live() {
        return Ok(run);
    }
    Err(NotAlive { run: run.id, state: ps::state(&run) }.into())
}

/// For what speaks with supervisors. One thread, and none of it before it is needed.
fn in_runtime(work: impl Future<Output = CommandResult>) -> CommandResult {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(work);
    // A thread that still waits for the keyboard, or for a reader of our output, is left behind.
    runtime.shutdown_background();
    done
}

/// What dead supervisors left is finished first, so that it can be removed too.
fn reconcile_first(home: &Home) -> Result<(), Box<dyn Error>> {
    for what in belljar::run::reconcile(home)?.left {
        report::eprintln(&format!("{WARN}warning:{WARN:#} leftovers of a run stay: {what}"));
    }
    Ok(())
}

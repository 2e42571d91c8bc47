//! The commands, one file per verb.

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
pub(crate) mod checkpoint;
pub(crate) mod completions;
pub(crate) mod config;
mod control_files;
pub(crate) mod cp;
mod descriptor;
pub(crate) mod diff;
pub(crate) mod discard;
pub(crate) mod doctor;
mod end_line;
pub(crate) mod events;
pub(crate) mod exec;
mod exec_result;
mod follow;
mod hunks;
pub(crate) mod image;
pub(crate) mod init;
pub(crate) mod logs;
pub(crate) mod man;
pub(crate) mod network;
pub(crate) mod new;
mod not_found;
pub(crate) mod port;
mod progress;
mod prompt;
#[cfg(feature = "jail")]
pub(crate) mod prove;
#[cfg(not(feature = "jail"))]
#[path = "no_prove.rs"]
pub(crate) mod prove;
pub(crate) mod prune;
pub(crate) mod ps;
pub(crate) mod reconcile;
pub(crate) mod renew;
pub(crate) mod result;
pub(crate) mod resume;
mod reuse;
pub(crate) mod rm;
pub(crate) mod run;
mod run_file;
mod run_refusal;
mod screen;
pub(crate) mod setup;
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
pub(crate) mod version;
pub(crate) mod wait;
pub(crate) mod why;
mod wrap;

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsString;
use std::future::Future;

use belljar::home::{Home, HomeError};
use belljar::spec::{EXIT_NOT_STARTED, RunId};
use belljar::store::{self, RunInfo, Which};

use crate::report::{self, WARN};

/// Exit code of a command that ran and found or left something wrong.
const EXIT_INCOMPLETE: i32 = 1;

/// An exit code, or why the command could not run.
type CommandResult = Result<i32, Box<dyn Error>>;

pub(crate) fn environment() -> BTreeMap<OsString, OsString> {
    std::env::vars_os().collect()
}

pub(crate) fn open_home() -> Result<Home, HomeError> {
    Home::open(&environment())
}

/// Prints an error, if any, and returns the exit code.
fn exit_code(result: CommandResult) -> i32 {
    result.unwrap_or_else(|error| {
        report::failure(error.as_ref());
        EXIT_NOT_STARTED
    })
}

/// As [`exit_code`]; with `--json` the error is also printed as an object.
fn exit_code_json(result: CommandResult, json: bool) -> i32 {
    result.unwrap_or_else(|error| {
        if json {
            let _ = report::json(&serde_json::json!({ "error": result::causes(error.as_ref()) }));
        }
        report::failure(error.as_ref());
        EXIT_NOT_STARTED
    })
}

/// What `--json` prints of a run that a command could not act on; `run` is what the caller wrote.
fn failed_run(run: &str, error: &dyn Error) -> serde_json::Value {
    serde_json::json!({ "run": run, "done": false, "error": result::causes(error) })
}

/// What `--json` prints of a run that has ended.
fn ended_run(run: &str, info: &RunInfo) -> serde_json::Value {
    serde_json::json!({
        "run": run, "id": info.id, "done": true, "reason": info.reason, "exit": info.exit,
        "usage": info.usage,
    })
}

#[derive(Debug, thiserror::Error)]
#[error("run {run} is not alive ({state}); belljar ps lists the live runs")]
struct NotAlive {
    run: RunId,
    state: String,
}

#[derive(Debug, thiserror::Error)]
#[error("there is no run yet; belljar run COMMAND starts one")]
struct NoRuns;

#[derive(Debug, thiserror::Error)]
#[error("no run is live; belljar run -d COMMAND starts one")]
struct NoLiveRuns;

/// Finds a run for a command that only reads: the newest run if none is named.
fn find_or_newest(home: &Home, query: Option<&str>) -> Result<RunInfo, Box<dyn Error>> {
    match query {
        Some(query) => Ok(store::find(home, query)?),
        None => Ok(store::newest(home)?.ok_or(NoRuns)?),
    }
}

/// Finds a run that must be alive: the newest live one if none is named.
fn find_live_or_newest(home: &Home, query: Option<&str>) -> Result<RunInfo, Box<dyn Error>> {
    match query {
        Some(query) => find_live(home, query),
        None => Ok(store::list(home, Which::Live)?.into_iter().next().ok_or(NoLiveRuns)?),
    }
}

/// Finds the named runs, or the newest if none is named.
fn find_all_or_newest(home: &Home, queries: &[String]) -> Result<Vec<RunInfo>, Box<dyn Error>> {
    if queries.is_empty() {
        return Ok(vec![find_or_newest(home, None)?]);
    }
    find_all(home, queries)
}

/// Finds all runs before anything is done to one of them.
fn find_all(home: &Home, queries: &[String]) -> Result<Vec<RunInfo>, Box<dyn Error>> {
    let found = queries.iter().map(|query| store::find(home, query));
    Ok(found.collect::<Result<Vec<RunInfo>, _>>()?)
}

/// The id of a run, and its name if it has one.
fn named(run: &RunInfo) -> String {
    match run.name.as_deref() {
        Some(name) => format!("{} ({})", run.id, belljar::spec::text::escape(name.as_bytes())),
        None => run.id.to_string(),
    }
}

/// Finds a run that must be alive.
fn find_live(home: &Home, query: &str) -> Result<RunInfo, Box<dyn Error>> {
    alive(store::find(home, query)?)
}

fn alive(run: RunInfo) -> Result<RunInfo, Box<dyn Error>> {
    if run.is_live() {
        return Ok(run);
    }
    Err(NotAlive { run: run.id, state: ps::state(&run) }.into())
}

/// Runs a future that talks to supervisors, on a single-threaded runtime.
fn in_runtime(work: impl Future<Output = CommandResult>) -> CommandResult {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(work);
    // Does not wait for a thread that is blocked on the keyboard or on a reader of our output.
    runtime.shutdown_background();
    done
}

/// Closes the records of dead supervisors, so that their runs can be removed too.
fn reconcile_first(home: &Home) -> Result<(), Box<dyn Error>> {
    for what in belljar::run::reconcile(home)?.left {
        report::eprintln(&format!("{WARN}warning:{WARN:#} a run left something behind: {what}"));
    }
    Ok(())
}

//! The result of one more command, which `exec --json` prints and `--result` writes.

use std::error::Error as StdError;
use std::time::Instant;

use belljar::spec::{EXIT_NOT_STARTED, ExecFailure, Exit, ExitSource, OsText, RunId, StopReason};
use belljar::{Collected, Error};
use serde::Serialize;

use super::follow::{Followed, OutputTarget};
use super::result::{causes, is_zero, write_result};
use crate::cli::ExecArgs;
use crate::report;

#[derive(Debug, Serialize)]
pub(super) struct ExecResult {
    /// Of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<RunId>,
    /// The command's number in the record.
    #[serde(skip_serializing_if = "Option::is_none")]
    exec: Option<u32>,
    outcome: &'static str,
    reason: StopReason,
    pub(super) exit: Exit,
    stdout: OsText,
    stderr: OsText,
    #[serde(skip_serializing_if = "is_zero")]
    stdout_lost: u64,
    #[serde(skip_serializing_if = "is_zero")]
    stderr_lost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failure: Option<ExecFailure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Vec<String>>,
    wall_ms: u64,
}

impl ExecResult {
    fn new(run: Option<RunId>, outcome: &'static str, reason: StopReason, exit: Exit) -> Self {
        Self {
            id: run,
            exec: None,
            outcome,
            reason,
            exit,
            stdout: OsText::default(),
            stderr: OsText::default(),
            stdout_lost: 0,
            stderr_lost: 0,
            failure: None,
            error: None,
            wall_ms: 0,
        }
    }

    pub(super) fn ended(run: RunId, exec: Option<u32>, followed: Followed) -> Self {
        let (reason, exit) = match followed {
            Followed::Exited(exit) => (reason(exit), exit),
            // This process was asked to end, and killed the command.
            Followed::Ended(code) | Followed::Detached(code) => {
                (StopReason::Stopped, Exit::of_belljar(code, ExitSource::Policy))
            }
        };
        let outcome = if exit.code == Some(0) { "succeeded" } else { "failed" };
        Self { exec, ..Self::new(Some(run), outcome, reason, exit) }
    }

    /// The command was not executed, or not started at all.
    pub(super) fn not_started(run: Option<RunId>, error: &(dyn StdError + 'static)) -> Self {
        if let Some(Error::Exec { failure, .. }) = error.downcast_ref() {
            let exit = Exit::of_belljar(failure.exit_code(), ExitSource::Sandbox);
            let failure = Some(failure.clone());
            return Self { failure, ..Self::new(run, "failed", StopReason::Error, exit) };
        }
        let exit = Exit::of_belljar(EXIT_NOT_STARTED, ExitSource::Policy);
        let error = Some(causes(error));
        Self { error, ..Self::new(run, "refused", StopReason::Error, exit) }
    }

    pub(super) fn with_output(mut self, output: OutputTarget, since: Instant) -> Self {
        if let OutputTarget::Captured { stdout, stderr } = output {
            (self.stdout, self.stdout_lost) = text(stdout);
            (self.stderr, self.stderr_lost) = text(stderr);
        }
        self.wall_ms = since.elapsed().as_millis() as u64;
        self
    }

    /// Prints or writes the object, where it was asked for. The exit code of this process.
    pub(super) fn report(&self, args: &ExecArgs) -> i32 {
        if args.json && report::json(self).is_err() {
            return EXIT_NOT_STARTED;
        }
        if let Some(path) = &args.result
            && let Err(error) = write_result(path, self)
        {
            report::eprintln(&format!("error: cannot write {}: {error}", path.display()));
            return EXIT_NOT_STARTED;
        }
        self.exit.process_code()
    }
}

fn text(collected: Collected) -> (OsText, u64) {
    let (bytes, lost) = collected.finish();
    (OsText::from_bytes(bytes), lost)
}

fn reason(exit: Exit) -> StopReason {
    match exit.source {
        ExitSource::Deadline => StopReason::Deadline,
        ExitSource::Oom => StopReason::Oom,
        ExitSource::Sandbox | ExitSource::Policy => StopReason::Error,
        ExitSource::Command if exit.signal.is_some() => StopReason::Signal,
        ExitSource::Command => StopReason::Exited,
    }
}

//! Launches a run: each step is a state that can only be made from the one before.

mod accepted;
mod bound;
mod closing;
mod other_worktrees;
mod paths;
mod recorded;
mod running;

pub use other_worktrees::OtherWorktreesError;

use belljar_record::Outcome;
use belljar_record::home::Home;
use belljar_spec::RunId;
use belljar_spec::egress::SecretValue;

pub use closing::Close;

use super::select_backend::Prepared;
use super::{LaunchError, Observer, Streams};
use crate::supervise::Caller;

/// Runs it here: this process is its supervisor. An error means that nothing of the command was started,
/// but for [`LaunchError::EndNotRecorded`].
pub fn launch(
    home: &Home,
    prepared: Prepared<'_>,
    streams: Streams,
    close: Close,
    observer: &mut dyn Observer,
) -> Result<Outcome, LaunchError> {
    launch_for(home, prepared, Caller::Here(streams), close, observer)
}

/// Tries the operator's backends in their order, until one has run the command.
pub(crate) fn launch_for(
    home: &Home,
    mut prepared: Prepared<'_>,
    mut caller: Caller,
    close: Close,
    observer: &mut dyn Observer,
) -> Result<Outcome, LaunchError> {
    // Until a command is released, since another backend's proxy may need them too.
    let mut secrets = std::mem::take(&mut prepared.secrets);
    let launched = loop {
        let launch = Launch {
            home,
            prepared: &mut prepared,
            secrets: &mut secrets,
            caller: &mut caller,
            observer,
        };
        let NotRun { error, record } = match launch.run(close) {
            Ok(outcome) => {
                if close == Close::InBackground {
                    std::mem::forget(prepared); // the program exits; secrets were taken out above
                }
                break Ok(outcome);
            }
            Err(not_run) => not_run,
        };
        // Nothing of the command ran, so the operator's next choice can have it.
        let reported = prepared.skipped_backends().len();
        let next = match record {
            AttemptRecord::None => prepared.fall_back(*error, None),
            AttemptRecord::Whole(run) => prepared.fall_back(*error, Some(run)),
            AttemptRecord::WithoutEnd => Err(*error), // nothing runs that cannot be recorded
        };
        prepared = match next {
            Ok(next) => next,
            Err(error) => break Err(error),
        };
        if prepared.refusal().is_none() {
            prepared
                .skipped_backends()
                .iter()
                .skip(reported)
                .for_each(|step| observer.skipped_backends(step));
        }
    };
    if let Err(error) = &launched {
        caller.refuse(error);
    }
    launched
}

/// What every step of a launch works with.
struct Launch<'l, 'b> {
    home: &'l Home,
    prepared: &'l mut Prepared<'b>,
    secrets: &'l mut Vec<SecretValue>,
    caller: &'l mut Caller,
    observer: &'l mut dyn Observer,
}

impl Launch<'_, '_> {
    /// One attempt on one backend.
    fn run(self, close: Close) -> Result<Outcome, NotRun> {
        let backend = self.prepared.plan.backend;
        let accepted = self.accept()?; // a run directory and its liveness lock
        let _span = tracing::debug_span!("launch", run = %accepted.id(), %backend).entered();
        let bound = accepted.bind()?; // sources opened and pinned; nothing is recorded yet
        let recorded = bound.record()?; // a log
        let running = recorded.start()?; // the boundary stands, run.start is on disk, the command waits at the gate
        let finished = running.finish()?; // attested, released, supervised to its end; run.stop is on disk
        Ok(finished.close(close)) // the liveness lock goes, and clients are notified
    }
}

/// Nothing was released.
struct NotRun {
    error: Box<LaunchError>,
    record: AttemptRecord,
}

/// What there is of an attempt that failed.
enum AttemptRecord {
    /// It was not accepted.
    None,
    Whole(RunId),
    /// What is on disk stays, and the next command closes it as lost.
    WithoutEnd,
}

impl From<LaunchError> for NotRun {
    fn from(error: LaunchError) -> Self {
        Self { error: Box::new(error), record: AttemptRecord::None }
    }
}

impl NotRun {
    fn without_end(error: LaunchError) -> Self {
        Self { error: Box::new(error), record: AttemptRecord::WithoutEnd }
    }
}

//! A recorded launch: `run.start` is written, and the boundary is to be made.

use belljar_backend::{Bound, Pod, Started};
use belljar_record::Outcome;
use belljar_spec::{Expectation, LayeredTree, Moment, Posture, RunState};
use belljar_workspace::WrittenTree;

use super::super::LaunchError;
use super::super::log::{Anchored, RunLog};
use super::super::outcome::not_started;
use super::super::run_dir::RunDir;
use super::paths::written_trees;
use super::running::Running;
use super::{AttemptRecord, Launch, NotRun};
use crate::supervise::{LaunchOptions, Opened, open};

pub(super) struct Recorded<'l, 'b> {
    pub(super) launch: Launch<'l, 'b>,
    pub(super) run_dir: RunDir,
    pub(super) bound: Bound,
    pub(super) log: RunLog,
    pub(super) options: LaunchOptions,
}

/// What was pinned, and is still needed at the end.
pub(super) struct Facts {
    pub(super) expectation: Expectation,
    pub(super) posture: Posture,
    pub(super) layered: Vec<LayeredTree>,
    pub(super) written: Vec<WrittenTree>,
    /// The last moment at which nothing of the run can have written.
    pub(super) since: Moment,
}

impl<'l, 'b> Recorded<'l, 'b> {
    /// Makes the boundary, opens the channel, and has the command's process made behind it.
    pub(super) fn start(self) -> Result<Running<'l, 'b>, NotRun> {
        let Self { launch, run_dir, bound, mut log, options } = self;
        let facts = Facts {
            expectation: bound.expectation.clone(),
            posture: bound.posture.clone(),
            layered: bound.layered.clone(),
            written: written_trees(&launch.prepared.plan, &bound),
            since: options.arrived.passed(),
        };
        options.live.say(RunState::Starting);
        match boundary(&launch, bound, &facts.expectation, &options, &mut log) {
            Ok((pod, started, opened)) => {
                Ok(Running { launch, run_dir, log, options, facts, _pod: pod, started, opened })
            }
            Err(error) => Err(record_failure(&launch, run_dir, log, facts.posture, error)),
        }
    }
}

fn boundary(
    launch: &Launch<'_, '_>,
    bound: Bound,
    expectation: &Expectation,
    options: &LaunchOptions,
    log: &mut RunLog,
) -> Result<(Box<dyn Pod>, Started, Opened), LaunchError> {
    let plan = &launch.prepared.plan;
    let mut pod = launch.prepared.backend.open(&bound)?;
    let mut started = pod.start(bound.sandbox)?;
    let opened = open(&mut started, (plan, expectation), &options.run, launch.caller)
        .map_err(LaunchError::from)
        .and_then(|mut opened| {
            started.sandbox.make_limits()?; // while the sandbox builds its root; what PID 1 makes inherits them
            opened.ask_for_command(plan, expectation, launch.caller)?;
            log.started(&started)?; // while the command locks itself down
            Ok(opened)
        });
    match opened {
        Ok(opened) => Ok((pod, started, opened)),
        Err(error) => {
            started.sandbox.kill();
            Err(and_destroy(&mut started, error))
        }
    }
}

/// Nothing was let go: what was made for it is removed, and both failures are kept.
pub(super) fn and_destroy(started: &mut Started, start: LaunchError) -> LaunchError {
    match started.sandbox.destroy() {
        Ok(()) => start,
        Err(cleanup) => LaunchError::AndCleanup { start: Box::new(start), cleanup },
    }
}

/// Nothing was let go, and the record says so.
pub(super) fn record_failure(
    launch: &Launch<'_, '_>,
    run_dir: RunDir,
    log: RunLog,
    posture: Posture,
    error: LaunchError,
) -> NotRun {
    let backend = launch.prepared.plan.backend;
    let outcome: Outcome = not_started(run_dir.id, backend, posture, &error);
    match log.close(launch.home, &outcome) {
        Ok(Anchored::Yes) => {}
        _ => return NotRun::without_end(error),
    }
    let record = AttemptRecord::Whole(run_dir.id);
    // What may be left is found by the next command, through the liveness lock.
    if !error.may_have_left_something()
        && let Err(error) = run_dir.close()
    {
        return error.into();
    }
    NotRun { error: Box::new(error), record }
}

//! A launch with a log: the boundary is made, and `run.start` written while it sets itself up.

use belljar_backend::{Bound, Link, Pod, StartError, Started};
use belljar_bind::file_clock::Arrival;
use belljar_record::Outcome;
use belljar_spec::text::error_chain;
use belljar_spec::{LayeredTree, LinkKind, Moment, Posture, RunState};
use belljar_workspace::WrittenTree;

use super::super::LaunchError;
use super::super::log::{NewLog, RunLog};
use super::super::outcome::not_started;
use super::super::run_dir::RunDir;
use super::paths::written_trees;
use super::running::Running;
use super::{AttemptRecord, Launch, NotRun};
use crate::supervise::{LaunchOptions, Opened, Promised, Sandboxes, open};

pub(super) struct Recorded<'l, 'b> {
    pub(super) launch: Launch<'l, 'b>,
    pub(super) run_dir: RunDir,
    pub(super) bound: Bound,
    pub(super) log: NewLog,
    pub(super) options: LaunchOptions,
}

/// What was pinned, and is still needed at the end.
pub(super) struct Facts {
    pub(super) layered: Vec<LayeredTree>,
    pub(super) written: Vec<WrittenTree>,
    pub(super) arrived: Arrival,
    /// The last moment at which nothing of the run can have written, where the command does not wait at a gate.
    pub(super) since: Option<Moment>,
}

impl<'l, 'b> Recorded<'l, 'b> {
    /// Makes the boundary, opens the channel, and has the command's process made behind it.
    pub(super) fn start(self) -> Result<Running<'l, 'b>, NotRun> {
        let Self { launch, run_dir, bound, log, options } = self;
        let starts_at_once = !launch.prepared.backend.features().has_boundary();
        let facts = Facts {
            layered: bound.layered.clone(),
            written: written_trees(
                &launch.prepared.plan,
                &bound,
                launch.prepared.spec.git_directory.as_deref(),
            ),
            arrived: options.arrived,
            since: starts_at_once.then(|| options.arrived.passed()),
        };
        options.live.set_state(RunState::Starting);
        let posture = bound.posture.clone();
        let (mut log, made) = if starts_at_once {
            // Nothing holds the command back once it is started.
            let mut log = log.begin(launch.prepared, &posture).map_err(NotRun::without_end)?;
            let synced = log.sync();
            (log, synced.and_then(|()| make(&launch, bound, &options)))
        } else {
            // The sandbox sets itself up meanwhile, and nothing runs in it before `run.start` is on disk.
            let made = make(&launch, bound, &options);
            match (log.begin(launch.prepared, &posture), made) {
                (Ok(log), made) => (log, made),
                (Err(error), Ok((_, mut sandboxes))) => {
                    sandboxes.kill();
                    return Err(NotRun::without_end(and_destroy(&mut sandboxes, error)));
                }
                (Err(error), Err(_)) => return Err(NotRun::without_end(error)),
            }
        };
        let opened = made.and_then(|(pod, mut sandboxes)| {
            let opened = open_channel(&launch, &mut sandboxes, &options, &mut log)?;
            Ok((pod, sandboxes, opened))
        });
        match opened {
            Ok((pod, sandboxes, opened)) => {
                Ok(Running { launch, run_dir, log, options, facts, _pod: pod, sandboxes, opened })
            }
            Err(error) => Err(record_failure(&launch, run_dir, log, posture, error)),
        }
    }
}

/// The boundary, whose first process begins to set itself up.
fn make(
    launch: &Launch<'_, '_>,
    bound: Bound,
    options: &LaunchOptions,
) -> Result<(Box<dyn Pod>, Sandboxes), LaunchError> {
    let plan = &launch.prepared.plan;
    let mut pod = launch.prepared.backend.open(&bound)?;
    let Bound { sandbox, expectation, posture, .. } = bound;
    let promised = Promised { expectation, posture, keep: options.keep };
    let started = pod.start(sandbox)?;
    Ok((pod, Sandboxes::new(started, plan, promised)))
}

/// Where that fails, the sandbox is gone.
fn open_channel(
    launch: &Launch<'_, '_>,
    sandboxes: &mut Sandboxes,
    options: &LaunchOptions,
    log: &mut RunLog,
) -> Result<Opened, LaunchError> {
    let plan = &launch.prepared.plan;
    let features = launch.prepared.backend.features();
    check_link(features.link, sandboxes.main().started())
        .map_err(LaunchError::from)
        // `run.start` is on disk before the command is released. Here, while the sandbox sets itself up.
        .and_then(|()| log.sync())
        .map_err(|error| and_destroy(sandboxes, error))?;
    let opened = open(sandboxes, plan, &options.run, launch.caller)
        .map_err(LaunchError::from)
        .and_then(|mut opened| {
            let main = sandboxes.main_mut();
            main.started_mut().sandbox.make_limits()?; // what PID 1 makes inherits them
            opened.ask_for_command(sandboxes, plan, launch.caller)?;
            log.started(sandboxes.main().started())?; // while the command locks itself down
            Ok(opened)
        });
    opened.map_err(|error| {
        sandboxes.kill();
        and_destroy(sandboxes, error)
    })
}

/// A run waits for another link only where the backend's features say that its link can break.
fn check_link(features: LinkKind, started: &Started) -> Result<(), StartError> {
    let link = started.channel.as_ref().map(|channel| &channel.link);
    match (features, link) {
        (LinkKind::Lasting, Some(Link::Breakable(_))) => {
            Err(StartError::new("the backend's link can break, and its features do not name that"))
        }
        (LinkKind::Lasting | LinkKind::Breakable, _) => Ok(()),
    }
}

/// Nothing was released: what was made for it is removed, and both failures are reported.
pub(super) fn and_destroy(sandboxes: &mut Sandboxes, start: LaunchError) -> LaunchError {
    match sandboxes.destroy() {
        Ok(()) => start,
        Err(cleanup) => LaunchError::AndCleanup { start: Box::new(start), cleanup },
    }
}

/// Nothing was released, and the record says so.
pub(super) fn record_failure(
    launch: &Launch<'_, '_>,
    run_dir: RunDir,
    log: RunLog,
    posture: Posture,
    error: LaunchError,
) -> NotRun {
    let backend = launch.prepared.plan.backend;
    let outcome: Outcome = not_started(run_dir.id, backend, posture, &error);
    match log.stop(&outcome).map(|log| log.index(&outcome).write(launch.home)) {
        Ok(Ok(())) => {}
        _ => return NotRun::without_end(error),
    }
    let record = AttemptRecord::Whole(run_dir.id);
    // What may be left is found by the next command, through the liveness lock.
    if !error.may_have_left_something()
        && let Err(close) = run_dir.close()
    {
        tracing::warn!(error = %error_chain(&close), "the liveness lock was not removed");
    }
    NotRun { error: Box::new(error), record }
}

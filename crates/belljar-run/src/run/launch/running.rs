//! A running launch: the boundary exists; the command is attested, released, and supervised to its end.

use std::time::Duration;

use belljar_backend::Pod;
use belljar_record::Outcome;
use belljar_spec::wire::control::FromSupervisor;
use belljar_spec::{RunState, StopReason};
use belljar_workspace::AtEnd;

use super::super::LaunchError;
use super::super::housekeeping::{Housekeeping, Reconcile};
use super::super::log::{RunLog, StoppedLog};
use super::super::outcome::mark_output_lost;
use super::super::run_dir::RunDir;
use super::closing::{Closing, Tidying};
use super::recorded::{Facts, and_destroy, record_failure};
use super::{Close, Launch, NotRun};
use crate::supervise::{Caller, LaunchOptions, Opened, Sandboxes, Supervised, Supervision};

pub(super) struct Running<'l, 'b> {
    pub(super) launch: Launch<'l, 'b>,
    pub(super) run_dir: RunDir,
    pub(super) log: RunLog,
    pub(super) options: LaunchOptions,
    pub(super) facts: Facts,
    /// What its sandboxes share; it lives as long as they do.
    pub(super) _pod: Box<dyn Pod>,
    pub(super) sandboxes: Sandboxes,
    pub(super) opened: Opened,
}

impl<'l, 'b> Running<'l, 'b> {
    /// To `run.stop`, whatever happens in between.
    pub(super) fn finish(self) -> Result<Finished<'l, 'b>, NotRun> {
        let Self { mut launch, run_dir, mut log, options, facts, _pod, mut sandboxes, opened } =
            self;
        let followed = follow(&mut launch, options, opened, &mut sandboxes, &mut log);
        sandboxes.kill(); // the kernel removes it while the rest is found out
        let Followed { mut supervised, housekeeping } = match followed {
            Ok(followed) => followed,
            Err(error) => {
                let error = and_destroy(&mut sandboxes, error);
                let posture = sandboxes.main().posture().clone();
                return Err(record_failure(&launch, run_dir, log, posture, error));
            }
        };
        let (found, reconcile) = housekeeping.map_or((None, Reconcile::No), Housekeeping::finish);
        if let Some(found) = found {
            launch.observer.reconciled(&found);
        }
        let mut outcome = take_outcome(&launch, &run_dir, &facts, &mut sandboxes, &mut supervised);
        if let Err(error) = log.recorder.settle() {
            mark_output_lost(&mut outcome, &error);
        }
        let log = log.stop(&outcome).map_err(|error| {
            let error = Box::new(error);
            NotRun::without_end(LaunchError::EndNotRecorded { run: run_dir.id, error })
        })?;
        Ok(Finished { launch, run_dir, outcome, supervised, log, reconcile })
    }
}

struct Followed {
    supervised: Supervised,
    housekeeping: Option<Housekeeping>,
}

/// Attests, releases and supervises. An error means that nothing was released.
fn follow(
    launch: &mut Launch<'_, '_>,
    options: LaunchOptions,
    opened: Opened,
    sandboxes: &mut Sandboxes,
    log: &mut RunLog,
) -> Result<Followed, LaunchError> {
    let Launch { home, prepared, secrets, caller, observer } = launch;
    let (run, plan, posture) = (options.run, &prepared.plan, sandboxes.main().posture().clone());
    let ports = options.network.ports.published();
    let mut housekeeping = None;
    let on_release = &mut |caller: &mut Caller| {
        secrets.clear(); // the proxy has them, and nothing else needs them any more
        observer.published(&ports);
        observer.started(&run, plan.backend, &posture);
        if let Caller::There { connection, .. } = caller {
            let (backend, posture) = (plan.backend, Box::new(posture.clone()));
            let (skipped_backends, ports) = (prepared.skipped_backends().to_vec(), ports.clone());
            let launched =
                FromSupervisor::Launched { run, backend, posture, skipped_backends, ports };
            connection.send(&launched);
        }
        // Now, so that no start waits for it, and a long run does not put it off.
        housekeeping = Some(Housekeeping::begin(home, &run));
    };
    let recorder = &mut log.recorder;
    let supervised =
        opened.supervise(Supervision { sandboxes, plan, caller, options, recorder, on_release })?;
    if !supervised.not_as_planned.is_empty() {
        return Err(LaunchError::NotAsPlanned { differences: supervised.not_as_planned });
    }
    Ok(Followed { supervised, housekeeping })
}

/// Reaps the sandbox, removes it, and looks at what it left.
fn take_outcome(
    launch: &Launch<'_, '_>,
    run_dir: &RunDir,
    facts: &Facts,
    sandboxes: &mut Sandboxes,
    supervised: &mut Supervised,
) -> Outcome {
    sandboxes.reap();
    let mut usage = supervised.usage;
    let main = sandboxes.main();
    main.started().sandbox.usage(&mut usage);
    let (reason, exit) = supervised.judged(main.started().sandbox.oom_kills());
    let posture = main.posture().clone();
    let leak = sandboxes.destroy().err().map(|leak| leak.to_string());
    let mut workspace = belljar_workspace::report_at_end(&AtEnd {
        run: &run_dir.id,
        directory: &launch.home.run_dir(&run_dir.id),
        layered: &facts.layered,
        written: &facts.written,
        // Nothing released is nothing written.
        since: facts.since.or(supervised.released).unwrap_or_else(|| facts.arrived.passed()),
        lasted: Duration::from_millis(usage.wall_ms),
    });
    // What did not come back whole, and what a sandbox that broke the channel's rules sent, is only looked at.
    let is_whole = supervised.not_returned.is_none() && reason != StopReason::Tampered;
    if let Some(why) = supervised.not_returned.take() {
        workspace.get_or_insert_default().failed = Some(why);
    }
    if let Some(report) = workspace.as_mut().filter(|report| is_whole && report.failed.is_none()) {
        report.applied = belljar_workspace::apply_at_end(launch.home, &run_dir.id, &facts.layered);
    }
    let went_away = || "lost: the sandbox ended without reporting how the command ended".to_owned();
    let lost = (reason == StopReason::Lost).then(went_away);
    Outcome {
        id: run_dir.id,
        backend: launch.prepared.plan.backend,
        reason,
        exit,
        failure: supervised.main.failure.take(),
        posture,
        usage,
        stdout: std::mem::take(&mut supervised.main.stdout),
        stderr: std::mem::take(&mut supervised.main.stderr),
        attestation: supervised.main.attestation.take(),
        skipped_backends: launch.prepared.skipped_backends().to_vec(),
        detail: supervised.detail().or(lost),
        leak,
        workspace,
        agent: supervised.agent.take().map(Box::new),
    }
}

/// The command has ended, and `run.stop` is on disk.
pub(super) struct Finished<'l, 'b> {
    launch: Launch<'l, 'b>,
    run_dir: RunDir,
    outcome: Outcome,
    supervised: Supervised,
    log: StoppedLog,
    reconcile: Reconcile,
}

impl Finished<'_, '_> {
    /// Closes the run, and notifies whoever follows it.
    pub(super) fn close(self, close: Close) -> Outcome {
        let Self { launch, run_dir, outcome, mut supervised, log, reconcile } = self;
        let keeps_entry = outcome.leak.is_some();
        if !keeps_entry {
            // From here on nothing but its index is missing: whoever looks at the run waits for it, or writes it.
            run_dir.sign.set_state(RunState::Stopped);
        }
        let login = supervised.login.take();
        let spec = &launch.prepared.spec;
        let tidying = Tidying { name: spec.name.clone(), retention: spec.retention, reconcile };
        let home = launch.home.clone();
        let closing = Closing { home, run_dir, log, outcome: &outcome, keeps_entry, tidying };
        let left = closing.close(close);
        report_to_caller(launch.caller, &outcome);
        supervised.notify_clients(outcome.report());
        if let Some((home, tidying)) = left {
            tidying.tidy_up(&home);
        }
        drop(login); // last: it may wait for a token endpoint, and nobody waits with it
        outcome
    }
}

/// A command that could not be executed was never released, so its client is not the supervisor's yet.
fn report_to_caller(caller: &mut Caller, outcome: &Outcome) {
    let (Caller::There { connection, .. }, Some(failure)) = (caller, &outcome.failure) else {
        return;
    };
    connection.send(&FromSupervisor::Launched {
        run: outcome.id,
        backend: outcome.backend,
        posture: Box::new(outcome.posture.clone()),
        skipped_backends: outcome.skipped_backends.clone(),
        ports: Vec::new(),
    });
    connection.send(&FromSupervisor::TaskFailed { task: 0, failure: failure.clone() });
    connection.send(&FromSupervisor::Stopped(Box::new(outcome.report())));
    connection.finish(Duration::from_secs(2));
}

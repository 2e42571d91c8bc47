//! The launch order.

use std::path::PathBuf;

use belljar_backend::{Backend, Bound, Capabilities, Unavailable, by_name};
use belljar_spec::wire::control::{FromSupervisor, Keep};
use belljar_spec::{BackendChoice, BackendName, Place, Plan, RunId, RunSpec, RunState};

use super::housekeeping::{self, Housekeeping};
use super::log::{Anchored, RunLog};
use super::place::RunPlace;
use super::record::{plan_without_secret_values, secrets_of, without_secret_values};
use super::{DryRun, LaunchError, Observer, Outcome, Streams, writable};
use crate::block_on;
use crate::home::Home;
use crate::supervise::{Caller, DiskLimit, Orders, Supervised, open, supervise};

/// A backend, chosen and asked, and its plan. Nothing exists yet.
pub struct Prepared {
    backend: Box<dyn Backend>,
    pub plan: Plan,
    pub spec: RunSpec,
    keep: Keep,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Prepared {
    /// What would be done, and what stands in the way.
    pub fn dry_run(&self) -> DryRun {
        let secrets = secrets_of(&self.spec);
        DryRun {
            spec_hash: without_secret_values(&self.spec, &secrets).hash(),
            plan_hash: plan_without_secret_values(&self.plan, &secrets).hash(),
            plan: self.plan.clone(),
            missing: self.plan.posture.unmet(&self.spec.required, &self.spec.waivers),
        }
    }
}

/// Chooses a backend and makes the plan.
pub fn prepare(spec: RunSpec, keep: Keep) -> Result<Prepared, LaunchError> {
    if spec.command.is_empty() && keep == Keep::WhileCommandRuns {
        return Err(LaunchError::NoCommand);
    }
    let (backend, capabilities) = choose(spec.backend)?;
    if keep == Keep::UntilStopped && backend.name() == BackendName::Host {
        return Err(LaunchError::Conflict {
            option: "a sandbox that stays".to_owned(),
            needs: "a boundary; the host backend has none".to_owned(),
        });
    }
    let plan = backend.plan(&spec, &capabilities)?;
    Ok(Prepared { backend, plan, spec, keep })
}

/// A backend by name, or the first that can be used. Never the host, unless it was named.
fn choose(choice: BackendChoice) -> Result<(Box<dyn Backend>, Capabilities), LaunchError> {
    let name = match choice {
        BackendChoice::Auto | BackendChoice::Jail => BackendName::Jail,
        BackendChoice::Docker => BackendName::Docker,
        BackendChoice::Podman => BackendName::Podman,
        BackendChoice::Host => BackendName::Host,
    };
    let unavailable = |reason: Unavailable| LaunchError::Unavailable { backend: name, reason };
    let backend = by_name(name).map_err(unavailable)?;
    let capabilities = block_on(backend.probe()).map_err(unavailable)?;
    Ok((backend, capabilities))
}

/// Runs it here: this process is its supervisor. An error means that nothing of the command was started,
/// but for [`LaunchError::EndNotRecorded`].
pub fn launch(
    home: &Home,
    prepared: Prepared,
    streams: Streams,
    observer: &mut dyn Observer,
) -> Result<Outcome, LaunchError> {
    launch_for(home, prepared, Caller::Here(streams), observer)
}

pub(crate) fn launch_for(
    home: &Home,
    prepared: Prepared,
    mut caller: Caller,
    observer: &mut dyn Observer,
) -> Result<Outcome, LaunchError> {
    let launched = accept_and_run(home, prepared, &mut caller, observer);
    if let Err(error) = &launched {
        caller.refuse(error);
    }
    launched
}

fn accept_and_run(
    home: &Home,
    prepared: Prepared,
    caller: &mut Caller,
    observer: &mut dyn Observer,
) -> Result<Outcome, LaunchError> {
    refuse_if_unmet(&prepared, &prepared.plan.posture)?; // before anything is made
    let retention = (prepared.spec.name.clone(), prepared.spec.retention);
    let place = RunPlace::make(home)?;
    let outcome = match bind(home, &place, prepared) {
        Ok(bound) => run_recorded(home, &place, bound, caller, observer),
        Err(error) => {
            place.discard(); // not accepted, so there is nothing to keep
            return Err(error);
        }
    };
    match outcome {
        Ok(Ended { outcome, supervised, anchored: Anchored::Yes }) => {
            place.close()?;
            supervised.dismiss(outcome.report()); // so that whoever is told finds it stopped
            let (name, retention) = retention;
            housekeeping::retain(home, name, retention);
            Ok(outcome)
        }
        // The next command anchors it, and then takes the sign of life away.
        Ok(Ended { outcome, supervised, anchored: Anchored::No }) => {
            supervised.dismiss(outcome.report());
            Ok(outcome)
        }
        Err(Failed { error, record: RecordState::Closed }) => {
            place.close()?;
            Err(error)
        }
        // What is on disk stays, and the next command closes it as lost.
        Err(Failed { error, record: RecordState::Open }) => Err(error),
    }
}

/// Pinned, and accepted: from here on there is a record.
struct Accepted {
    prepared: Prepared,
    bound: Bound,
    disk: Option<DiskLimit>,
}

fn bind(home: &Home, place: &RunPlace, mut prepared: Prepared) -> Result<Accepted, LaunchError> {
    let read_failed = |error| LaunchError::Record { path: home.path().to_owned(), error };
    let known = writable::known(home).map_err(read_failed)?;
    set_run_id(&mut prepared, &place.id);
    place.make_targets(&prepared.plan)?;
    let where_it_lives = where_it_lives(home, place, &prepared.plan, known.clone());
    let bound = block_on(prepared.backend.bind(&prepared.plan, &where_it_lives))?;
    refuse_if_unmet(&prepared, &bound.posture)?; // binding may have found out more
    // A tree is known as writable before the first byte can be written to it.
    writable::remember(home, &known, &bound.writable_trees).map_err(read_failed)?;
    let disk = disk_limit(&prepared.plan, place, &bound.writable_trees);
    Ok(Accepted { prepared, bound, disk })
}

struct Ended {
    outcome: Outcome,
    supervised: Supervised,
    anchored: Anchored,
}

struct Failed {
    error: LaunchError,
    record: RecordState,
}

enum RecordState {
    Closed,
    Open,
}

/// From `run.start` to `run.stop`, whatever happens in between.
fn run_recorded(
    home: &Home,
    place: &RunPlace,
    accepted: Accepted,
    caller: &mut Caller,
    observer: &mut dyn Observer,
) -> Result<Ended, Failed> {
    let Accepted { prepared, bound, disk } = accepted;
    let posture = bound.posture.clone();
    let open = |error| Failed { error, record: RecordState::Open };
    let mut begun = RunLog::begin(home, place, &prepared, &posture).map_err(open)?;
    let orders = Orders {
        run: place.id,
        keep: prepared.keep,
        disk,
        socket: home.socket_path(&place.id),
        live: place
            .sign
            .share()
            .map_err(|error| open(LaunchError::Record { path: place.live.clone(), error }))?,
    };
    match attempt(home, &mut begun, (&prepared, bound), caller, orders, observer) {
        Ok((supervised, mut outcome)) => {
            if let Err(error) = begun.recorder.settle() {
                outcome.output_may_be_lost(&error);
            }
            let closed = begun.close(home, &outcome);
            let anchored = closed.map_err(|error| {
                let error = Box::new(error);
                open(LaunchError::EndNotRecorded { run: place.id, error })
            })?;
            if let Anchored::No = anchored {
                outcome.unanchored = true;
            }
            Ok(Ended { outcome, supervised, anchored })
        }
        // Nothing was let go.
        Err(error) => {
            let outcome = Outcome::not_started(place.id, prepared.plan.backend, posture, &error);
            match begun.close(home, &outcome) {
                Ok(Anchored::Yes) => Err(Failed { error, record: RecordState::Closed }),
                _ => Err(open(error)),
            }
        }
    }
}

fn attempt(
    home: &Home,
    log: &mut RunLog<'_>,
    (prepared, bound): (&Prepared, Bound),
    caller: &mut Caller,
    orders: Orders,
    observer: &mut dyn Observer,
) -> Result<(Supervised, Outcome), LaunchError> {
    let (run, plan) = (orders.run, &prepared.plan);
    let (expectation, posture) = (bound.expectation.clone(), bound.posture.clone());
    orders.live.say(RunState::Starting);
    let mut started = block_on(prepared.backend.start(bound))?;
    let mut housekeeping = None;
    let let_go = &mut |caller: &mut Caller| {
        observer.started(&run, plan.backend, &posture);
        if let Caller::There { connection, .. } = caller {
            let posture = Box::new(posture.clone());
            connection.say(&FromSupervisor::Launched { run, backend: plan.backend, posture });
        }
        // Now, so that no start waits for it, and a long run does not put it off.
        housekeeping = Some(Housekeeping::begin(home, &run));
    };
    let supervised =
        open(&mut started, plan, &run, caller).map_err(LaunchError::from).and_then(|mut opened| {
            started.make_limits()?; // while the sandbox builds its root; what PID 1 makes inherits them
            opened.ask_for_command(plan, caller)?;
            log.started(&started)?; // while the command locks itself down
            let recorder = &mut log.recorder;
            Ok(supervise(
                opened,
                &mut started,
                (plan, &expectation),
                caller,
                orders,
                recorder,
                let_go,
            )?)
        });
    started.kill(); // the kernel takes it apart while the rest is found out
    let mut supervised = match supervised {
        Ok(supervised) if supervised.not_as_planned.is_empty() => supervised,
        Ok(Supervised { not_as_planned: differences, .. }) => {
            return Err(and_destroy(&mut started, LaunchError::NotAsPlanned { differences }));
        }
        Err(error) => return Err(and_destroy(&mut started, error)),
    };
    if let Some(found) = housekeeping.and_then(Housekeeping::finish) {
        observer.reconciled(&found);
    }
    started.reap();
    let mut usage = supervised.usage;
    started.usage(&mut usage);
    let (reason, exit) = supervised.judged(started.oom_kills());
    let leak = started.destroy().err().map(|leak| leak.to_string());
    let detail = supervised.detail();
    let outcome = Outcome {
        id: run,
        backend: plan.backend,
        reason,
        exit,
        failure: supervised.failure.take(),
        posture,
        usage,
        stdout: std::mem::take(&mut supervised.stdout),
        stderr: std::mem::take(&mut supervised.stderr),
        attestation: supervised.attestation.take(),
        detail,
        unanchored: false,
        leak,
    };
    Ok((supervised, outcome))
}

/// A command without a boundary is not watched: what it writes cannot be told from what others write.
fn disk_limit(plan: &Plan, place: &RunPlace, trees: &[PathBuf]) -> Option<DiskLimit> {
    let bytes = plan.limits.disk.filter(|_| plan.backend != BackendName::Host)?;
    Some(DiskLimit { bytes, home: place.home(), trees: trees.to_vec() })
}

/// Nothing was let go: what was made for it is taken away, and both failures are told.
fn and_destroy(started: &mut belljar_backend::Started, start: LaunchError) -> LaunchError {
    match started.destroy() {
        Ok(()) => start,
        Err(cleanup) => LaunchError::AndCleanup { start: Box::new(start), cleanup },
    }
}

fn refuse_if_unmet(
    prepared: &Prepared,
    posture: &belljar_spec::Posture,
) -> Result<(), LaunchError> {
    let missing = posture.unmet(&prepared.spec.required, &prepared.spec.waivers);
    if missing.is_empty() {
        return Ok(());
    }
    Err(LaunchError::NotGuaranteed { backend: prepared.plan.backend, missing })
}

/// A program inside can tell which run it is in.
fn set_run_id(prepared: &mut Prepared, id: &RunId) {
    prepared
        .plan
        .command
        .env
        .insert(belljar_spec::env::RUN_ID_INSIDE.to_owned(), id.as_str().into());
}

fn where_it_lives(
    home: &Home,
    place: &RunPlace,
    plan: &Plan,
    mut run_writable: Vec<PathBuf>,
) -> Place {
    // This run's own writable trees count too: an earlier run may have worked on them unrecorded.
    run_writable.extend(plan.mounts.iter().filter_map(|mount| match &mount.what {
        belljar_spec::MountKind::Bind {
            source: belljar_spec::Source::Path { path },
            access: belljar_spec::Access::Writable,
            ..
        } => std::fs::canonicalize(path.as_path()).ok(),
        _ => None,
    }));
    let user_home = std::env::var_os("HOME").map(PathBuf::from);
    let executable = std::env::current_exe().ok();
    Place {
        run: place.id.to_string(),
        home: place.home(),
        own: own_directories(home, user_home.as_deref()),
        executable,
        run_writable,
        homes: belljar_linux::jail::sensitive::home_directories(user_home.as_deref()),
    }
}

/// What no run is ever given: records, settings, sockets and locks of belljar.
fn own_directories(home: &Home, user_home: Option<&std::path::Path>) -> Vec<PathBuf> {
    let below = |variable: &str, default: Option<PathBuf>| {
        std::env::var_os(variable).map(PathBuf::from).or(default).map(|base| base.join("belljar"))
    };
    let config = below("XDG_CONFIG_HOME", user_home.map(|home| home.join(".config")));
    let runtime = below("XDG_RUNTIME_DIR", None);
    [
        Some(home.path().to_owned()),
        config,
        runtime,
        Some("/etc/belljar".into()),
        Some("/run/belljar".into()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

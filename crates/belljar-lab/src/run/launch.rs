//! The launch order.

use std::path::PathBuf;

use belljar_backend::{Backend, Capabilities, Unavailable, by_name};
use belljar_spec::{BackendChoice, BackendName, Place, Plan, RunId, RunSpec};

use super::place::RunPlace;
use super::record::RunRecord;
use super::{DryRun, LaunchError, Observer, Outcome, Streams, writable};
use crate::block_on;
use crate::home::Home;
use crate::supervise::{DiskLimit, Supervised, open, supervise};

/// A backend, chosen and asked, and its plan. Nothing exists yet.
pub struct Prepared {
    backend: Box<dyn Backend>,
    pub plan: Plan,
    pub spec: RunSpec,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Prepared {
    /// What would be done, and what stands in the way.
    pub fn dry_run(&self) -> DryRun {
        DryRun {
            spec_hash: self.spec.hash(),
            plan_hash: self.plan.hash(),
            plan: self.plan.clone(),
            missing: self.plan.posture.unmet(&self.spec.required, &self.spec.waivers),
        }
    }
}

/// Chooses a backend and makes the plan.
pub fn prepare(spec: RunSpec) -> Result<Prepared, LaunchError> {
    if spec.command.is_empty() {
        return Err(LaunchError::NoCommand);
    }
    let (backend, capabilities) = choose(spec.backend)?;
    let plan = backend.plan(&spec, &capabilities)?;
    Ok(Prepared { backend, plan, spec })
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

/// Runs it. An error means that nothing of the command was started and nothing is left, but for
/// [`LaunchError::EndNotRecorded`].
pub fn launch(
    home: &Home,
    prepared: Prepared,
    streams: Streams,
    observer: &mut dyn Observer,
) -> Result<Outcome, LaunchError> {
    refuse_if_unmet(&prepared, &prepared.plan.posture)?; // before anything is made
    let place = RunPlace::make(home)?;
    match attempt(home, &place, prepared, streams, observer) {
        Ok(outcome) => {
            place.close()?; // after the record has its end
            Ok(outcome)
        }
        // The command ran: what is on disk stays, and the next command closes it as lost.
        Err(error @ LaunchError::EndNotRecorded { .. }) => Err(error),
        Err(error) => {
            place.discard();
            Err(error)
        }
    }
}

fn attempt(
    home: &Home,
    place: &RunPlace,
    mut prepared: Prepared,
    streams: Streams,
    observer: &mut dyn Observer,
) -> Result<Outcome, LaunchError> {
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
    let (expectation, posture) = (bound.expectation.clone(), bound.posture.clone());
    let mut record = RunRecord::new(place.id, &prepared.spec, &prepared.plan, &posture);
    let mut started = block_on(prepared.backend.start(bound))?;
    let let_go =
        |observer: &mut dyn Observer| observer.started(&place.id, prepared.plan.backend, &posture);
    let supervised = open(&mut started, &prepared.plan, &place.id, streams)
        .map_err(LaunchError::from)
        .and_then(|mut opened| {
            started.make_limits()?; // while the sandbox builds its root; what PID 1 makes inherits them
            opened.ask_for_command(&prepared.plan)?;
            record.write(&place.directory)?; // while the command locks itself down; before it is let go
            Ok(supervise(opened, &mut started, &prepared.plan, &expectation, disk, || {
                let_go(observer)
            })?)
        });
    started.kill(); // the kernel takes it apart while the record is written
    let supervised = match supervised {
        Ok(supervised) if supervised.not_as_planned.is_empty() => supervised,
        Ok(Supervised { not_as_planned: differences, .. }) => {
            return Err(and_destroy(&mut started, LaunchError::NotAsPlanned { differences }));
        }
        Err(error) => return Err(and_destroy(&mut started, error)),
    };
    let mut usage = supervised.usage;
    started.usage(&mut usage);
    let (reason, exit) = supervised.judged(started.oom_kills());
    let mut outcome = Outcome {
        id: place.id,
        backend: prepared.plan.backend,
        reason,
        exit,
        failure: supervised.failure,
        posture,
        usage,
        stdout: supervised.stdout,
        stderr: supervised.stderr,
        attestation: supervised.attestation,
        leak: None,
    };
    record.attestation = outcome.attestation.clone();
    record.outcome = Some(outcome.clone());
    let mut recorded = record.write(&place.directory);
    if let Err(leak) = started.destroy() {
        outcome.leak = Some(leak.to_string());
        record.outcome = Some(outcome.clone());
        recorded = record.write(&place.directory);
    }
    recorded
        .map_err(|error| LaunchError::EndNotRecorded { run: place.id, error: Box::new(error) })?;
    Ok(outcome)
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

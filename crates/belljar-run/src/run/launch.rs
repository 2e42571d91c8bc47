//! The launch order.

use std::path::PathBuf;
use std::time::Duration;

use belljar_backend::Bound;
use belljar_linux::file_clock::Arrival;
use belljar_spec::egress::SecretValue;
use belljar_spec::wire::control::FromSupervisor;
use belljar_spec::{
    Access, Backing, HostPaths, MountKind, Plan, RunId, RunState, Source, WritableTree,
};

use super::agent;
use super::agent_home::prepare_agent_home;
use super::bypass_requires_boundary;
use super::housekeeping::{self, Housekeeping};
use super::log::{Anchored, RunLog};
use super::network_bridge;
use super::run_dir::RunDir;
use super::select_backend::Prepared;
use belljar_record::redact::secrets_of;
use belljar_record::{Outcome, writable_trees};

use super::outcome::{mark_output_lost, not_started};
use super::{LaunchError, Observer, Streams};
use crate::supervise::{
    Caller, DiskLimit, LaunchOptions, Layers, NetworkBridge, Supervised, open, supervise,
};
use belljar_record::HomeKey;
use belljar_record::ballast;
use belljar_record::home::Home;
use belljar_workspace::{AtEnd, WrittenTree};

/// Runs it here: this process is its supervisor. An error means that nothing of the command was started,
/// but for [`LaunchError::EndNotRecorded`].
pub fn launch(
    home: &Home,
    prepared: Prepared<'_>,
    streams: Streams,
    observer: &mut dyn Observer,
) -> Result<Outcome, LaunchError> {
    launch_for(home, prepared, Caller::Here(streams), observer)
}

pub(crate) fn launch_for(
    home: &Home,
    mut prepared: Prepared<'_>,
    mut caller: Caller,
    observer: &mut dyn Observer,
) -> Result<Outcome, LaunchError> {
    // Until a command is let go, since another backend's proxy may need them too.
    let mut secrets = std::mem::take(&mut prepared.secrets);
    let launched = loop {
        let NotRun { error, record } =
            match accept_and_run(home, &mut prepared, &mut secrets, &mut caller, observer) {
                Ok(outcome) => break Ok(outcome),
                Err(not_run) => not_run,
            };
        // Nothing of the command ran, so the operator's next choice can have it.
        let told = prepared.not_taken().len();
        let next = match record {
            AttemptRecord::None => prepared.instead(*error, None),
            AttemptRecord::Whole(run) => prepared.instead(*error, Some(run)),
            AttemptRecord::WithoutEnd => Err(*error), // nothing runs that cannot be recorded
        };
        prepared = match next {
            Ok(next) => next,
            Err(error) => break Err(error),
        };
        if prepared.refusal().is_none() {
            prepared.not_taken().iter().skip(told).for_each(|step| observer.not_taken(step));
        }
    };
    if let Err(error) = &launched {
        caller.refuse(error);
    }
    launched
}

/// Nothing was let go.
struct NotRun {
    error: Box<LaunchError>,
    record: AttemptRecord,
}

/// What there is of an attempt that failed.
enum AttemptRecord {
    /// It was not accepted.
    None,
    Whole(RunId),
    WithoutEnd,
}

impl From<LaunchError> for NotRun {
    fn from(error: LaunchError) -> Self {
        Self { error: Box::new(error), record: AttemptRecord::None }
    }
}

fn accept_and_run(
    home: &Home,
    prepared: &mut Prepared<'_>,
    secrets: &mut Vec<SecretValue>,
    caller: &mut Caller,
    observer: &mut dyn Observer,
) -> Result<Outcome, NotRun> {
    if let Some(refusal) = prepared.refusal() {
        return Err(refusal.into()); // before anything is made
    }
    ballast::keep(home); // before this run can fill the disk
    let place = RunDir::make(home)?;
    let _launch =
        tracing::debug_span!("launch", run = %place.id, backend = %prepared.plan.backend).entered();
    let outcome = match bind(home, &place, prepared, secrets, observer) {
        Ok(pinned) => run_recorded(home, &place, prepared, pinned, secrets, caller, observer),
        Err(error) => {
            place.discard(); // not accepted, so there is nothing to keep
            return Err(error.into());
        }
    };
    match outcome {
        // What is still there is taken away by the next command, which finds it by the sign of life.
        Ok(Ended { outcome, supervised, anchored: Anchored::Yes }) if outcome.leak.is_some() => {
            supervised.dismiss(outcome.report());
            Ok(outcome)
        }
        Ok(Ended { outcome, supervised, anchored: Anchored::Yes }) => {
            place.close()?;
            supervised.dismiss(outcome.report()); // so that whoever is told finds it stopped
            housekeeping::retain(home, prepared.spec.name.clone(), prepared.spec.retention);
            Ok(outcome)
        }
        // The next command anchors it, and then takes the sign of life away.
        Ok(Ended { outcome, supervised, anchored: Anchored::No }) => {
            supervised.dismiss(outcome.report());
            Ok(outcome)
        }
        Err(Failed { error, record: RecordState::Closed }) if error.may_have_left_something() => {
            Err(NotRun { error: Box::new(error), record: AttemptRecord::Whole(place.id) })
        }
        Err(Failed { error, record: RecordState::Closed }) => {
            let record = AttemptRecord::Whole(place.id);
            place.close()?;
            Err(NotRun { error: Box::new(error), record })
        }
        // What is on disk stays, and the next command closes it as lost.
        Err(Failed { error, record: RecordState::Open }) => {
            Err(NotRun { error: Box::new(error), record: AttemptRecord::WithoutEnd })
        }
    }
}

/// Pins everything. When this has returned the run is accepted: from here on there is a record.
fn bind(
    home: &Home,
    place: &RunDir,
    prepared: &mut Prepared<'_>,
    secrets: &mut [SecretValue],
    observer: &mut dyn Observer,
) -> Result<Pinned, LaunchError> {
    let _bind = tracing::debug_span!("bind").entered();
    let arrived = Arrival::now();
    let read_failed = |error| LaunchError::Record { path: home.path().to_owned(), error };
    let known = writable_trees::known(home).map_err(read_failed)?;
    set_run_id(&mut prepared.plan, &place.id);
    let crossing = network_bridge::prepare(place, prepared, secrets)?;
    let _pinned = agent::bring_home(home, place, prepared)?; // until its layers are taken over too
    let user_home = std::env::var_os("HOME").map(PathBuf::from);
    prepare_agent_home(&place.home(), &prepared.spec, user_home.as_deref())?;
    place.make_targets(&prepared.plan)?;
    let owner = match prepared.plan.image {
        Some(_) => HomeKey::load_or_make(home.path())?.owner_label(),
        None => String::new(),
    };
    let mut wary_of = known.clone();
    let untrusted = prepared.spec.untrusted_tree.as_ref();
    wary_of.extend(untrusted.map(|tree| WritableTree::by_path(tree.as_path().to_owned())));
    let mut where_it_lives = where_it_lives(home, place, &prepared.plan, wary_of, owner);
    where_it_lives.seed = agent::seed(home, prepared);
    // Said before it is done: it can take long, and as much of the disk as the tree.
    for copy in belljar_linux::jail::copies_ahead(&prepared.plan, &where_it_lives) {
        observer.warned(&format!(
            "{} has to be copied for the overlay: {} MB, {} entries",
            copy.path.display(),
            copy.bytes.div_ceil(1_000_000),
            copy.entries
        ));
    }
    let bound = prepared.backend.bind(&prepared.plan, &where_it_lives)?;
    let missing = bound.posture.unmet(&prepared.spec.required, &prepared.spec.waivers);
    if !missing.is_empty() {
        // Binding may have found out more.
        return Err(LaunchError::NotGuaranteed { backend: prepared.plan.backend, missing });
    }
    bypass_requires_boundary::check(&prepared.spec, prepared.plan.backend, &bound.posture)?;
    super::resume_check::check(prepared)?;
    // A tree is known as writable before the first byte can be written to it.
    writable_trees::remember(home, &known, &bound.writable_trees).map_err(read_failed)?;
    if !bound.layered.is_empty() {
        belljar_workspace::write_layers(&place.directory, &bound.layered).map_err(read_failed)?;
        agent::bring_baseline(home, place, prepared)?;
    }
    let disk = disk_limit(&prepared.plan, place, &bound);
    Ok(Pinned { arrived, bound, disk, crossing })
}

/// All that a run needs is there, and nothing of it has begun.
struct Pinned {
    arrived: Arrival,
    bound: Bound,
    disk: Option<DiskLimit>,
    crossing: NetworkBridge,
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
    place: &RunDir,
    prepared: &Prepared<'_>,
    Pinned { arrived, bound, disk, crossing }: Pinned,
    secrets: &mut Vec<SecretValue>,
    caller: &mut Caller,
    observer: &mut dyn Observer,
) -> Result<Ended, Failed> {
    let posture = bound.posture.clone();
    bound.warnings.iter().for_each(|warning| observer.warned(warning));
    let open = |error| Failed { error, record: RecordState::Open };
    let masks = network_bridge::masks(&secrets_of(&prepared.spec), secrets);
    let mut begun = RunLog::begin(home, place, (prepared, &posture), masks).map_err(open)?;
    let orders = LaunchOptions {
        run: place.id,
        arrived,
        keep: prepared.keep,
        disk,
        layers: Layers {
            run: place.id,
            directory: place.directory.clone(),
            trees: bound.layered.clone(),
        },
        socket: home.socket_path(&place.id),
        live: place
            .sign
            .share()
            .map_err(|error| open(LaunchError::Record { path: place.live.clone(), error }))?,
        crossing,
        drive: agent::drive_orders(home, place, prepared, &bound),
        guard: crate::exec_rules::ExecRules::new(&prepared.spec.commands),
    };
    match attempt(home, &mut begun, (prepared, bound), secrets, caller, orders, observer) {
        Ok((supervised, mut outcome)) => {
            if let Err(error) = begun.recorder.settle() {
                mark_output_lost(&mut outcome, &error);
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
            let outcome = not_started(place.id, prepared.plan.backend, posture, &error);
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
    (prepared, bound): (&Prepared<'_>, Bound),
    secrets: &mut Vec<SecretValue>,
    caller: &mut Caller,
    orders: LaunchOptions,
    observer: &mut dyn Observer,
) -> Result<(Supervised, Outcome), LaunchError> {
    let (run, plan) = (orders.run, &prepared.plan);
    let (expectation, posture) = (bound.expectation.clone(), bound.posture.clone());
    let (layered, written) = (bound.layered.clone(), written_trees(plan, &bound));
    let since = orders.arrived.passed(); // the last moment at which nothing of the run can have written
    orders.live.say(RunState::Starting);
    let mut pod = prepared.backend.open(&bound)?;
    let mut started = pod.start(bound.sandbox)?;
    let mut housekeeping = None;
    let ports = orders.crossing.ports.published();
    let let_go = &mut |caller: &mut Caller| {
        secrets.clear(); // the proxy has them, and nobody else needs them any more
        observer.published(&ports);
        observer.started(&run, plan.backend, &posture);
        if let Caller::There { connection, .. } = caller {
            let (backend, posture) = (plan.backend, Box::new(posture.clone()));
            let (not_taken, ports) = (prepared.not_taken().to_vec(), ports.clone());
            let launched = FromSupervisor::Launched { run, backend, posture, not_taken, ports };
            connection.say(&launched);
        }
        // Now, so that no start waits for it, and a long run does not put it off.
        housekeeping = Some(Housekeeping::begin(home, &run));
    };
    let supervised = open(&mut started, (plan, &expectation), &run, caller)
        .map_err(LaunchError::from)
        .and_then(|mut opened| {
            started.sandbox.make_limits()?; // while the sandbox builds its root; what PID 1 makes inherits them
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
    started.sandbox.kill(); // the kernel takes it apart while the rest is found out
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
    started.sandbox.reap();
    let mut usage = supervised.usage;
    started.sandbox.usage(&mut usage);
    let (reason, exit) = supervised.judged(started.sandbox.oom_kills());
    let leak = started.sandbox.destroy().err().map(|leak| leak.to_string());
    let workspace = belljar_workspace::report_at_end(&AtEnd {
        run: &run,
        directory: &home.run_dir(&run),
        layered: &layered,
        written: &written,
        since,
        lasted: Duration::from_millis(usage.wall_ms),
    });
    let went_away = || "lost: the sandbox went away without a word about the command".to_owned();
    let detail =
        supervised.detail().or_else(|| (reason == belljar_spec::StopReason::Lost).then(went_away));
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
        not_taken: prepared.not_taken().to_vec(),
        detail,
        unanchored: false,
        leak,
        workspace,
        agent: supervised.agent.take().map(Box::new),
    };
    Ok((supervised, outcome))
}

/// A command without a boundary is not watched: what it writes cannot be told from what others write.
fn disk_limit(plan: &Plan, place: &RunDir, bound: &Bound) -> Option<DiskLimit> {
    let bytes = plan.limits.disk.filter(|_| plan.backend.features().has_boundary())?;
    let (mut own, mut copies) = (vec![place.home()], Vec::new());
    own.push(place.directory.join(belljar_workspace::checkpoint::CHECKPOINTS));
    for note in &bound.layered {
        let upper = belljar_workspace::upper_of(&place.directory, note);
        match note.backing {
            Backing::Overlay { .. } => own.push(upper),
            Backing::Copy { copied } => copies.push((upper, copied)),
        }
    }
    let files = vec![place.directory.join(belljar_record::EVENTS)];
    Some(DiskLimit { bytes, own, files, trees: bound.writable_trees.clone(), copies })
}

/// The trees that the run can write, each with its place inside.
fn written_trees(plan: &Plan, bound: &Bound) -> Vec<WrittenTree> {
    let given = plan.mounts.iter().filter_map(|mount| match &mount.what {
        MountKind::Bind { source: Source::Path { path }, access: Access::Writable, .. } => {
            let path = std::fs::canonicalize(path.as_path()).ok()?;
            let target = mount.target.clone();
            let before = bound.surveyed.iter().find(|tree| tree.path == path).cloned();
            let is_writable = bound.writable_trees.contains(&path);
            is_writable.then_some(WrittenTree { path, target, before })
        }
        _ => None,
    });
    given.collect()
}

/// Nothing was let go: what was made for it is taken away, and both failures are told.
fn and_destroy(started: &mut belljar_backend::Started, start: LaunchError) -> LaunchError {
    match started.sandbox.destroy() {
        Ok(()) => start,
        Err(cleanup) => LaunchError::AndCleanup { start: Box::new(start), cleanup },
    }
}

/// A program inside can tell which run it is in.
fn set_run_id(plan: &mut Plan, id: &RunId) {
    plan.command.env.insert(belljar_spec::env::RUN_ID_INSIDE.to_owned(), id.as_str().into());
}

fn where_it_lives(
    home: &Home,
    place: &RunDir,
    plan: &Plan,
    mut run_writable: Vec<WritableTree>,
    owner: String,
) -> HostPaths {
    // This run's own writable trees count too: an earlier run may have worked on them unrecorded.
    run_writable.extend(plan.mounts.iter().filter_map(|mount| match &mount.what {
        belljar_spec::MountKind::Bind {
            source: belljar_spec::Source::Path { path },
            access: belljar_spec::Access::Writable,
            ..
        } => std::fs::canonicalize(path.as_path()).ok().map(WritableTree::by_path),
        _ => None,
    }));
    let user_home = std::env::var_os("HOME").map(PathBuf::from);
    let executable = std::env::current_exe().ok();
    HostPaths {
        run: place.id.to_string(),
        directory: place.directory.clone(),
        bin: home.bin(),
        owner,
        home: place.home(),
        upper: place.directory.join("upper"),
        seed: None,
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

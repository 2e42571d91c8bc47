//! Tests each backend by running a canary command in it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use belljar_backend::engine::{Engine, INIT_INSIDE};
use belljar_backend::{Backend, Capabilities, Unavailable, by_name};
use belljar_record::home::Home;
use belljar_record::store;
use belljar_spec::init_process::NOTHING;
use belljar_spec::{BackendName, Boundary, ImageUse, Posture};
use serde::{Deserialize, Serialize};

use crate::container;
use crate::setup::{self, Account, Machine, StepState};

/// Per backend, even if it hangs.
const CANARY_TIMEOUT: Duration = Duration::from_secs(5);

/// The result for one backend.
#[derive(Clone, Debug, Serialize)]
pub struct BackendReport {
    pub backend: BackendName,
    /// A sandbox was started and attested.
    pub usable: bool,
    /// The version of the kernel or the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub posture: Option<Posture>,
    /// Why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// Inside a container: the flags of its engine with which the jail works.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub container_flags: Vec<String>,
    pub took_ms: u64,
}

/// What an engine reports about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EngineInfo {
    /// The API version in use.
    pub api: String,
    pub rootless: bool,
    /// On this machine.
    pub local: bool,
    pub runtimes: Vec<String>,
}

/// The part of `run --json` that is read back.
#[derive(Deserialize)]
struct Canary {
    #[serde(default)]
    id: Option<belljar_spec::RunId>,
    reason: belljar_spec::StopReason,
    posture: Posture,
}

/// Tests every backend: the jail first, then the engines in parallel, so that two hanging engines take no longer than
/// one.
pub fn examine_all(belljar: &Path) -> Vec<BackendReport> {
    let (engines, others): (Vec<BackendName>, Vec<BackendName>) =
        BackendName::ALL.iter().partition(|name| is_engine(**name));
    let mut all: Vec<BackendReport> = others.iter().map(|name| examine(belljar, *name)).collect();
    std::thread::scope(|scope| {
        let examine = |name: BackendName| (name, scope.spawn(move || examine(belljar, name)));
        let at_once: Vec<_> = engines.into_iter().map(examine).collect();
        all.extend(at_once.into_iter().map(|(name, thread)| {
            thread.join().unwrap_or_else(|_| {
                let failed = CanaryFailure::because("the test itself failed");
                report(name, Instant::now(), BackendInfo::default(), Err(failed))
            })
        }));
    });
    all.sort_by_key(|examined| examined.backend);
    all
}

/// Runs a command in the backend with `belljar run`, as a user would. The host backend is not tested: it isolates
/// nothing.
pub fn examine(belljar: &Path, backend: BackendName) -> BackendReport {
    let started = Instant::now();
    let until = started + CANARY_TIMEOUT;
    let mut facts = BackendInfo::default();
    let features = backend.features();
    let outcome = match (features.boundary, features.image) {
        (Boundary::None, _) => {
            Err(CanaryFailure::because("no isolation; never selected automatically"))
        }
        (Boundary::Sandbox, ImageUse::None | ImageUse::Optional) => {
            let probed = by_name(backend).and_then(|jail| jail.probe());
            facts = probed.as_ref().map(BackendInfo::of).unwrap_or_default();
            canary(belljar, backend, &["--", "/bin/true"], until)
        }
        (Boundary::Sandbox, ImageUse::Required) => {
            query_engine(backend, until).and_then(|EngineQuery { image, about }| {
                let nothing = ["--image", image, "--pull", "never", "--", INIT_INSIDE, NOTHING];
                let outcome = canary(belljar, backend, &nothing, until);
                let about = about.recv_timeout(until.saturating_duration_since(Instant::now()));
                facts = about.as_ref().map(BackendInfo::of).unwrap_or_default();
                outcome
            })
        }
    };
    report(backend, started, facts, outcome)
}

fn is_engine(name: BackendName) -> bool {
    name.features().needs_image()
}

#[derive(Default)]
struct BackendInfo {
    version: Option<String>,
    engine: Option<EngineInfo>,
}

impl BackendInfo {
    fn of(capabilities: &Capabilities) -> Self {
        let engine = capabilities.engine.as_ref().map(|engine| {
            let (major, minor) = engine.api;
            let mut runtimes = engine.runtimes.clone();
            runtimes.sort();
            EngineInfo {
                api: format!("{major}.{minor}"),
                rootless: engine.is_rootless,
                local: engine.is_local,
                runtimes,
            }
        });
        Self { version: Some(capabilities.version.clone()), engine }
    }
}

fn report(
    backend: BackendName,
    started: Instant,
    BackendInfo { version, engine }: BackendInfo,
    outcome: Result<Posture, CanaryFailure>,
) -> BackendReport {
    let took_ms = started.elapsed().as_millis() as u64;
    let (posture, failure) = match outcome {
        Ok(posture) => (Some(posture), None),
        Err(failure) => (None, Some(failure)),
    };
    let (usable, why) = (failure.is_none(), failure.as_ref().map(|failure| failure.why.clone()));
    let CanaryFailure { fix, container_flags, .. } = failure.unwrap_or_default();
    BackendReport { backend, usable, version, engine, posture, why, fix, container_flags, took_ms }
}

#[derive(Default)]
struct CanaryFailure {
    why: String,
    fix: Option<String>,
    container_flags: Vec<String>,
}

impl CanaryFailure {
    fn because(why: impl Into<String>) -> Self {
        Self { why: why.into(), ..Self::default() }
    }
}

impl From<Unavailable> for CanaryFailure {
    fn from(Unavailable { why, fix }: Unavailable) -> Self {
        Self { why, fix: Some(fix), container_flags: Vec::new() }
    }
}

/// What is requested from an engine besides the canary.
struct EngineQuery {
    /// The image of the canary.
    image: &'static str,
    /// Arrives while the canary runs.
    about: mpsc::Receiver<Capabilities>,
}

/// In a thread: each response of an engine may take as long as the whole test may.
fn query_engine(backend: BackendName, until: Instant) -> Result<EngineQuery, CanaryFailure> {
    let (image_made, image) = mpsc::channel();
    let (sender, about) = mpsc::channel();
    let thread = std::thread::Builder::new().spawn(move || {
        let engine = match Engine::find(backend) {
            Ok(engine) => engine,
            Err(error) => return drop(image_made.send(Err(error))),
        };
        let _ = image_made.send(engine.canary_image()); // the receiver may have timed out
        if let Ok(capabilities) = engine.probe() {
            let _ = sender.send(capabilities);
        }
    });
    let no_thread = |error: std::io::Error| CanaryFailure::because(error.to_string());
    thread.map_err(no_thread)?;
    match image.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(image) => Ok(EngineQuery { image: image?, about }),
        Err(_) => Err(CanaryFailure {
            why: format!("no response within {} seconds", CANARY_TIMEOUT.as_secs()),
            fix: Some(format!("restart the {backend} engine")),
            container_flags: Vec::new(),
        }),
    }
}

fn canary(
    belljar: &Path,
    backend: BackendName,
    arguments: &[&str],
    until: Instant,
) -> Result<Posture, CanaryFailure> {
    let failed = |why: String| CanaryFailure::because(why);
    let mut child = Command::new(belljar)
        .args(["run", "--no-config", "--workspace", "none", "--json", "--backend", backend.name()])
        .args(arguments)
        .env_remove(belljar_spec::env::LOG) // its stderr is read for the error
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("cannot start the canary: {error}")))?;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                let _ = child.kill(); // the sandbox ends with it
                let _ = child.wait();
                return Err(failed(format!(
                    "the canary did not finish within {} seconds",
                    CANARY_TIMEOUT.as_secs()
                )));
            }
        }
    };
    let (mut stdout, mut stderr) = (String::new(), String::new());
    if let Some(mut pipe) = child.stdout.take() {
        let _ = pipe.read_to_string(&mut stdout);
    }
    if let Some(mut pipe) = child.stderr.take() {
        let _ = pipe.read_to_string(&mut stderr);
    }
    let ended = serde_json::from_str::<Canary>(&stdout);
    if let Some(id) = ended.as_ref().ok().and_then(|canary| canary.id) {
        remove_record(&id);
    }
    match ended {
        Ok(Canary { reason: belljar_spec::StopReason::Exited, posture, .. })
            if status.success() =>
        {
            Ok(posture)
        }
        Ok(canary) => Err(failed(format!("the canary stopped: {}", canary.reason.name()))),
        Err(_) => Err(explain(backend, &stderr)),
    }
}

/// A canary is no run of the user's: `ps -a` does not list it. If it cannot be removed, retention does it later.
fn remove_record(id: &belljar_spec::RunId) {
    let Ok(home) = Home::open(&std::env::vars_os().collect()) else { return };
    if let Ok(run) = store::find(&home, id.as_str()) {
        let _ = crate::retention::remove(&home, &run, crate::retention::UnreviewedChanges::Keep);
    }
}

/// The error of the command, and a fix if the cause is known.
fn explain(backend: BackendName, stderr: &str) -> CanaryFailure {
    let part = |mark: &str| {
        let line = stderr.lines().find_map(|line| line.strip_prefix(mark));
        line.map(|text| text.trim().to_owned())
    };
    let error = part("error:").unwrap_or_else(|| "the canary printed no error".to_owned());
    let why = match part("cause:") {
        Some(cause) => format!("{error}: {cause}"),
        None => error,
    };
    // The canary's hint may be this very command.
    let fix = part("hint:").filter(|hint| !hint.starts_with("belljar doctor"));
    let failure = CanaryFailure { why, fix, container_flags: Vec::new() };
    match backend {
        BackendName::Jail => jail_problem(failure),
        BackendName::Podman => match lacks_subordinate_ids() {
            true => CanaryFailure { fix: Some(SUBORDINATE_IDS_FIX.to_owned()), ..failure },
            false => failure,
        },
        BackendName::Docker | BackendName::Host => failure,
    }
}

/// Ubuntu 23.10 and later.
const APPARMOR_FIX: &str = "AppArmor denies user namespaces to programs without a profile: sudo belljar setup, \
    which adds one";
const SUBORDINATE_IDS_FIX: &str =
    "sudo belljar setup, which gives your user the subordinate ids that rootless containers need";

/// In a container, and under AppArmor, the error of the canary is not the cause.
fn jail_problem(failure: CanaryFailure) -> CanaryFailure {
    let env: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    let home = Home::open(&env).ok();
    if let Some(problem) = home.and_then(|home| container::problem(home.path())) {
        let fix = Some(problem.fix());
        return CanaryFailure { why: problem.why, fix, container_flags: problem.flags };
    }
    let restricted =
        std::fs::read_to_string("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
            .is_ok_and(|text| text.trim() == "1");
    match restricted && !rustix::process::geteuid().is_root() {
        true => CanaryFailure { fix: Some(APPARMOR_FIX.to_owned()), ..failure },
        false => failure,
    }
}

/// Whether the caller is an ordinary user without them.
fn lacks_subordinate_ids() -> bool {
    let uid = rustix::process::geteuid().as_raw().to_string();
    let machine = Account::find(&uid).ok().zip(std::env::current_exe().ok());
    let machine = machine.and_then(|(account, belljar)| Machine::here(account, belljar).ok());
    machine.is_some_and(|machine| {
        machine
            .examine()
            .iter()
            .any(|step| step.name == setup::SUBORDINATE_IDS && step.state == StepState::Needed)
    })
}

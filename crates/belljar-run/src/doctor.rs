//! Tests each backend by running a canary command in it.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use belljar_backend::engine::{Engine, INIT_INSIDE};
use belljar_backend::{Backend, Capabilities, Unavailable, by_name};
use belljar_spec::init_process::NOTHING;
use belljar_spec::{BackendName, Boundary, ImageUse, Posture};
use serde::{Deserialize, Serialize};

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
                let why = "the test itself failed".to_owned();
                report(
                    name,
                    Instant::now(),
                    BackendInfo::default(),
                    Err(CanaryFailure { why, fix: None }),
                )
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
            let why = "no isolation; never selected automatically".to_owned();
            Err(CanaryFailure { why, fix: None })
        }
        (Boundary::Sandbox, ImageUse::None) => {
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
    let (usable, posture, why, fix) = match outcome {
        Ok(posture) => (true, Some(posture), None, None),
        Err(CanaryFailure { why, fix }) => (false, None, Some(why), fix),
    };
    BackendReport { backend, usable, version, engine, posture, why, fix, took_ms }
}

struct CanaryFailure {
    why: String,
    fix: Option<String>,
}

impl From<Unavailable> for CanaryFailure {
    fn from(Unavailable { why, fix }: Unavailable) -> Self {
        Self { why, fix: Some(fix) }
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
    let no_thread = |error: std::io::Error| CanaryFailure { why: error.to_string(), fix: None };
    thread.map_err(no_thread)?;
    match image.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(image) => Ok(EngineQuery { image: image?, about }),
        Err(_) => Err(CanaryFailure {
            why: format!("no response within {} seconds", CANARY_TIMEOUT.as_secs()),
            fix: Some(format!("restart the {backend} engine")),
        }),
    }
}

fn canary(
    belljar: &Path,
    backend: BackendName,
    arguments: &[&str],
    until: Instant,
) -> Result<Posture, CanaryFailure> {
    let failed = |why: String| CanaryFailure { why, fix: None };
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
    match serde_json::from_str::<Canary>(&stdout) {
        Ok(Canary { reason: belljar_spec::StopReason::Exited, posture }) if status.success() => {
            Ok(posture)
        }
        Ok(canary) => Err(failed(format!("the canary stopped: {}", canary.reason.name()))),
        Err(_) => Err(explain(backend, &stderr)),
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
    let restricted =
        std::fs::read_to_string("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
            .is_ok_and(|text| text.trim() == "1");
    let fix = if restricted && backend == BackendName::Jail {
        Some(APPARMOR_FIX.to_owned())
    } else {
        part("hint:")
    };
    CanaryFailure { why, fix }
}

/// Ubuntu 24.04 and later deny user namespaces to programs without a profile.
const APPARMOR_FIX: &str = "AppArmor denies user namespaces to programs without a profile. Run as root:\n\
    printf 'abi <abi/4.0>,\\ninclude <tunables/global>\\nprofile belljar /**/belljar flags=(unconfined) \
    {\\n  userns,\\n}\\n' > /etc/apparmor.d/belljar && apparmor_parser -r /etc/apparmor.d/belljar";

//! Finds out what works on this host by doing it: a canary in each backend.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use belljar_backend::engine::{Engine, INIT_INSIDE};
use belljar_backend::{Backend, Capabilities, Unavailable, by_name};
use belljar_linux::init::NOTHING;
use belljar_spec::{BackendName, Boundary, ImageUse, Posture};
use serde::{Deserialize, Serialize};

/// For each backend, a hung one included.
const CANARY_WITHIN: Duration = Duration::from_secs(5);

/// What a backend showed.
#[derive(Clone, Debug, Serialize)]
pub struct Examined {
    pub backend: BackendName,
    /// A sandbox was made with it, and attested.
    pub usable: bool,
    /// Of the kernel, or of the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineSeen>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub posture: Option<Posture>,
    /// Why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    pub took_ms: u64,
}

/// What an engine says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EngineSeen {
    /// The version of its API that is spoken.
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

/// Every backend. The jail first and by itself; engines side by side, so that two that hang take no longer
/// than one.
pub fn examine_all(belljar: &Path) -> Vec<Examined> {
    let (engines, others): (Vec<BackendName>, Vec<BackendName>) =
        BackendName::ALL.iter().partition(|name| is_engine(**name));
    let mut all: Vec<Examined> = others.iter().map(|name| examine(belljar, *name)).collect();
    std::thread::scope(|scope| {
        let examine = |name: BackendName| (name, scope.spawn(move || examine(belljar, name)));
        let at_once: Vec<_> = engines.into_iter().map(examine).collect();
        all.extend(at_once.into_iter().map(|(name, thread)| {
            thread.join().unwrap_or_else(|_| {
                let why = "the examination itself failed".to_owned();
                seen(name, Instant::now(), Seen::default(), Err(Failure { why, fix: None }))
            })
        }));
    });
    all.sort_by_key(|examined| examined.backend);
    all
}

/// Starts a command in the backend through belljar itself, as a user would. The host backend is not
/// tried: it isolates nothing, and would prove nothing.
pub fn examine(belljar: &Path, backend: BackendName) -> Examined {
    let begun = Instant::now();
    let until = begun + CANARY_WITHIN;
    let mut facts = Seen::default();
    let features = backend.features();
    let flown = match (features.boundary, features.image) {
        (Boundary::None, _) => {
            let why = "no isolation; never chosen by itself".to_owned();
            Err(Failure { why, fix: None })
        }
        (Boundary::Sandbox, ImageUse::None) => {
            let asked = by_name(backend).and_then(|jail| jail.probe());
            facts = asked.as_ref().map(Seen::of).unwrap_or_default();
            canary(belljar, backend, &["--", "/bin/true"], until)
        }
        (Boundary::Sandbox, ImageUse::Required) => {
            ask(backend, until).and_then(|Asked { image, about }| {
                let nothing = ["--image", image, "--pull", "never", "--", INIT_INSIDE, NOTHING];
                let flown = canary(belljar, backend, &nothing, until);
                let about = about.recv_timeout(until.saturating_duration_since(Instant::now()));
                facts = about.as_ref().map(Seen::of).unwrap_or_default();
                flown
            })
        }
    };
    seen(backend, begun, facts, flown)
}

fn is_engine(name: BackendName) -> bool {
    name.features().needs_image()
}

#[derive(Default)]
struct Seen {
    version: Option<String>,
    engine: Option<EngineSeen>,
}

impl Seen {
    fn of(capabilities: &Capabilities) -> Self {
        let engine = capabilities.engine.as_ref().map(|engine| {
            let (major, minor) = engine.api;
            let mut runtimes = engine.runtimes.clone();
            runtimes.sort();
            EngineSeen {
                api: format!("{major}.{minor}"),
                rootless: engine.is_rootless,
                local: engine.is_local,
                runtimes,
            }
        });
        Self { version: Some(capabilities.version.clone()), engine }
    }
}

fn seen(
    backend: BackendName,
    begun: Instant,
    Seen { version, engine }: Seen,
    flown: Result<Posture, Failure>,
) -> Examined {
    let took_ms = begun.elapsed().as_millis() as u64;
    let (usable, posture, why, fix) = match flown {
        Ok(posture) => (true, Some(posture), None, None),
        Err(Failure { why, fix }) => (false, None, Some(why), fix),
    };
    Examined { backend, usable, version, engine, posture, why, fix, took_ms }
}

struct Failure {
    why: String,
    fix: Option<String>,
}

impl From<Unavailable> for Failure {
    fn from(Unavailable { why, fix }: Unavailable) -> Self {
        Self { why, fix: Some(fix) }
    }
}

/// What an engine is asked beside the canary.
struct Asked {
    /// What the canary starts from.
    image: &'static str,
    /// Comes while the canary flies.
    about: mpsc::Receiver<Capabilities>,
}

/// By a thread: an engine may take as long for each answer as is allowed for all of them.
fn ask(backend: BackendName, until: Instant) -> Result<Asked, Failure> {
    let (image_made, image) = mpsc::channel();
    let (tell, about) = mpsc::channel();
    let asking = std::thread::Builder::new().spawn(move || {
        let engine = match Engine::find(backend) {
            Ok(engine) => engine,
            Err(error) => return drop(image_made.send(Err(error))),
        };
        let _ = image_made.send(engine.canary_image()); // nobody waits for it any more
        if let Ok(capabilities) = engine.probe() {
            let _ = tell.send(capabilities);
        }
    });
    let no_thread = |error: std::io::Error| Failure { why: error.to_string(), fix: None };
    asking.map_err(no_thread)?;
    match image.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(image) => Ok(Asked { image: image?, about }),
        Err(_) => Err(Failure {
            why: format!("no answer within {} seconds", CANARY_WITHIN.as_secs()),
            fix: Some(format!("restart the {backend} engine")),
        }),
    }
}

fn canary(
    belljar: &Path,
    backend: BackendName,
    words: &[&str],
    until: Instant,
) -> Result<Posture, Failure> {
    let failed = |why: String| Failure { why, fix: None };
    let mut child = Command::new(belljar)
        .args(["run", "--no-config", "--workspace", "none", "--json", "--backend", backend.name()])
        .args(words)
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
                    "the canary was not done within {} seconds",
                    CANARY_WITHIN.as_secs()
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
        Ok(canary) => Err(failed(format!("the canary ended by {}", canary.reason.name()))),
        Err(_) => Err(explain(backend, &stderr)),
    }
}

/// The command's own words, and the fix where the cause is a known one.
fn explain(backend: BackendName, stderr: &str) -> Failure {
    let part = |mark: &str| {
        let line = stderr.lines().find_map(|line| line.strip_prefix(mark));
        line.map(|text| text.trim().to_owned())
    };
    let error = part("error:").unwrap_or_else(|| "the canary said nothing".to_owned());
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
    Failure { why, fix }
}

/// Ubuntu 24.04 and later refuse user namespaces to programs without a profile.
const APPARMOR_FIX: &str = "AppArmor refuses user namespaces to unknown programs. As root:\n\
    printf 'abi <abi/4.0>,\\ninclude <tunables/global>\\nprofile belljar /**/belljar flags=(unconfined) \
    {\\n  userns,\\n}\\n' > /etc/apparmor.d/belljar && apparmor_parser -r /etc/apparmor.d/belljar";

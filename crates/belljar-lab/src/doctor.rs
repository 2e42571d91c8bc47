//! Finds out what works on this host by doing it: a canary in each backend.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use belljar_spec::{BackendName, Posture};
use serde::{Deserialize, Serialize};

/// For each backend, a hung one included.
const CANARY_WITHIN: Duration = Duration::from_secs(5);

/// What a backend showed.
#[derive(Clone, Debug, Serialize)]
pub struct Examined {
    pub backend: BackendName,
    pub usable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub posture: Option<Posture>,
    /// Why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    pub took_ms: u64,
}

/// The part of `run --json` that is read back.
#[derive(Deserialize)]
struct Canary {
    reason: belljar_spec::StopReason,
    posture: Posture,
}

/// Starts `true` in the backend through the command itself, as a user would. The host backend is not
/// tried: it isolates nothing, and would prove nothing.
pub fn examine(belljar: &Path, backend: BackendName) -> Examined {
    let begun = Instant::now();
    let result = match backend {
        BackendName::Host => Err(Failure::new("no isolation; never chosen by itself", None)),
        BackendName::Docker | BackendName::Podman => match belljar_backend::by_name(backend) {
            Err(unavailable) => Err(Failure::new(&unavailable.why, Some(unavailable.fix))),
            Ok(_) => canary(belljar, backend),
        },
        BackendName::Jail => canary(belljar, backend),
    };
    let took_ms = begun.elapsed().as_millis() as u64;
    match result {
        Ok(posture) => Examined {
            backend,
            usable: true,
            posture: Some(posture),
            why: None,
            fix: None,
            took_ms,
        },
        Err(Failure { why, fix }) => {
            let why = Some(why);
            Examined { backend, usable: false, posture: None, why, fix, took_ms }
        }
    }
}

struct Failure {
    why: String,
    fix: Option<String>,
}

impl Failure {
    fn new(why: &str, fix: Option<String>) -> Self {
        Self { why: why.to_owned(), fix }
    }
}

fn canary(belljar: &Path, backend: BackendName) -> Result<Posture, Failure> {
    let failed = |why: String| Failure { why, fix: None };
    let mut child = Command::new(belljar)
        .args(["run", "--no-config", "--workspace", "none", "--json", "--backend", backend.name()])
        .args(["--", "/bin/true"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("cannot start the canary: {error}")))?;
    let until = Instant::now() + CANARY_WITHIN;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                let _ = child.kill(); // the kernel ends the sandbox with it
                let _ = child.wait();
                return Err(failed(format!(
                    "no answer within {} seconds",
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
        Err(_) => Err(explain(&stderr)),
    }
}

/// The command's own words, and the fix where the cause is a known one.
fn explain(stderr: &str) -> Failure {
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
    let fix = if restricted { Some(APPARMOR_FIX.to_owned()) } else { part("hint:") };
    Failure { why, fix }
}

/// Ubuntu 24.04 and later refuse user namespaces to programs without a profile.
const APPARMOR_FIX: &str = "AppArmor refuses user namespaces to unknown programs. As root:\n\
    printf 'abi <abi/4.0>,\\ninclude <tunables/global>\\nprofile belljar /**/belljar flags=(unconfined) \
    {\\n  userns,\\n}\\n' > /etc/apparmor.d/belljar && apparmor_parser -r /etc/apparmor.d/belljar";

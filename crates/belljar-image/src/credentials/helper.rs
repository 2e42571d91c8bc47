//! Programs that keep credentials: `docker-credential-NAME get`, with the registry on standard input.
//!
//! They run on the host, as the operator, like docker's own command would run them. Their name comes from
//! the operator's own configuration, never from a manifest.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use zeroize::{Zeroize, Zeroizing};

use super::{Credentials, HelperPrograms};

/// The user may have to unlock a keyring.
const HELPER_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_BYTES: usize = 64 * 1024;
/// The user's name by which a helper marks the secret as an identity token.
const TOKEN_USER: &str = "<token>";
/// What helpers print when they know nothing, each with a code that is not 0.
const KNOWS_NOTHING: &[&str] =
    &["credentials not found", "no credentials server URL", "no credentials username"];

/// None holds what the helper printed: that can be a secret.
#[derive(Debug, thiserror::Error)]
pub(super) enum HelperError {
    #[error("the credential helper \"{0}\" has a name that no program can have")]
    Name(String),
    #[error("there is no docker-credential-{0} on the PATH, which docker's configuration names")]
    Missing(String),
    #[error("docker-credential-{name} cannot be used: {error}")]
    Io { name: String, error: io::Error },
    #[error("docker-credential-{0} did not answer within 60 seconds")]
    Silent(String),
    #[error(
        "docker-credential-{name} failed with {status}; try: echo {registry} | docker-credential-{name} get"
    )]
    Failed { name: String, status: String, registry: String },
    #[error("what docker-credential-{0} printed makes no sense")]
    Answer(String),
}

#[derive(Default, Deserialize, Zeroize)]
#[zeroize(drop)]
struct Answer {
    #[serde(default, rename = "Username")]
    user: String,
    #[serde(default, rename = "Secret")]
    secret: String,
}

/// Nothing if the helper knows nothing of this registry.
pub(super) fn get(
    name: &str,
    registry: &str,
    helpers: &HelperPrograms,
) -> Result<Option<Credentials>, HelperError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || !name.chars().all(plain) {
        return Err(HelperError::Name(belljar_spec::text::escape(name.as_bytes())));
    }
    let program = format!("docker-credential-{name}");
    let program = (helpers.find)(program.as_ref(), &helpers.search_path)
        .ok_or_else(|| HelperError::Missing(name.to_owned()))?;
    let failed = |error| HelperError::Io { name: name.to_owned(), error };
    let mut child = Command::new(program)
        .arg("get")
        .current_dir("/")
        .env("PATH", &helpers.own_path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let until = Instant::now() + HELPER_TIMEOUT;
    let asked = ask(&mut child, registry, until);
    let ended = asked.and_then(|answer| Ok((answer, wait(&mut child, until)?)));
    let (answer, status) = match ended {
        Ok(ended) => ended,
        Err(error) => {
            end(&mut child);
            return Err(match error.kind() {
                io::ErrorKind::TimedOut => HelperError::Silent(name.to_owned()),
                _ => failed(error),
            });
        }
    };
    if !status.success() {
        let text = String::from_utf8_lossy(&answer);
        if KNOWS_NOTHING.iter().any(|phrase| text.contains(phrase)) {
            return Ok(None);
        }
        let (name, registry) = (name.to_owned(), registry.to_owned());
        return Err(HelperError::Failed { name, status: status.to_string(), registry });
    }
    let bad = |_| HelperError::Answer(name.to_owned()); // the parser's message can quote the secret
    let answer: Answer = serde_json::from_slice(&answer).map_err(bad)?;
    Ok(match (answer.user.as_str(), answer.secret.as_str()) {
        (_, "") => None,
        (TOKEN_USER, token) => Some(Credentials::identity_token(token.to_owned())),
        (user, password) => Some(Credentials::password(user.to_owned(), password.to_owned())),
    })
}

fn ask(child: &mut Child, registry: &str, until: Instant) -> io::Result<Zeroizing<Vec<u8>>> {
    if let Some(mut stdin) = child.stdin.take() {
        // Short enough for a pipe; a helper that does not read it answers nothing useful.
        match stdin.write_all(registry.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            _ => {}
        }
    }
    let mut stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let mut answer = Zeroizing::new(Vec::with_capacity(MAX_BYTES));
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = rustix::time::Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&stdout.as_fd(), PollFlags::IN)], Some(&left)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            ready => ready?,
        };
        let mut piece = Zeroizing::new([0; 4096]);
        match stdout.read(&mut *piece)? {
            0 => return Ok(answer),
            read if answer.len() + read > MAX_BYTES => {
                return Err(io::Error::other("it prints without end"));
            }
            read => answer.extend_from_slice(&piece[..read]),
        }
    }
}

fn wait(child: &mut Child, until: Instant) -> io::Result<std::process::ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// With whatever it started.
fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL); // it may be gone already
    }
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::credentials::Secret;

    /// A program that is being written while another test forks could not be executed.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn asked(script: &str) -> Result<Option<Credentials>, HelperError> {
        let _turn = ONE_AT_A_TIME.lock().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("docker-credential-test");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        get("test", "reg:5000", &helpers(directory.path()))
    }

    fn helpers(directory: &Path) -> HelperPrograms {
        let find = |name: &OsStr, path: &OsStr| {
            Some(PathBuf::from(path).join(name)).filter(|program| program.is_file())
        };
        HelperPrograms { find, search_path: directory.into(), own_path: "/usr/bin:/bin".into() }
    }

    #[test]
    fn a_helper_is_asked_with_the_registry_and_its_answer_taken() {
        let script = r#"r=$(cat); [ "$1" = get ] || exit 9
            printf '{"ServerURL":"%s","Username":"ann","Secret":"of %s"}' "$r" "$r""#;
        let sent = asked(script).unwrap().unwrap();
        let Secret::Password { user, password } = sent.secret() else { panic!("a password") };
        assert_eq!((user, password), ("ann", "of reg:5000"));
        let token = asked(r#"printf '{"Username":"<token>","Secret":"tt"}'"#).unwrap().unwrap();
        assert!(matches!(token.secret(), Secret::IdentityToken("tt")));
    }

    #[test]
    fn a_helper_that_knows_nothing_is_no_trouble() {
        let script = "echo credentials not found in native keychain; exit 1";
        assert!(asked(script).unwrap().is_none());
    }

    #[test]
    fn trouble_is_told_without_what_was_printed() {
        for script in [
            "echo hunter2; exit 3",
            "echo '{\"Secret\": [\"hunter2\"]}'",
            "echo hunter2",
            "while :; do echo hunter2hunter2; done",
        ] {
            let error = asked(script).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(shown.contains("test") && !shown.contains("hunter2"), "{script}: {shown}");
        }
    }

    #[test]
    fn only_a_plain_name_is_looked_for() {
        for name in ["", "../x", "a/b", "a b", "a\nb"] {
            assert!(matches!(get(name, "r", &helpers("/bin".as_ref())), Err(HelperError::Name(_))));
        }
        let missing = get("x", "r", &helpers("/nowhere".as_ref()));
        assert!(matches!(missing, Err(HelperError::Missing(_))));
    }
}

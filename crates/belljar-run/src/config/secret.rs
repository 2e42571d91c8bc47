//! Fetches the values of secrets on the host for one launch. They are sent to the proxy and nowhere else.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use belljar_bind::host_program;
use belljar_bind::resolve::resolve;
use belljar_spec::egress::{SecretSource, SecretSpec, SecretValue};
use belljar_spec::text::escape;
use belljar_spec::{MountKind, PlannedMount, RunSpec, Source};
use zeroize::Zeroizing;

use crate::login::{self, LoginError, RunLogin};

/// Longer than any credential.
const MAX_BYTES: usize = 8 * 1024;
/// All of them must fit into one message to the proxy.
const MAX_TOTAL_BYTES: usize = 24 * 1024;
/// The user may have to unlock a keyring.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// For the rest of the output after the program has exited.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("agent.auth: {0}")]
    Login(#[from] LoginError),
    #[error("secret {env}: {why}")]
    Source { env: String, why: String },
    #[error("secret {env}: cannot read {path}", path = .path.display())]
    File {
        env: String,
        path: PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("secret {env}: cannot run {program}")]
    Command {
        env: String,
        program: String,
        #[source]
        error: std::io::Error,
    },
}

/// The values of all the run's secrets. The launcher adds the placeholders.
pub fn secret_values(
    spec: &RunSpec,
    env: &BTreeMap<OsString, OsString>,
    directory: &Path,
) -> Result<Vec<SecretValue>, SecretError> {
    let mounts = spec.workspace.iter().chain(&spec.mounts).map(|mount| mount.source.as_path());
    refuse_visible(spec, mounts.chain(spec.tools.iter().map(|tool| tool.as_path())))?;
    let mut login = match RunLogin::of(spec) {
        Some(login) => login::values_at_start(&login)?,
        None => Vec::new(),
    };
    let mut values = Vec::new();
    for secret in &spec.egress.secrets {
        if let Some(at) = login.iter().position(|value| value.env == secret.env) {
            values.push(login.swap_remove(at));
            continue;
        }
        values.push(value_of(secret, env, directory)?);
    }
    let together: usize = values.iter().map(|value| value.value.len()).sum();
    match values.last() {
        Some(last) if together > MAX_TOTAL_BYTES => {
            let why = format!("all secrets together are larger than {MAX_TOTAL_BYTES} bytes");
            Err(SecretError::Source { env: last.env.clone(), why })
        }
        _ => Ok(values),
    }
}

/// Judges the files of secrets by every part of the host that the run is given, of whatever setting it comes.
pub(crate) fn refuse_planned(spec: &RunSpec, mounts: &[PlannedMount]) -> Result<(), SecretError> {
    let given = mounts.iter().filter_map(|mount| match &mount.what {
        MountKind::Bind { source: Source::Path { path }, .. } => Some(path.as_path()),
        MountKind::RootDirectory { source }
        | MountKind::Sent { source, .. }
        | MountKind::Copy { source } => Some(source.as_path()),
        _ => None,
    });
    refuse_visible(spec, given)
}

/// A file that the run can read is not secret from it. Files and directories are compared by identity: one directory
/// can have several paths.
fn refuse_visible<'p>(
    spec: &RunSpec,
    given: impl Iterator<Item = &'p Path>,
) -> Result<(), SecretError> {
    let files = secret_files(spec);
    if files.is_empty() {
        return Ok(());
    }
    let identity = |path: &Path| path.metadata().ok().map(|facts| (facts.dev(), facts.ino()));
    let given: Vec<(&Path, (u64, u64))> =
        given.filter_map(|path| Some((path, identity(path)?))).collect();
    for (secret, path) in files {
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let above: Vec<(u64, u64)> = real.ancestors().filter_map(identity).collect();
        if let Some((source, _)) = given.iter().find(|(_, identity)| above.contains(identity)) {
            let why = format!(
                "{} is inside {}, which the run can read; move it elsewhere",
                path.display(),
                source.display()
            );
            return Err(SecretError::Source { env: secret.to_owned(), why });
        }
    }
    Ok(())
}

/// The files on the host that hold values, each with the name of its secret.
fn secret_files(spec: &RunSpec) -> Vec<(&str, &Path)> {
    let held = spec.egress.secrets.iter().filter_map(|secret| match &secret.source {
        SecretSource::File { path } => Some((secret.env.as_str(), path.as_path())),
        SecretSource::Login(login) => Some(("of the agent's login", login.file.as_path())),
        SecretSource::Env { .. } | SecretSource::Command { .. } | SecretSource::Keyring { .. } => {
            None
        }
    });
    held.collect()
}

fn value_of(
    secret: &SecretSpec,
    env: &BTreeMap<OsString, OsString>,
    directory: &Path,
) -> Result<SecretValue, SecretError> {
    let bytes = match &secret.source {
        SecretSource::Env { name } => from_variable(&secret.env, name, env)?,
        SecretSource::File { path } => from_file(&secret.env, path.as_path())?,
        SecretSource::Command { argv } => from_command(&secret.env, argv, directory)?,
        SecretSource::Keyring { entry } => from_keyring(&secret.env, entry, directory)?,
        SecretSource::Login(_) => {
            let why = "the agent's login has no such part".to_owned();
            return Err(SecretError::Source { env: secret.env.clone(), why });
        }
    };
    let wrong = |why: &str| SecretError::Source { env: secret.env.clone(), why: why.to_owned() };
    let text = std::str::from_utf8(&bytes).map_err(|_| wrong("the value is not UTF-8"))?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() {
        return Err(wrong("the value is empty"));
    }
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(wrong(
            "the value contains a line break or a control character, which an HTTP request cannot carry",
        ));
    }
    Ok(SecretValue { env: secret.env.clone(), value: text.to_owned(), placeholder: String::new() })
}

fn from_variable(
    secret: &str,
    name: &str,
    env: &BTreeMap<OsString, OsString>,
) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    use std::os::unix::ffi::OsStrExt;
    match env.get(std::ffi::OsStr::new(name)) {
        Some(value) => Ok(Zeroizing::new(value.as_bytes().to_vec())),
        None => Err(SecretError::Source {
            env: secret.to_owned(),
            why: format!(
                "the environment variable {} is not set on the host; set it, or add a source: from_env, file, command, keyring",
                escape(name.as_bytes())
            ),
        }),
    }
}

/// A regular file that other users cannot read. The checked descriptor is the one that is read.
fn from_file(secret: &str, path: &Path) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    let failed = |error| SecretError::File { env: secret.to_owned(), path: path.to_owned(), error };
    let wrong = |why: String| SecretError::Source { env: secret.to_owned(), why };
    // A link in a tree that a run can write to would let the run choose which file is sent.
    let trees = host_program::writable_trees().map_err(failed)?;
    let found = resolve(path, &trees).map_err(|error| wrong(error.to_string()))?;
    let flags = (rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC).bits();
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags as i32)
        .open(format!("/proc/self/fd/{}", found.fd.as_raw_fd()))
        .map_err(failed)?;
    let facts = file.metadata().map_err(failed)?;
    let shown = path.display();
    if !facts.is_file() {
        return Err(wrong(format!("{shown} is not a regular file")));
    }
    let user = rustix::process::geteuid().as_raw();
    if facts.uid() != user && facts.uid() != 0 {
        return Err(wrong(format!("{shown} belongs to another user")));
    }
    if facts.mode() & 0o077 != 0 {
        return Err(wrong(format!("other users can read {shown}; run: chmod 600 {shown}")));
    }
    read_bounded(file).map_err(failed)
}

fn read_bounded(from: impl Read) -> std::io::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(4096));
    from.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MAX_BYTES {
        return Err(std::io::Error::other(format!("more than {MAX_BYTES} bytes")));
    }
    Ok(bytes)
}

/// The output of the program. It keeps the terminal, because it may ask the user for a password.
fn from_command(
    secret: &str,
    argv: &[String],
    directory: &Path,
) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    let wrong = |why: String| SecretError::Source { env: secret.to_owned(), why };
    let [program, arguments @ ..] = argv else {
        return Err(wrong("the command is empty".to_owned()));
    };
    let failed = |error| {
        let program = escape(program.as_bytes());
        SecretError::Command { env: secret.to_owned(), program, error }
    };
    // A path with a slash is relative to the directory of the manifest.
    let named = if program.contains('/') { directory.join(program) } else { program.into() };
    let found = host_program::find(&named).map_err(failed)?;
    // An interpreter may load files from its working directory or from PATH.
    let is_safe = !host_program::is_writable_by_runs(directory);
    let mut child = Command::new(found)
        .args(arguments)
        .current_dir(if is_safe { directory } else { Path::new("/") })
        .env("PATH", host_program::clean_path())
        .stdin(Stdio::inherit())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(failed)?;
    let (sender, receiver) = std::sync::mpsc::channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || sender.send(read_bounded(output)));
    }
    let until = Instant::now() + COMMAND_TIMEOUT;
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if Instant::now() >= until => {
                let _ = child.kill();
                let _ = child.wait();
                let seconds = COMMAND_TIMEOUT.as_secs();
                return Err(wrong(format!(
                    "{} did not exit within {seconds} seconds",
                    escape(program.as_bytes())
                )));
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    if !status.success() {
        return Err(wrong(format!("{} failed ({status})", escape(program.as_bytes()))));
    }
    // A process that it left running may keep the pipe open.
    match receiver.recv_timeout(OUTPUT_TIMEOUT) {
        Ok(bytes) => {
            bytes.map_err(|error| wrong(format!("cannot read the output of the command: {error}")))
        }
        Err(_) => Err(wrong("a process that the command started keeps its output open".to_owned())),
    }
}

/// Runs the system's keyring tool: a client library would bring a message bus into this executable.
fn from_keyring(
    secret: &str,
    entry: &str,
    directory: &Path,
) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    let tool: &[&str] = if cfg!(target_os = "macos") {
        &["security", "find-generic-password", "-w", "-s", "belljar", "-a"]
    } else {
        &["secret-tool", "lookup", "service", "belljar", "account"]
    };
    let argv: Vec<String> = tool.iter().copied().chain([entry]).map(str::to_owned).collect();
    from_command(secret, &argv, directory).map_err(|error| match error {
        SecretError::Command { env, program, error } if error.kind() == std::io::ErrorKind::NotFound => {
            let why = format!(
                "{program} is not installed (Debian: libsecret-tools); install it, or use file or command instead of keyring"
            );
            SecretError::Source { env, why }
        }
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn command(script: &str) -> Result<String, String> {
        let argv = ["sh", "-c", script].map(str::to_owned);
        let secret = SecretSpec {
            env: "KEY".into(),
            host: "a".parse().unwrap(),
            port: 443,
            place: belljar_spec::egress::SecretPlace::Bearer,
            source: SecretSource::Command { argv: argv.to_vec() },
        };
        value_of(&secret, &BTreeMap::new(), Path::new("/"))
            .map(|value| value.value.clone())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_command_gives_its_first_and_only_line() {
        assert_eq!(command("echo v").as_deref(), Ok("v"));
        assert_eq!(command("printf 'v\\r\\n'").as_deref(), Ok("v"));
        for (script, why) in [
            ("true", "empty"),
            ("exit 3", "failed"),
            ("printf 'a\\nb'", "line break"),
            ("printf '\\377'", "UTF-8"),
            ("echo v; sleep 5 2>/dev/null &", "keeps its output open"),
        ] {
            let error = command(script).unwrap_err();
            assert!(error.contains(why), "{script}: {error}");
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        std::fs::write(&path, "v\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(from_file("KEY", &path).unwrap_err().to_string().contains("chmod 600"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(from_file("KEY", &path).unwrap().as_slice(), b"v\n");
        assert!(
            from_file("KEY", directory.path())
                .unwrap_err()
                .to_string()
                .contains("not a regular file")
        );
    }

    /// A spec with these secrets, and nothing of the host.
    fn spec(sources: Vec<SecretSource>) -> RunSpec {
        use belljar_spec::{
            BackendChoice, HostFacts, Layer, MainCommand, Manifest, Origin, Request, Settings,
        };
        let mut values = Manifest::default();
        values.sandbox.backend = Some(BackendChoice::Host);
        let layer = Layer { origin: Origin::BuiltIn, directory: "/".into(), values };
        let settings = Settings::merge(vec![layer], None, None);
        let request = Request::new(MainCommand::Argv(vec!["true".into()]), "/".into());
        let spec = belljar_spec::resolve(&settings, &request, &HostFacts::default()).unwrap();
        let mut spec = RunSpec { workspace: None, ..spec };
        spec.egress.secrets = sources
            .into_iter()
            .map(|source| SecretSpec {
                env: "KEY".into(),
                host: "a".parse().unwrap(),
                port: 443,
                place: belljar_spec::egress::SecretPlace::Bearer,
                source,
            })
            .collect();
        spec
    }

    fn both_kinds(path: &Path) -> [SecretSource; 2] {
        let login = belljar_spec::egress::LoginSource {
            agent: belljar_spec::manifest::AgentKind::Claude,
            part: belljar_spec::egress::LoginPart::AccessToken,
            file: path.into(),
            lock: "/nonexistent".into(),
            token_url: String::new(),
        };
        [SecretSource::File { path: path.into() }, SecretSource::Login(login)]
    }

    #[test]
    fn a_file_that_the_run_sees_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(tree.join("work/deep")).unwrap();
        std::fs::write(tree.join("work/deep/key"), "v").unwrap();
        std::fs::write(tree.join("worker"), "v").unwrap();
        std::os::unix::fs::symlink(tree.join("work/deep/key"), tree.join("link")).unwrap();
        std::os::unix::fs::symlink(tree.join("work"), tree.join("other-name")).unwrap();
        for (file, given, is_refused) in [
            ("work/deep/key", "work", true),
            ("link", "work", true),
            ("work/deep/key", "other-name", true),
            ("work/deep/key", "work/deep/key", true),
            ("worker", "work", false),
            ("work/deep/key", "worker", false),
        ] {
            for source in both_kinds(&tree.join(file)) {
                let spec = spec(vec![source]);
                let judged = refuse_visible(&spec, [tree.join(given).as_path()].into_iter());
                match judged {
                    Err(error) => {
                        assert!(is_refused, "{file} {given}");
                        assert!(error.to_string().contains("which the run can read"), "{error}");
                    }
                    Ok(()) => assert!(!is_refused, "{file} {given}"),
                }
            }
        }
    }

    #[test]
    fn a_tool_shows_its_files_to_the_run() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(tree.join("tool/share")).unwrap();
        std::fs::create_dir(tree.join("other")).unwrap();
        let key = tree.join("tool/share/key");
        std::fs::write(&key, "v").unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let mut spec = spec(vec![SecretSource::File { path: key.as_path().into() }]);
        spec.tools = vec![tree.join("tool").as_path().into()];
        let refused = secret_values(&spec, &BTreeMap::new(), &tree).unwrap_err();
        assert!(refused.to_string().contains("which the run can read"), "{refused}");
        spec.tools = vec![tree.join("other").as_path().into()];
        assert_eq!(secret_values(&spec, &BTreeMap::new(), &tree).unwrap()[0].value, "v");
    }

    #[test]
    fn every_planned_source_is_judged() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().canonicalize().unwrap();
        std::fs::write(tree.join("key"), "v").unwrap();
        let [_, login] = both_kinds(&tree.join("key"));
        let spec = spec(vec![login]);
        let here = belljar_spec::OsText::from(tree.as_path());
        let (size, access) = (1, belljar_spec::Access::ReadOnly);
        let kinds = [
            MountKind::Bind {
                source: Source::Path { path: here.clone() },
                access,
                presence: belljar_spec::Presence::Required,
                tree: belljar_spec::Tree::Tool,
            },
            MountKind::RootDirectory { source: here.clone() },
            MountKind::Sent { source: here.clone(), access, size },
            MountKind::Copy { source: tree.join("key").as_path().into() },
        ];
        for what in kinds {
            refuse_planned(&spec, &[PlannedMount { target: "/x".into(), what }]).unwrap_err();
        }
        let other = MountKind::Copy { source: "/etc/hostname".into() };
        refuse_planned(&spec, &[PlannedMount { target: "/x".into(), what: other }]).unwrap();
    }

    #[test]
    fn a_missing_variable_is_reported() {
        let error = from_variable("KEY", "OTHER", &BTreeMap::new()).unwrap_err();
        assert!(error.to_string().contains("variable OTHER is not set on the host"), "{error}");
    }
}

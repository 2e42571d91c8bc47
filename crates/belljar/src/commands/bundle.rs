//! `belljar doctor --bundle FILE`: writes what a bug report needs to a tar file.
//!
//! It holds no contents of trees and no output of commands. Values of settings and variables that could be secret are
//! left out; what remains is still for its owner to read first, so nothing is sent anywhere.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use belljar::config::{ConfigError, Invocation, load_settings};
use belljar::doctor::{BackendReport, examine_all};
use belljar::home::{Home, HomeError};
use belljar::record::looks_secret;
use belljar::spec::layers::{self, Shown, Variable};
use belljar::spec::manifest::ManifestError;
use belljar::spec::text::{error_chain, escape};
use belljar::spec::{BUILD, MainCommand, env};
use belljar::store;
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use serde_json::json;

use super::{CommandResult, backends, environment, open_home};
use crate::report;

/// The newest ones.
const MAX_RUNS: usize = 5;
/// Of a file that is read for it.
const MAX_FILE: u64 = belljar::debug_log::MAX_BYTES;
/// Of the home.
const MAX_NAMES: usize = 20_000;
/// Below the home: `runs/<id>/<name>`, and nothing of what a run wrote.
const MAX_DEPTH: usize = 3;
const HIDDEN: &str = "(not shown)";
/// Parts of the names of settings whose values can hold anything: variables, texts, command lines.
const PRIVATE_PARTS: [&str; 6] = ["env", "prompt", "args", "command", "header", "headers"];
const SYSTEM_FILES: [&str; 9] = [
    "/etc/os-release",
    "/proc/self/cgroup",
    "/sys/fs/cgroup/cgroup.controllers",
    "/sys/fs/cgroup/cgroup.subtree_control",
    "/sys/kernel/security/lsm",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
    "/proc/sys/kernel/yama/ptrace_scope",
];

/// `belljar` is the executable, which the backends are examined with.
pub(super) fn write(path: &Path, belljar: &Path) -> i32 {
    match try_write(path, belljar) {
        Ok(code) => code,
        Err(error) => {
            report::error(error.as_ref(), None);
            1
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", .path.display())]
struct NotWritten {
    path: PathBuf,
    #[source]
    error: io::Error,
}

fn try_write(path: &Path, belljar: &Path) -> CommandResult {
    let failed = |error| NotWritten { path: path.to_owned(), error };
    refuse_existing(path).map_err(failed)?; // before anything that takes time
    let home = open_home();
    let runs = home.as_ref().map(run_files).unwrap_or_default(); // before the canaries, which are runs too
    let members = members(&examine_all(belljar), &home, &runs);
    write_new(path, &members).map_err(failed)?;
    let mut text = format!("{} holds:\n", path.display());
    for Member { name, content } in &members {
        text.push_str(&format!("  {:>9}  {}\n", content.len(), escape(name.as_bytes())));
    }
    text.push_str(
        "Read it before you send it: it names paths, hosts and commands of this machine.\n",
    );
    report::out(&text);
    Ok(0)
}

struct Member {
    name: String,
    content: Vec<u8>,
}

fn members(
    examined: &[BackendReport],
    home: &Result<Home, HomeError>,
    runs: &[(PathBuf, String)],
) -> Vec<Member> {
    let mut members = Vec::new();
    let mut add = |name: &str, content: Vec<u8>| {
        members.push(Member { name: format!("belljar-bundle/{name}"), content });
    };
    let backends: Vec<_> = examined.iter().map(backends::as_data).collect();
    add("version.txt", format!("belljar {}\nbuild {BUILD}\n", env!("CARGO_PKG_VERSION")).into());
    add("doctor.json", pretty(&examined));
    add("backends.json", pretty(&backends));
    add("system.txt", system().into());
    add("environment.txt", variables().into());
    match home {
        Ok(home) => {
            add("config.json", settings(home));
            add("home.txt", home_listing(home).into());
        }
        Err(error) => add("home.txt", format!("{}\n", error_chain(error)).into()),
    }
    for (run, name) in runs {
        if let Some(content) = read_bounded(&run.join(name)) {
            let id = run.file_name().unwrap_or_default().to_string_lossy().into_owned();
            add(&format!("runs/{id}/{name}"), content);
        }
    }
    members
}

fn pretty(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec_pretty(value).unwrap_or_else(|error| error.to_string().into())
}

fn system() -> String {
    let uname = rustix::system::uname();
    let shown = |text: &std::ffi::CStr| escape(text.to_bytes());
    let mut text = format!("kernel {} {}\n", shown(uname.release()), shown(uname.machine()));
    for path in SYSTEM_FILES {
        let content = read_bounded(Path::new(path));
        let content =
            content.map_or_else(|| "(not there)".to_owned(), |content| as_lines(&content));
        text.push_str(&format!("\n{path}:\n{}\n", content.trim_end()));
    }
    let mounts = read_bounded(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    text.push_str("\ncontrol groups in /proc/self/mountinfo:\n");
    for line in as_lines(&mounts).lines().filter(|line| line.contains(" - cgroup")) {
        text.push_str(&format!("{line}\n"));
    }
    text
}

fn as_lines(content: &[u8]) -> String {
    let lines = content.split(|byte| *byte == b'\n');
    lines.map(|line| format!("{}\n", escape(line))).collect()
}

/// Belljar's own variables; the values of those that are settings without secrets.
fn variables() -> String {
    let mut text = String::new();
    for (name, value) in environment() {
        let Some(name) = name.to_str().filter(|name| name.starts_with(env::SETTING_PREFIX)) else {
            continue;
        };
        let is_setting = || {
            let value = value.to_str()?;
            Some(matches!(layers::from_variable(name, value), Ok(Variable::Setting(_))))
        };
        let is_known = env::NOT_SETTINGS.contains(&name) || is_setting() == Some(true);
        let shown = match is_known && !is_private(name, &value.to_string_lossy()) {
            true => escape(value.as_encoded_bytes()),
            false => HIDDEN.to_owned(),
        };
        text.push_str(&format!("{name}={shown}\n"));
    }
    text
}

/// Whether a setting's value could hold a secret.
fn is_private(name: &str, value: &str) -> bool {
    let mut parts = name.split(|c: char| !c.is_alphanumeric());
    let by_name = parts.any(|part| PRIVATE_PARTS.contains(&part.to_ascii_lowercase().as_str()));
    let has_password = value.split("://").skip(1).any(|rest| {
        let authority = rest.split(['/', '"', ' ']).next().unwrap_or_default();
        authority.contains('@')
    });
    by_name || has_password || looks_secret(name)
}

fn settings(home: &Home) -> Vec<u8> {
    let cwd = std::env::current_dir().unwrap_or_default();
    let invocation = Invocation::new(cwd, environment(), MainCommand::Agent);
    let loaded = match load_settings(&invocation, home) {
        Ok(loaded) => loaded,
        // It quotes the value that it is about.
        Err(ConfigError::Manifest(ManifestError { place, key, .. })) => {
            return pretty(&json!({ "error": format!("{place}: {key}: {HIDDEN}") }));
        }
        Err(error) => return pretty(&json!({ "error": error_chain(&error) })),
    };
    let shown = loaded.settings.shown().into_iter();
    let list: Vec<_> = shown
        .map(|Shown { key, value, origin }| {
            let value = if is_private(&key, &value) { HIDDEN.to_owned() } else { value };
            json!({ "key": key, "value": value, "origin": origin.to_string() })
        })
        .collect();
    pretty(&list)
}

fn home_listing(home: &Home) -> String {
    let mut lines = Vec::new();
    list(home.path(), Path::new(""), 1, &mut lines);
    let mut text = format!("{}\n", escape(home.path().as_os_str().as_encoded_bytes()));
    if lines.len() >= MAX_NAMES {
        lines.push(format!("only the first {MAX_NAMES} names"));
    }
    lines.iter().for_each(|line| text.push_str(&format!("{line}\n")));
    text
}

fn list(root: &Path, below: &Path, depth: usize, lines: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(root.join(below)) else { return };
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    for name in names {
        if lines.len() >= MAX_NAMES {
            return;
        }
        let relative = below.join(name);
        let Ok(about) = root.join(&relative).symlink_metadata() else { continue };
        let mark = if about.is_dir() { "/" } else { "" };
        let shown = escape(relative.as_os_str().as_encoded_bytes());
        lines.push(format!("{:>12}  {shown}{mark}", about.len()));
        if about.is_dir() && depth < MAX_DEPTH {
            list(root, &relative, depth + 1, lines);
        }
    }
}

/// Of the newest runs: what is in their directories, and goes into the bundle.
fn run_files(home: &Home) -> Vec<(PathBuf, String)> {
    let runs = store::run_directories(home).unwrap_or_default();
    let newest = runs.iter().rev().take(MAX_RUNS).map(|id| home.run_dir(id));
    let names = ["run.json", belljar::debug_log::FILE];
    newest.flat_map(|run| names.map(|name| (run.clone(), name.to_owned()))).collect()
}

fn read_bounded(path: &Path) -> Option<Vec<u8>> {
    // Not waiting for a writer, should it be a pipe.
    let flags = (OFlags::NONBLOCK | OFlags::CLOEXEC).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut content = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut content).ok()?;
    Some(content)
}

fn refuse_existing(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file exists")),
        Err(_) => Ok(()),
    }
}

/// Whole or not at all, and never over a file that is there.
fn write_new(path: &Path, members: &[Member]) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::other("it names no file"))?;
    let mut draft_name = name.to_owned();
    draft_name.push(format!(".{}.draft", std::process::id()));
    let draft = path.with_file_name(draft_name);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = write_tar(file, members)
        .and_then(|()| Ok(renameat_with(CWD, &draft, CWD, path, RenameFlags::NOREPLACE)?));
    if written.is_err() {
        let _ = std::fs::remove_file(&draft); // the first error is the one to report
    }
    written
}

fn write_tar(file: File, members: &[Member]) -> io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut archive = tar::Builder::new(io::BufWriter::new(file));
    for Member { name, content } in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(now);
        archive.append_data(&mut header, name, content.as_slice())?;
    }
    let mut file = archive.into_inner()?;
    file.flush()?;
    file.get_ref().sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_could_hold_a_secret_are_not_shown() {
        for key in [
            "sandbox.env.HARMLESS",
            "sandbox.env",
            "network.secrets[0]",
            "agent.prompt",
            "agent.command",
            "agent.api_key",
            "BELLJAR_SANDBOX_ENV",
            "BELLJAR_AGENT_PROMPT",
        ] {
            assert!(is_private(key, "x"), "{key}");
        }
        assert!(is_private("network.upstream", "\"http://user:pw@proxy.example:3128\""));
        for key in ["limits.memory", "sandbox.image", "BELLJAR_HOME", "BELLJAR_LOG"] {
            assert!(!is_private(key, "https://example.org/a@b"), "{key}");
        }
    }
}

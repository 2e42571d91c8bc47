//! Resolves the variables inside: a fixed base, and the variables that the settings name.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::{HOME_INSIDE, HostFacts, Request, ResolveError, Screen};
use crate::env_file::EnvLine;
use crate::layers::{Origin, Settings};
use crate::manifest::node::join;
use crate::runspec::Terminal;
use crate::text::OsText;

const USER: &str = "agent";
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// A toolchain that finds itself through a variable, not through its path.
const RUSTUP: &str = ".rustup";

/// One source of a variable's value. Ordered: the layer first, then the kind.
struct Candidate {
    rank: u8,
    kind: SourceKind,
    name: String,
    value: OsText,
}

/// In one layer a value that is written out wins over one that is passed, and that over a file's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SourceKind {
    File,
    Passed,
    Written,
}

pub(super) fn environment(
    settings: &Settings,
    request: &Request,
    host: &HostFacts,
    tools: &[OsText],
) -> Result<BTreeMap<String, OsText>, ResolveError> {
    let mut env = base(request, host, tools);
    let mut candidates = candidates(settings, request, host)?;
    candidates.sort_by_key(|candidate| (candidate.rank, candidate.kind));
    for candidate in candidates {
        env.insert(candidate.name, candidate.value);
    }
    Ok(env)
}

fn base(request: &Request, host: &HostFacts, tools: &[OsText]) -> BTreeMap<String, OsText> {
    let mut env: BTreeMap<String, OsText> =
        [("HOME", HOME_INSIDE), ("USER", USER), ("LOGNAME", USER), ("LANG", "C.UTF-8")]
            .map(|(name, value)| (name.to_owned(), value.into()))
            .into();
    env.insert("PATH".into(), search_path(tools));
    if request.terminal == Terminal::Pty || request.screen == Screen::Terminal {
        env.extend(passed("TERM", host).map(|value| ("TERM".to_owned(), value)));
    }
    env.extend(passed("TZ", host).map(|value| ("TZ".to_owned(), value)));
    let rustup = tools.iter().find(|tool| tool.as_path().file_name() == Some(OsStr::new(RUSTUP)));
    env.extend(rustup.map(|tool| ("RUSTUP_HOME".to_owned(), tool.clone())));
    env
}

/// The user's programs first, then the tools', then the system's.
fn search_path(tools: &[OsText]) -> OsText {
    let mut path = format!("{HOME_INSIDE}/.local/bin").into_bytes();
    for tool in tools {
        path.push(b':');
        path.extend_from_slice(tool.as_path().join("bin").as_os_str().as_bytes());
    }
    path.push(b':');
    path.extend_from_slice(SYSTEM_PATH.as_bytes());
    OsText::from_bytes(path)
}

fn passed(name: &str, host: &HostFacts) -> Option<OsText> {
    host.env.get(OsStr::new(name)).map(|value| OsText::from(value.as_os_str()))
}

fn candidates(
    settings: &Settings,
    request: &Request,
    host: &HostFacts,
) -> Result<Vec<Candidate>, ResolveError> {
    let sandbox = &settings.values.sandbox;
    let rank = |key: &str| settings.origin(key).map_or(0, Origin::rank);
    let mut candidates = Vec::new();
    for (index, path) in sandbox.env_file.iter().flat_map(|files| &files.0).enumerate() {
        let key = format!("sandbox.env_file[{index}]");
        let lines = request.env_files.get(&path.0).ok_or_else(|| ResolveError::Path {
            key: key.clone(),
            path: path.0.clone(),
            why: "was not read".into(),
        })?;
        for line in lines {
            let (name, value) = match line {
                EnvLine::Set { name, value } => (name, Some(value.clone())),
                EnvLine::Pass { name } => (name, passed(name, host)),
            };
            let rank = rank(&key);
            candidates.extend(value.map(|value| Candidate {
                rank,
                kind: SourceKind::File,
                name: name.clone(),
                value,
            }));
        }
    }
    for (index, name) in sandbox.pass_env.iter().flat_map(|names| &names.0).enumerate() {
        let rank = rank(&format!("sandbox.pass_env[{index}]"));
        // What the host does not have is not there inside either.
        let value = passed(&name.0, host);
        candidates.extend(value.map(|value| Candidate {
            rank,
            kind: SourceKind::Passed,
            name: name.0.clone(),
            value,
        }));
    }
    for (name, value) in sandbox.env.iter().flat_map(|variables| &variables.0) {
        let key = join("sandbox.env", name);
        crate::env_file::check_name(name.as_bytes())
            .map_err(|why| ResolveError::Variable { key: key.clone(), why })?;
        let rank = rank(&key);
        let value = value.clone();
        candidates.push(Candidate { rank, kind: SourceKind::Written, name: name.clone(), value });
    }
    Ok(candidates)
}

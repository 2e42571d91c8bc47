//! The cases: the floor, bubblewrap, and belljar, each with the same namespaces and the same view.

use std::path::{Path, PathBuf};

use super::identity::Identity;
use crate::host;

/// The kernel's own price: the namespaces, and nothing in them.
pub(crate) const FLOOR: [&str; 9] = [
    "--user",
    "--map-root-user",
    "--mount",
    "--pid",
    "--fork",
    "--ipc",
    "--uts",
    "--net",
    "--cgroup",
];

const BELLJAR: [&str; 3] = ["run", "--no-config", "-q"];
/// Without this the built-in limits hold. They are not set by flag for the other row: a limit that
/// was asked for stops a start where it cannot be held.
const LIMITS_OFF: [&str; 4] = ["-c", "limits.memory=none", "-c", "limits.pids=none"];

/// What is done after the start, inside the measured time.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Then {
    Nothing,
    /// Appends to a file in this directory and syncs it, twice: what a durable record costs at
    /// least.
    TwoSyncs(PathBuf),
}

#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) identity: Identity,
    pub(crate) program: PathBuf,
    /// The words before the sandboxed command.
    pub(crate) words: Vec<String>,
    pub(crate) then: Then,
}

pub(crate) const BWRAP: &str = "bwrap";
pub(crate) const BWRAP_SYNCED: &str = "bwrap + 2 fdatasync";
pub(crate) const BELLJAR_NO_LIMITS: &str = "belljar, limits off";
pub(crate) const BELLJAR_LIMITS: &str = "belljar, limits on";

pub(crate) fn cases(identity: &Identity, belljar: &Path) -> Vec<Case> {
    let case = |name: &str, program: &Path, words: Vec<String>, then: Then| Case {
        name: name.to_owned(),
        identity: identity.clone(),
        program: program.to_path_buf(),
        words,
        then,
    };
    let mut cases = Vec::new();
    match host::find_program("unshare") {
        Some(unshare) => {
            let words = FLOOR.into_iter().chain(["--"]).map(str::to_owned).collect();
            cases.push(case("unshare (the floor)", &unshare, words, Then::Nothing));
        }
        None => eprintln!("no floor: `unshare` is not there"),
    }
    match host::find_program("bwrap") {
        Some(bwrap) => {
            let words = bwrap_words(&identity.workspace);
            cases.push(case(BWRAP, &bwrap, words.clone(), Then::Nothing));
            let then = Then::TwoSyncs(identity.home.clone());
            cases.push(case(BWRAP_SYNCED, &bwrap, words, then));
        }
        None => eprintln!("no comparison with bubblewrap: `bwrap` is not there"),
    }
    let run = |more: &[&str]| {
        let words = BELLJAR.iter().chain(more).chain(&["--"]);
        words.map(|word| (*word).to_owned()).collect::<Vec<_>>()
    };
    cases.push(case(BELLJAR_NO_LIMITS, belljar, run(&LIMITS_OFF), Then::Nothing));
    cases.push(case(BELLJAR_LIMITS, belljar, run(&[]), Then::Nothing));
    cases
}

pub(crate) fn bwrap_words(workspace: &Path) -> Vec<String> {
    let mut words: Vec<String> = [
        "--unshare-user",
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
        "--cap-drop",
        "ALL",
        "--ro-bind",
        "/usr",
        "/usr",
    ]
    .map(str::to_owned)
    .to_vec();
    for name in ["/bin", "/sbin", "/lib", "/lib32", "/lib64"] {
        // A link on a merged system, a directory of its own on others.
        match std::fs::read_link(name) {
            Ok(target) => {
                words.extend(["--symlink".into(), target.display().to_string(), name.into()]);
            }
            Err(_) => words.extend(["--ro-bind-try".into(), name.into(), name.into()]),
        }
    }
    words.extend(
        ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--bind"].map(str::to_owned),
    );
    words.push(workspace.display().to_string());
    words.extend(["/workspace", "--chdir", "/workspace", "--"].map(str::to_owned));
    words
}

//! The starts that are compared: the floor, bubblewrap, and belljar, each with the same namespaces and
//! the same view.

use std::path::{Path, PathBuf};

use crate::bench::identity::Identity;
use crate::bench::rounds::Case;
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
/// No limit is left that needs a control group, so none is made. Without these words the built-in limits hold; they
/// are not set by flag, because a limit that was asked for stops a start where it cannot be held.
const NO_GROUP: [&str; 4] = ["-c", "limits.memory=none", "-c", "limits.pids=none"];

/// A kind of start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    Unshare,
    Bwrap,
    Belljar,
    BelljarNoGroup,
}

impl Start {
    pub(crate) const ALL: [Self; 4] =
        [Self::Unshare, Self::Bwrap, Self::Belljar, Self::BelljarNoGroup];

    pub(crate) fn name(self, identity: &Identity) -> String {
        let what = match self {
            Self::Unshare => "unshare (the floor)",
            Self::Bwrap => "bwrap",
            Self::Belljar => "belljar, default limits",
            Self::BelljarNoGroup => "belljar, no group",
        };
        format!("{what}, {}", identity.name)
    }

    /// The program and the words before the sandboxed command; nothing if this machine does not have it.
    pub(crate) fn line(
        self,
        identity: &Identity,
        belljar: &Path,
    ) -> Option<(PathBuf, Vec<String>)> {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        match self {
            Self::Unshare => {
                Some((host::find_program("unshare")?, owned(&[&FLOOR[..], &["--"]].concat())))
            }
            Self::Bwrap => Some((host::find_program("bwrap")?, bwrap_words(&identity.workspace))),
            Self::Belljar => Some((belljar.to_owned(), run_words(&[]))),
            Self::BelljarNoGroup => Some((belljar.to_owned(), run_words(&NO_GROUP))),
        }
    }

    pub(crate) fn case(self, identity: &Identity, belljar: &Path) -> Option<Case<'static>> {
        let Some((program, words)) = self.line(identity, belljar) else {
            eprintln!("no comparison with {}: it is not installed", self.name(identity));
            return None;
        };
        Some(Case::sandbox(self.name(identity), identity, program, words))
    }
}

/// `belljar run … --`, with these settings.
pub(crate) fn run_words(settings: &[&str]) -> Vec<String> {
    let words = BELLJAR.iter().chain(settings).chain(&["--"]);
    words.map(|word| (*word).to_owned()).collect()
}

fn bwrap_words(workspace: &Path) -> Vec<String> {
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

//! Tells what in a repository belongs to which of its worktrees: one is the run's, the rest is not its own to change.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::autorun::is;
use crate::text::OsText;

/// Where a repository keeps what it knows of its linked worktrees.
pub const WORKTREES: &str = "worktrees";

/// The names at the top of a git directory that all worktrees share, as git has them (`common_list` in its `path.c`),
/// with `lfs`, where git-lfs has its objects, and a text for people. Everything else is the main worktree's alone.
const SHARED: &[&str] = &[
    "branches",
    "common",
    "config",
    "description",
    "gc.pid",
    "hooks",
    "info",
    "lfs",
    "logs",
    "lost-found",
    "objects",
    "packed-refs",
    "refs",
    "remotes",
    "rr-cache",
    "shallow",
    "svn",
    WORKTREES,
];

/// What in them is the main worktree's all the same.
const NOT_SHARED: &[&str] = &[
    "info/sparse-checkout",
    "logs/HEAD",
    "logs/refs/bisect",
    "logs/refs/rewritten",
    "logs/refs/worktree",
    "refs/bisect",
    "refs/rewritten",
    "refs/worktree",
];

/// What decides where git looks for the rest of a linked worktree's data.
const POINTERS: &[&str] = &["commondir", "gitdir", "config.worktree"];

/// Which part of a repository a run works in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum GitPart {
    /// All of it but its linked worktrees, as in a submodule.
    Main,
    /// One linked worktree, by its name below `worktrees`, and what all share.
    Linked { name: OsText },
}

impl GitPart {
    /// Whether a path in the git directory belongs to another worktree. Not by what is there: also for names that only
    /// the run has made.
    pub fn is_of_another(&self, inside: &Path) -> bool {
        let mut names = inside.iter();
        let Some(first) = names.next() else { return false };
        if is(first, WORKTREES) {
            let own = |name: &OsStr| match self {
                Self::Main => false,
                Self::Linked { name: own } => first == WORKTREES && own.as_os_str() == name,
            };
            return names.next().is_some_and(|name| !own(name));
        }
        let is_shared = || SHARED.iter().any(|shared| first == *shared);
        let is_excepted = || NOT_SHARED.iter().any(|except| starts_with(inside, except));
        *self != Self::Main && (!is_shared() || is_excepted())
    }

    /// Whether such paths lie below a directory that is shared: another thing in its place would move them.
    pub fn holds_others(&self, inside: &Path) -> bool {
        let is_above =
            |except: &str| Path::new(except).ancestors().skip(1).any(|above| above == inside);
        inside == Path::new(WORKTREES)
            || (*self != Self::Main
                && !inside.as_os_str().is_empty()
                && NOT_SHARED.iter().any(|except| is_above(except)))
    }

    /// Paths below the shared directories that are looked for by name, because a listing of the top does not show them.
    pub fn named_below(&self) -> Vec<PathBuf> {
        match self {
            Self::Main => Vec::new(),
            Self::Linked { name } => {
                let own = Path::new(WORKTREES).join(name);
                let pointers = POINTERS.iter().map(|pointer| own.join(pointer));
                NOT_SHARED.iter().map(PathBuf::from).chain(pointers).collect()
            }
        }
    }
}

fn starts_with(path: &Path, above: &str) -> bool {
    let mut names = path.iter();
    above.split('/').all(|part| names.next().is_some_and(|name| is(name, part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linked() -> GitPart {
        GitPart::Linked { name: "own".into() }
    }

    #[test]
    fn what_git_shares_is_nobodys_and_the_rest_is_the_main_worktrees() {
        for shared in [
            "objects/ab/cdef",
            "refs/heads/main",
            "refs/stash",
            "refs",
            "logs/refs/heads/main",
            "packed-refs",
            "config",
            "worktrees",
            "worktrees/own",
            "worktrees/own/HEAD",
            "worktrees/own/rebase-merge/git-rebase-todo",
            "",
        ] {
            assert!(!linked().is_of_another(Path::new(shared)), "{shared}");
        }
        for other in [
            "HEAD",
            "index",
            "ORIG_HEAD",
            "MERGE_HEAD",
            "AUTO_MERGE",
            "BISECT_LOG",
            "rebase-merge/git-rebase-todo",
            "sequencer/todo",
            "modules/lib/HEAD",
            "sharedindex.0123",
            "logs/HEAD",
            "LOGS/head",
            "refs/bisect/bad",
            "Refs/Worktree/x",
            "info/sparse-checkout",
            "worktrees/other",
            "worktrees/other/HEAD",
            "worktrees/OWN/HEAD",
            "Worktrees/own/HEAD",
        ] {
            assert!(linked().is_of_another(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn a_repository_of_its_own_has_only_linked_worktrees_that_are_others() {
        for own in ["HEAD", "index", "rebase-merge/x", "logs/HEAD", "refs/bisect/bad", "worktrees"]
        {
            assert!(!GitPart::Main.is_of_another(Path::new(own)), "{own}");
        }
        assert!(GitPart::Main.is_of_another(Path::new("worktrees/any/HEAD")));
        assert!(GitPart::Main.holds_others(Path::new("worktrees")));
        assert!(!GitPart::Main.holds_others(Path::new("logs")));
    }

    #[test]
    fn directories_above_are_known() {
        for above in ["refs", "logs", "logs/refs", "info", "worktrees"] {
            assert!(linked().holds_others(Path::new(above)), "{above}");
        }
        for other in ["", "objects", "refs/heads", "worktrees/own", "hooks"] {
            assert!(!linked().holds_others(Path::new(other)), "{other}");
        }
    }
}

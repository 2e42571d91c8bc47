//! Expands `~/.local` as a tool into the parts of it that hold installed programs.
//!
//! It is an install prefix, and it is also where programs keep their state, their logins and Belljar its records. So
//! nothing of it is shown but an allow-list: the directories that every prefix has, and those that its programs are
//! links into (`bin/ruff -> ../share/uv/tools/ruff/bin/ruff` shows `share/uv`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use belljar_spec::{Access, MountKind, OsText, Plan, PlannedMount, Presence, Source, Tree};

/// The prefix, below a home directory.
const NAME: &str = ".local";
/// What a prefix has for programs.
const PROGRAMS: &[&str] = &["bin", "sbin", "lib", "lib64", "libexec", "include", "man", "opt"];
/// What `share` has for every program, none of it written by programs that run.
const SHARED: &[&str] =
    &["bash-completion", "doc", "fish", "fonts", "info", "locale", "man", "zsh"];
/// Where programs keep what they write: never shown, whatever links there.
const STATE: &str = "state";
/// Programs in `bin` that are looked at.
const MAX_PROGRAMS: usize = 4096;

/// `homes`: the directories that people live in.
pub(super) fn with_parts(plan: &Plan, homes: &[PathBuf]) -> Plan {
    let mut expanded = plan.clone();
    expanded.mounts = plan.mounts.iter().flat_map(|mount| parts_of(mount, homes)).collect();
    expanded
}

fn parts_of(mount: &PlannedMount, homes: &[PathBuf]) -> Vec<PlannedMount> {
    let MountKind::Bind { source: Source::Path { path }, tree: Tree::Tool, .. } = &mount.what
    else {
        return vec![mount.clone()];
    };
    let Some(prefix) = shared_prefix(path.as_path(), homes) else { return vec![mount.clone()] };
    let part = |part: PathBuf| PlannedMount {
        target: OsText::from(mount.target.as_path().join(&part)),
        what: MountKind::Bind {
            source: Source::Path { path: OsText::from(prefix.join(&part)) },
            access: Access::ReadOnly,
            presence: Presence::IfPresent,
            tree: Tree::Tool,
        },
    };
    shown(&prefix).into_iter().map(part).collect()
}

/// The real path of a prefix that is shared by everything a user has, by whatever name it was given.
fn shared_prefix(path: &Path, homes: &[PathBuf]) -> Option<PathBuf> {
    let real = path.canonicalize().ok()?;
    let is_one = |home: &PathBuf| home.join(NAME).canonicalize().is_ok_and(|shared| shared == real);
    homes.iter().any(is_one).then_some(real)
}

/// The parts that are shown, relative to the prefix.
fn shown(prefix: &Path) -> BTreeSet<PathBuf> {
    let programs = PROGRAMS.iter().map(PathBuf::from);
    let shared = SHARED.iter().map(|name| Path::new("share").join(name));
    let mut parts: BTreeSet<PathBuf> = programs.chain(shared).collect();
    let listing = std::fs::read_dir(prefix.join("bin")).into_iter().flatten().flatten();
    let links = listing.take(MAX_PROGRAMS).filter_map(|entry| {
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        is_link.then(|| entry.path().canonicalize().ok()).flatten()
    });
    for target in links {
        let Ok(inside) = target.strip_prefix(prefix) else { continue };
        let mut names = inside.iter();
        match (names.next(), names.next(), names.next()) {
            (Some(top), ..) if top == STATE => {}
            // A file of `share` itself is no program's directory.
            (Some(top), Some(of), Some(_)) if top == "share" => {
                parts.insert(Path::new(top).join(of));
            }
            (Some(top), Some(_), _) if top != "share" => {
                parts.insert(PathBuf::from(top));
            }
            _ => {}
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_programs_link_into_is_shown_and_state_is_not() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().canonicalize().unwrap();
        let prefix = home.join(".local");
        for file in [
            "bin/plain",
            "share/uv/tools/ruff/bin/ruff",
            "pipx/venvs/black/bin/black",
            "share/opencode/auth.json",
            "share/keyrings/login.keyring",
            "state/belljar/key",
        ] {
            std::fs::create_dir_all(prefix.join(file).parent().unwrap()).unwrap();
            std::fs::write(prefix.join(file), "").unwrap();
        }
        for to in
            ["share/uv/tools/ruff/bin/ruff", "pipx/venvs/black/bin/black", "state/belljar/key"]
        {
            let name = Path::new(to).file_name().unwrap();
            symlink(Path::new("..").join(to), prefix.join("bin").join(name)).unwrap();
        }
        symlink("/usr/bin/env", prefix.join("bin/outside")).unwrap();
        let parts = shown(&prefix);
        let has = |part: &str| parts.contains(Path::new(part));
        assert!(has("bin") && has("lib") && has("share/uv") && has("pipx"), "{parts:?}");
        for hidden in ["share", "share/opencode", "share/keyrings", "state", "usr"] {
            assert!(!has(hidden), "{hidden}: {parts:?}");
        }
    }

    #[test]
    fn only_the_prefix_of_a_home_directory_is_taken_apart() {
        let home = tempfile::tempdir().unwrap();
        let prefix = home.path().join(".local");
        std::fs::create_dir(&prefix).unwrap();
        let homes = [home.path().to_owned()];
        symlink(&prefix, home.path().join("by-another-name")).unwrap();
        for name in [prefix.clone(), home.path().join("by-another-name")] {
            assert_eq!(shared_prefix(&name, &homes), prefix.canonicalize().ok());
        }
        assert_eq!(shared_prefix(home.path(), &homes), None);
        assert_eq!(shared_prefix(&prefix, &[]), None);
    }
}

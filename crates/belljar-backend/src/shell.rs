//! Finds the shell of the user inside: the operator's, or bash where the sandbox has one.

use std::fs::{Metadata, metadata, symlink_metadata};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use belljar_spec::{MountKind, PLAIN_SHELL, Plan, PlannedMount, RunSpec, Source};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::error::PlanError;

/// Where systems have bash.
pub(crate) const BASH: [&str; 3] = ["/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"];

/// Whether there is a program at a path inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existence {
    There,
    Missing,
    /// Only the sandbox itself will show it.
    Unknown,
}

/// The shell by what the plan's mounts show of the host. `look` says the same of what no mount covers.
pub(crate) fn find(
    plan: &Plan,
    spec: &RunSpec,
    look: &mut dyn FnMut(&Path) -> Existence,
) -> Result<Option<String>, PlanError> {
    let mut at = |path: &str| match covering(&plan.mounts, Path::new(path)) {
        Some((mount, rest)) => in_mount(mount, &rest, &plan.mounts),
        None => look(Path::new(path)),
    };
    if let Some(path) = &spec.shell {
        return match at(path) {
            Existence::There | Existence::Unknown => Ok(Some(path.clone())),
            Existence::Missing => Err(PlanError::NoShell { path: path.clone() }),
        };
    }
    for path in BASH {
        match at(path) {
            Existence::There => return Ok(Some(path.to_owned())),
            Existence::Missing => {}
            Existence::Unknown => return Ok(None),
        }
    }
    Ok(Some(PLAIN_SHELL.to_owned()))
}

/// The mount that a path is in, and the rest of the path.
fn covering<'m>(mounts: &'m [PlannedMount], path: &Path) -> Option<(&'m PlannedMount, PathBuf)> {
    let within = |mount: &'m PlannedMount| {
        let rest = path.strip_prefix(mount.target.as_path()).ok()?;
        Some((mount, rest.to_owned()))
    };
    // A later mount covers an earlier one of the same depth.
    let mounts = mounts.iter().filter(|mount| !matches!(mount.what, MountKind::RootImage { .. }));
    mounts.filter_map(within).min_by_key(|(_, rest)| rest.components().count())
}

fn in_mount(mount: &PlannedMount, rest: &Path, mounts: &[PlannedMount]) -> Existence {
    match &mount.what {
        MountKind::Bind { source: Source::Path { path }, .. } => {
            on_host(&path.as_path().join(rest), mounts)
        }
        MountKind::RootDirectory { source } => below_root(source.as_path(), rest),
        MountKind::Bind { .. } | MountKind::Sent { .. } | MountKind::RootImage { .. } => {
            Existence::Unknown
        }
        MountKind::Tmpfs { .. }
        | MountKind::Copy { .. }
        | MountKind::File { .. }
        | MountKind::Accounts { .. }
        | MountKind::Symlink { .. }
        | MountKind::Proc { .. }
        | MountKind::Dev { .. } => Existence::Missing,
    }
}

/// A program of the host that is at its own path inside, and not only by a link that leads elsewhere.
fn on_host(path: &Path, mounts: &[PlannedMount]) -> Existence {
    match symlink_metadata(path) {
        Ok(found) if found.is_symlink() => match std::fs::canonicalize(path) {
            Ok(real) if covering(mounts, &real).is_some() => of(metadata(&real).ok()),
            Ok(_) | Err(_) => Existence::Missing,
        },
        found => of(found.ok()),
    }
}

fn of(found: Option<Metadata>) -> Existence {
    let is_program = |found: &Metadata| found.is_file() && found.permissions().mode() & 0o111 != 0;
    if found.as_ref().is_some_and(is_program) { Existence::There } else { Existence::Missing }
}

/// Links in the directory lead where they would lead if it were the root.
fn below_root(root: &Path, path: &Path) -> Existence {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let Ok(root) = rustix::fs::open(root, flags | OFlags::DIRECTORY, Mode::empty()) else {
        return Existence::Missing;
    };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(&root, path, flags, Mode::empty(), resolve) {
        Ok(found) => of(std::fs::File::from(found).metadata().ok()),
        Err(_) => Existence::Missing,
    }
}

/// Without a boundary: what the host has.
pub(crate) fn without_mounts(path: &Path) -> Existence {
    of(metadata(path).ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use std::os::unix::fs::symlink;

    use belljar_spec::{Access, OsText, Presence, Tree};

    use super::*;

    fn bind(source: &Path, target: &str) -> PlannedMount {
        let source = Source::Path { path: OsText::from(source) };
        let (access, presence, tree) = (Access::ReadOnly, Presence::Required, Tree::System);
        let what = MountKind::Bind { source, access, presence, tree };
        PlannedMount { target: OsText::from(target), what }
    }

    #[test]
    fn a_shell_is_there_if_its_link_leads_to_what_is_mounted() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let program = |name: &str, mode: u32| {
            std::fs::write(at(name), "x").unwrap();
            std::fs::set_permissions(at(name), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        for directory in ["bin", "root", "root/usr", "root/usr/bin", "other"] {
            std::fs::create_dir(at(directory)).unwrap();
        }
        program("bin/bash", 0o755);
        program("bin/text", 0o644);
        program("other/zsh", 0o755);
        symlink(at("other/zsh"), at("bin/zsh")).unwrap();
        symlink("/nowhere", at("bin/gone")).unwrap();
        let mut mounts = vec![bind(&at("bin"), "/bin")];
        let find = |mounts: &[PlannedMount], path: &str| {
            let (mount, rest) = covering(mounts, Path::new(path)).unwrap();
            in_mount(mount, &rest, mounts)
        };
        assert_eq!(find(&mounts, "/bin/bash"), Existence::There);
        for missing in ["/bin/text", "/bin/zsh", "/bin/gone", "/bin/none", "/bin"] {
            assert_eq!(find(&mounts, missing), Existence::Missing, "{missing}");
        }
        mounts.push(bind(&at("other"), at("other").to_str().unwrap()));
        assert_eq!(find(&mounts, "/bin/zsh"), Existence::There);
        assert!(covering(&mounts, Path::new("/usr/bin/bash")).is_none());

        let root = PlannedMount {
            target: OsText::from("/"),
            what: MountKind::RootDirectory { source: at("root").into() },
        };
        program("root/usr/bin/bash", 0o755);
        symlink("/usr/bin", at("root/bin")).unwrap();
        let tmp = PlannedMount {
            target: OsText::from("/tmp"),
            what: MountKind::Tmpfs { size: 1, mode: 0o777 },
        };
        let mounts = [root, tmp];
        assert_eq!(find(&mounts, "/bin/bash"), Existence::There);
        assert_eq!(find(&mounts, "/bin/sh"), Existence::Missing);
        assert_eq!(find(&mounts, "/tmp/bash"), Existence::Missing);
    }
}

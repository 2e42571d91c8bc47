//! Expands lines of a plan that stand for many paths of the host, once, when the run is bound.

use std::path::{Path, PathBuf};

use belljar_spec::{Access, MountKind, OsText, Plan, PlannedMount, Presence, Source, Tree};

use crate::bind::BindError;

/// The entries of a directory that serves as the root, without those that the sandbox provides itself.
pub(super) fn with_root_entries(plan: &Plan) -> Result<Plan, BindError> {
    const PROVIDED: &[&str] = &["proc", "sys", "dev", "tmp", "home"];
    let mut expanded = plan.clone();
    expanded.mounts.clear();
    for mount in &plan.mounts {
        let MountKind::RootDirectory { source } = &mount.what else {
            expanded.mounts.push(mount.clone());
            continue;
        };
        let failed = |error| BindError::Read { path: source.as_path().to_owned(), error };
        let taken =
            |target: &Path| plan.mounts.iter().any(|other| other.target.as_path() == target);
        let mut entries = std::fs::read_dir(source.as_path())
            .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
            .map_err(failed)?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let (name, path) = (entry.file_name(), entry.path());
            let target = Path::new("/").join(&name);
            let kind = entry.file_type().map_err(failed)?;
            let usable = kind.is_dir() || kind.is_file() || kind.is_symlink();
            if PROVIDED.iter().any(|provided| name == *provided) || taken(&target) || !usable {
                continue;
            }
            // A link is followed inside, where it means a place of this root.
            let what = if kind.is_symlink() {
                MountKind::Symlink { to: OsText::from(std::fs::read_link(&path).map_err(failed)?) }
            } else {
                MountKind::Bind {
                    source: Source::Path { path: OsText::from(path) },
                    access: Access::ReadOnly,
                    presence: Presence::Required,
                    tree: Tree::User,
                }
            };
            expanded.mounts.push(PlannedMount { target: OsText::from(target), what });
        }
    }
    Ok(expanded)
}

/// A link in the workspace that names the source of a mount by its absolute path (`data -> /srv/data`)
/// should work inside: the source then appears read-only at that path too.
pub(super) fn with_link_targets(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    let given = |mount: &PlannedMount| match &mount.what {
        MountKind::Bind { source: Source::Path { path }, tree: Tree::User, access, .. } => {
            Some((path.as_path().to_owned(), *access))
        }
        _ => None,
    };
    let trees: Vec<(PathBuf, Access)> = plan.mounts.iter().filter_map(given).collect();
    let Some((workspace, _)) = trees.iter().find(|(_, access)| *access == Access::Writable) else {
        return plan;
    };
    let entries = std::fs::read_dir(workspace).into_iter().flatten().flatten();
    let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
    let named: Vec<PathBuf> =
        links.filter_map(|link| std::fs::read_link(link.path()).ok()).collect();
    for (source, _) in &trees {
        let is_named = source != workspace && named.iter().any(|target| target.starts_with(source));
        let is_there = plan.mounts.iter().any(|mount| source.starts_with(mount.target.as_path()));
        if is_named && !is_there {
            plan.mounts.push(PlannedMount {
                target: OsText::from(source.as_path()),
                what: MountKind::Bind {
                    source: Source::Path { path: OsText::from(source.as_path()) },
                    access: Access::ReadOnly,
                    presence: Presence::Required,
                    tree: Tree::User,
                },
            });
        }
    }
    plan
}

/// The system's lists of authorities are covered where they are: behind a link that leads into a tree of the
/// system, at the file itself. Where the host has no such file there is none inside.
pub(super) fn with_bundle_places(plan: &Plan) -> Plan {
    let mut expanded = plan.clone();
    expanded.mounts.clear();
    let is_bundle = |mount: &PlannedMount| {
        matches!(&mount.what, MountKind::Bind { source: Source::RunTrustBundle, .. })
    };
    let is_system = |place: &Path| {
        plan.mounts.iter().any(|mount| {
            matches!(&mount.what, MountKind::Bind { tree: Tree::System, .. })
                && place.starts_with(mount.target.as_path())
        })
    };
    for mount in &plan.mounts {
        let mut mount = mount.clone();
        if is_bundle(&mount) {
            let Ok(real) = std::fs::canonicalize(mount.target.as_path()) else { continue };
            if !real.is_file() {
                continue;
            }
            if is_system(&real) {
                mount.target = OsText::from(real);
            }
            let is_there = |other: &PlannedMount| other.target == mount.target;
            if expanded.mounts.iter().any(is_there) {
                continue;
            }
        }
        expanded.mounts.push(mount);
    }
    expanded
}

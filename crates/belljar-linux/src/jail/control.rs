//! Files of a writable tree that the host executes later: which are read-only inside, and what holds the
//! place of those that are not there yet.
//!
//! A run that could make them anew would decide what a shell, an editor or git does on the host. So something
//! of the host has to be there to be covered: see [`crate::placeholder`].

use std::path::{Path, PathBuf};

use belljar_spec::later::{self, GIT_DIRECTORY, StandIn};
use belljar_spec::{OsText, Place};

use super::bind::BindError;
use super::resolve::{ResolveError, resolve};
use super::survey::{GitKind, survey};
use crate::placeholder::{Wanted, hold};

/// What a writable tree is to the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It holds the working directory.
    Workspace,
    Other,
}

/// What of a tree has to be covered read-only.
#[derive(Debug)]
pub(super) struct Protected {
    /// Relative paths.
    pub(super) paths: Vec<PathBuf>,
    /// The tree was too large to be looked at as a whole.
    pub(super) cut: bool,
}

pub(super) fn protected(
    tree: &Path,
    role: Role,
    allowed: &[OsText],
    place: &Place,
) -> Result<Protected, BindError> {
    let allowed: Vec<PathBuf> = allowed
        .iter()
        .map(|allowed| without_links(allowed.as_path(), &place.run_writable))
        .collect::<Result<_, _>>()?;
    let is_allowed = |path: &Path| {
        let whole = tree.join(path);
        allowed.iter().any(|allowed| whole.starts_with(allowed))
    };
    let leads_to_allowed = |path: &Path| {
        let whole = tree.join(path);
        allowed.iter().any(|allowed| allowed.starts_with(&whole))
    };
    let found = survey(tree);
    let mut wanted = missing_at_top(tree, role, &leads_to_allowed);
    for git in &found.git_directories {
        wanted.extend(missing_in_git(&git.path, git.kind));
    }
    wanted.retain(|wanted| !is_allowed(&wanted.path));
    let mut shielded = found.control;
    shielded.retain(|path| !is_allowed(path));
    shielded.extend(found.privileged);
    let mut held = hold(&place.placeholders, &place.run, tree, &wanted)?;
    held.retain(|path| !leads_to_allowed(path));
    shielded.extend(held);
    Ok(Protected { paths: shielded, cut: found.cut })
}

/// As the trees' own paths are. The last names may not be there yet.
fn without_links(path: &Path, run_writable: &[PathBuf]) -> Result<PathBuf, ResolveError> {
    for above in path.ancestors().skip(1) {
        match resolve(above, run_writable) {
            Ok(there) => {
                let rest = path.strip_prefix(above).unwrap_or(path);
                return Ok(there.path.join(rest));
            }
            Err(ResolveError::Missing { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(path.to_owned())
}

/// A whole directory is covered where that is what is missing; one in which something may be made is made, and
/// what else could be in it is covered.
fn missing_at_top(
    tree: &Path,
    role: Role,
    leads_to_allowed: &dyn Fn(&Path) -> bool,
) -> Vec<Wanted> {
    let mut wanted: Vec<Wanted> = Vec::new();
    let mut want = |path: &Path, stand_in| {
        if !wanted.iter().any(|wanted| wanted.path == path) {
            wanted.push(Wanted { path: path.to_owned(), stand_in });
        }
    };
    let is_empty = || std::fs::read_dir(tree).is_ok_and(|mut entries| entries.next().is_none());
    if role == Role::Other && is_empty() {
        return Vec::new(); // many programs want their data directory to be empty at first
    }
    for path in later::covered_where_missing() {
        let is_dotted = path.as_os_str().as_encoded_bytes().starts_with(b".");
        if role == Role::Other && !is_dotted {
            continue; // seen by everybody, and of use in a project only
        }
        let first = path.iter().next().map_or(path, Path::new);
        match std::fs::symlink_metadata(tree.join(first)) {
            Ok(found) if found.is_dir() => want(path, StandIn::Socket),
            Err(_) if first != path && leads_to_allowed(first) => {
                want(first, StandIn::EmptyDirectory);
                want(path, StandIn::Socket);
            }
            _ => want(first, StandIn::Socket),
        }
    }
    wanted
}

fn missing_in_git(directory: &Path, kind: GitKind) -> Vec<Wanted> {
    let entries = GIT_DIRECTORY.iter().filter(|entry| match kind {
        GitKind::Whole => true,
        GitKind::OfWorktree => entry.name == "config.worktree",
    });
    let wanted = entries.filter_map(|entry| {
        Some(Wanted { path: directory.join(entry.name), stand_in: entry.stand_in? })
    });
    wanted.collect()
}

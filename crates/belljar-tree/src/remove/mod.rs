//! Removes a tree that a hostile process made.
//!
//! Nothing in it is trusted: any depth, any number of entries, directories that deny everything, links to
//! anywhere. No name is looked up through a directory of the tree by path, no link is followed, no mount
//! is entered, and memory and descriptors do not grow with the tree.
//!
//! The tree is taken down level by level. What is left of one level (directories that are not empty) is
//! emptied in turn, and their own directories are moved up into a fresh one for the next level. So
//! depth never grows, and every entry is looked at once or twice.

mod entry;
mod level;

use std::ffi::{CStr, CString, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, FlockOperation};
use rustix::io::Errno;

use crate::dir::{Dir, FinalLink};
use crate::error::OpenDirError;
use crate::path::PathError;
use entry::{Removed, open_directory, rmdir, unlink};
use level::remove_levels;

/// How long another removal of the same tree is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// A tree could not be removed, or not all of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoveAllError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Parent(#[from] OpenDirError),
    #[error("cannot remove all of {path:?}: {action} {name:?} failed; remove it by hand")]
    Entry {
        path: PathBuf,
        action: RemoveAction,
        name: OsString,
        #[source]
        error: Errno,
    },
}

/// What failed first in a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoveAction {
    Open,
    Read,
    Empty,
    Remove,
}

impl std::fmt::Display for RemoveAction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Open => "opening",
            Self::Read => "reading",
            Self::Empty => "emptying",
            Self::Remove => "removing",
        })
    }
}

impl RemoveAllError {
    pub fn errno(&self) -> Errno {
        match self {
            Self::Path(_) => Errno::INVAL,
            Self::Parent(error) => error.errno(),
            Self::Entry { error, .. } => *error,
        }
    }
}

crate::error::common_methods!(RemoveAllError);

/// Removes whatever is at a path; the directories above it are trusted. What is not there is removed
/// already. Goes on after a failure, and reports the first one.
pub fn remove_all(path: impl AsRef<Path>) -> Result<(), RemoveAllError> {
    let path = path.as_ref();
    let no_name = || PathError::NoName { path: path.to_owned() };
    let name = path.file_name().ok_or_else(no_name)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = match Dir::open(parent.unwrap_or(Path::new(".")), FinalLink::Follow) {
        Err(OpenDirError::Missing { .. }) => return Ok(()),
        parent => parent?,
    };
    parent.remove_all(name).map_err(|error| match error {
        RemoveAllError::Entry { action, name, error, .. } => {
            RemoveAllError::Entry { path: path.to_owned(), action, name, error }
        }
        other => other,
    })
}

impl Dir {
    /// Removes whatever is at a path beneath this directory, as [`remove_all`] does.
    pub fn remove_all(&self, path: impl AsRef<Path>) -> Result<(), RemoveAllError> {
        let path = path.as_ref();
        let (parent, name) = match self.parent_of::<RemoveAllError>(path) {
            Err(RemoveAllError::Parent(error)) if error.is_missing() => return Ok(()),
            parent => parent?,
        };
        let name =
            CString::new(name.as_bytes()).map_err(|_| PathError::Nul { path: path.to_owned() })?;
        let mut failures = Failures::default();
        remove_entry(parent.as_fd(), &name, Keep::Nothing, &mut failures);
        failures.into_result(path)
    }

    /// Removes everything in a directory beneath this one, and leaves the directory itself. What is
    /// not a directory is removed.
    pub fn remove_contents(&self, path: impl AsRef<Path>) -> Result<(), RemoveAllError> {
        let path = path.as_ref();
        let mut failures = Failures::default();
        if path.as_os_str().is_empty() {
            let top = open_directory(self.as_fd(), c".")
                .map_err(|error| OpenDirError::System { path: path.to_owned(), error })?;
            wait_for_others(top.as_fd());
            remove_levels(top, &mut failures);
            return failures.into_result(path);
        }
        let (parent, name) = match self.parent_of::<RemoveAllError>(path) {
            Err(RemoveAllError::Parent(error)) if error.is_missing() => return Ok(()),
            parent => parent?,
        };
        let name =
            CString::new(name.as_bytes()).map_err(|_| PathError::Nul { path: path.to_owned() })?;
        remove_entry(parent.as_fd(), &name, Keep::Directory, &mut failures);
        failures.into_result(path)
    }
}

/// The first thing that went wrong: the others follow from it, or are alike.
#[derive(Default)]
struct Failures {
    first: Option<(RemoveAction, OsString, Errno)>,
}

impl Failures {
    fn add(&mut self, action: RemoveAction, name: &CStr, errno: Errno) {
        self.first
            .get_or_insert_with(|| (action, OsString::from_vec(name.to_bytes().to_vec()), errno));
    }

    fn into_result(self, path: &Path) -> Result<(), RemoveAllError> {
        match self.first {
            None => Ok(()),
            Some((action, name, error)) => {
                Err(RemoveAllError::Entry { path: path.to_owned(), action, name, error })
            }
        }
    }
}

/// What is left of the top.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Nothing,
    Directory,
}

fn remove_entry(parent: BorrowedFd<'_>, name: &CStr, keep: Keep, failures: &mut Failures) {
    let first = match keep {
        Keep::Nothing => unlink(parent, name, FileType::Unknown),
        Keep::Directory => Ok(Removed::NotEmpty),
    };
    match first {
        Ok(Removed::Gone) => return,
        Ok(Removed::NotEmpty) => {}
        Err(errno) => return failures.add(RemoveAction::Remove, name, errno),
    }
    let top: OwnedFd = match open_directory(parent, name) {
        Ok(top) => top,
        Err(Errno::NOENT) => return,
        // Only where it was not tried before.
        Err(Errno::NOTDIR | Errno::LOOP) if keep == Keep::Directory => {
            return match unlink(parent, name, FileType::Unknown) {
                Ok(_) => {}
                Err(errno) => failures.add(RemoveAction::Remove, name, errno),
            };
        }
        Err(errno) => return failures.add(RemoveAction::Open, name, errno),
    };
    wait_for_others(top.as_fd());
    remove_levels(top, failures);
    if keep == Keep::Directory {
        return;
    }
    match rmdir(parent, name) {
        Ok(Removed::Gone) => {}
        Ok(Removed::NotEmpty) => failures.add(RemoveAction::Empty, name, Errno::NOTEMPTY),
        Err(errno) => failures.add(RemoveAction::Remove, name, errno),
    }
}

/// Two that take down one tree would take each other's levels away. The lock goes with the descriptor. Whoever
/// else holds one, on purpose perhaps, is not waited for without end.
fn wait_for_others(top: BorrowedFd<'_>) {
    for _ in 0..LOCK_TIMEOUT.as_millis() / LOCK_INTERVAL.as_millis() {
        match rustix::fs::flock(top, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_INTERVAL),
            _ => return,
        }
    }
}

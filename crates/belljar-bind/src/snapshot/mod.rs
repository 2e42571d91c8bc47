//! Copies a tree that a run has written to, and restores it.
//!
//! The tree is hostile, and something may still write to it. Every name is opened once, by descriptor, below the
//! directory it was found in; no link is followed, nothing but files and directories is opened, and neither depth nor
//! length of a path has a bound. What vanishes or is replaced meanwhile is left out and counted.
//!
//! Copied are: content with its holes, modes without setuid and setgid bits (a directory keeps setgid), owners where
//! the caller is root, times of change, links, hard links inside the tree, FIFOs and sockets as nodes without
//! a listener, overlayfs' deletion marks, `user.*` attributes, and of overlayfs' attributes `opaque` and
//! `redirect`. Not copied: other devices, ACLs, file capabilities, and what is on another file system.
//!
//! A snapshot never changes once it is taken. So the next one shares the files whose source did not change since, by
//! hard links; a restored tree is always a copy.

mod attributes;
mod copy;
mod index;
mod links;
#[cfg(test)]
mod tests;
mod walk;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use belljar_spec::Moment;
use belljar_tree::{Access, Dir, FinalLink, Metadata, OpenDirError, PathError, UnlockedDir};
use rustix::fs::{Mode, fchmod, syncfs};
use rustix::io::Errno;

use self::copy::Copier;
use self::index::{IndexWriter, count_of};
use self::walk::SnapshotWalk;
use crate::file_clock;

pub use self::index::{Previous, index_of};

#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("cannot copy {}: {doing} failed", .path.display())]
    Entry {
        path: PathBuf,
        doing: &'static str,
        #[source]
        error: Errno,
    },
    #[error("cannot write or read {}", .path.display())]
    Index {
        path: PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("{} is not empty, so nothing is restored there", .path.display())]
    NotEmpty { path: PathBuf },
    #[error("{} has more than {limit} entries, the maximum of a checkpoint", .path.display())]
    Endless { path: PathBuf, limit: u64 },
    #[error(
        "the names of the directories in {} take more than {limit} bytes",
        .path.display()
    )]
    TooWide { path: PathBuf, limit: usize },
    #[error("{} is incomplete: {missing} of its entries are missing", .path.display())]
    NotWhole { path: PathBuf, missing: u64 },
    #[error("{} is larger than the {limit} bytes that a checkpoint may copy", .path.display())]
    TooLarge { path: PathBuf, limit: u64 },
    #[error("it was cancelled")]
    Cancelled,
}

/// What a snapshot holds, and what is new in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotSummary {
    pub files: u64,
    pub bytes: u64,
    /// Of those, what was copied and not shared with the snapshot before.
    pub new_files: u64,
    pub new_bytes: u64,
    /// Of those bytes, what they take on disk: a hole takes nothing.
    pub on_disk: u64,
    /// Paths that were made, changed or removed since the snapshot before. A time alone is no change; a directory with
    /// something in it counts only for its mode, its owner and its marks.
    pub changed: u64,
    /// Entries that could not be copied: gone or replaced meanwhile, unreadable, or of a kind that is not copied.
    pub left_out: u64,
    /// Files that were written to all the while: their copy is of no single moment.
    pub unsettled: u64,
}

/// The moment from which on a change belongs to the next snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Begun(Moment);

impl Begun {
    /// Takes the time, then flushes what the file system of `path` holds. A page that is written through
    /// a mapping stamps its file only when it was clean before: a newer write must not go unseen because of an older
    /// one. (In memory, where nothing is ever clean, such a write can go unseen.)
    pub fn now(path: &Path) -> Result<Self, Errno> {
        let moment = file_clock::ticked();
        syncfs(Dir::open(path, FinalLink::Follow)?)?;
        Ok(Self(moment))
    }
}

/// Copies the directory `from` to `to`, which is made, in a directory that no other process can reach. An index for the
/// next snapshot is written beside it: [`index_of`]. A failure leaves a part of the copy behind.
pub fn take(
    from: &Path,
    to: &Path,
    begun: Begun,
    previous: Option<Previous>,
) -> Result<SnapshotSummary, SnapshotError> {
    take_with_limits(
        SnapshotLimits { cancel: &AtomicBool::new(false), bytes: u64::MAX },
        from,
        to,
        begun,
        previous,
    )
}

/// When a snapshot is given up.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotLimits<'a> {
    /// Soon after it was set.
    pub cancel: &'a AtomicBool,
    /// Of new copies. A file with too many names to track is copied once for each.
    pub bytes: u64,
}

/// As [`take`], with bounds.
pub fn take_with_limits(
    limits: SnapshotLimits<'_>,
    from: &Path,
    to: &Path,
    begun: Begun,
    previous: Option<Previous>,
) -> Result<SnapshotSummary, SnapshotError> {
    let failed = |doing| move |error| SnapshotError::Entry { path: from.to_owned(), doing, error };
    let source = open_root(from).map_err(|error| failed("opening it")(error.errno()))?;
    rustix::fs::mkdir(to, Mode::RWXU).map_err(failed("making the copy"))?;
    let target = open_root(to).map_err(|error| failed("opening the copy")(error.errno()))?;
    let path = index_of(to);
    let index_failed = |error| SnapshotError::Index { path: path.clone(), error };
    let writer = IndexWriter::create(&path, begun.0).map_err(index_failed)?;
    let (before, names) = match previous {
        None => (None, None),
        Some(Previous { tree, index }) => (open_root(&tree).ok(), Some(index)),
    };
    let copier = Copier::new(Some(writer), names);
    let mut walk = SnapshotWalk::new(from, copier, limits.cancel);
    walk.bounds.bytes = limits.bytes;
    walk.run(source, target.dir, before)?;
    walk.copier.finish().map_err(index_failed)
}

/// Copies a snapshot into a directory that is there and empty, which becomes as the one that the snapshot is of, but
/// that its owner can use it. A
/// snapshot of which something is gone, or goes meanwhile, is an error.
pub fn restore(from: &Path, to: &Path) -> Result<SnapshotSummary, SnapshotError> {
    let failed = |doing| move |error| SnapshotError::Entry { path: from.to_owned(), doing, error };
    // Before the first entry: a removal of a snapshot may begin anywhere.
    let index = index_of(from);
    let held =
        count_of(&index).map_err(|error| SnapshotError::Index { path: index.clone(), error })?;
    let source = open_root(from).map_err(|error| failed("opening it")(error.errno()))?;
    let target = open_root(to).map_err(|error| failed("opening the copy")(error.errno()))?.dir;
    if !target.is_empty("").map_err(|error| failed("reading the copy")(error.errno()))? {
        return Err(SnapshotError::NotEmpty { path: to.to_owned() });
    }
    fchmod(&target, Mode::RWXU).map_err(failed("opening the copy"))?;
    let copier = Copier::new(None, None);
    let never = AtomicBool::new(false);
    let mut walk = SnapshotWalk::new(from, copier, &never);
    let root = target.try_clone();
    let root = root.map_err(|error| failed("opening the copy")(error.errno()))?;
    walk.run(source, target, None)?;
    // A run can take every right from its directory, and the next one could not even begin.
    let mode = Metadata::of(&root).map(|found| Mode::from_raw_mode(found.mode()));
    mode.and_then(|mode| fchmod(&root, mode | Mode::RWXU)).map_err(failed("finishing the copy"))?;
    let (taken, noted) = (walk.copier.taken, walk.copier.noted);
    let missing = held.abs_diff(noted).max(taken.left_out + taken.unsettled);
    match missing {
        0 => Ok(taken),
        _ => Err(SnapshotError::NotWhole { path: from.to_owned(), missing }),
    }
}

/// The directories above it are the caller's.
fn open_root(path: &Path) -> Result<UnlockedDir, OpenDirError> {
    let no_name = || PathError::NoName { path: path.to_owned() };
    let name = path.file_name().ok_or_else(no_name)?;
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    let above = above.unwrap_or(Path::new("."));
    Dir::open_for(above, FinalLink::Follow, Access::Lookup)?.unlock_dir(name)
}

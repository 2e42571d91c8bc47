//! Copies a tree that may be changing while it is copied, perhaps by a hostile process.
//!
//! Files, directories and links are copied; each name of a file with several gets a copy of its own.
//! FIFOs, sockets and devices stay behind, and so do setuid and setgid bits.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, Uid, fchmod, fchown, fstat, futimens};
use rustix::io::Errno;

use crate::content::{ContentBounds, CopyContentError, copy_content};
use crate::dir::Dir;
use crate::error::OpenDirError;
use crate::level_stack::LevelStack;
use crate::metadata::{EntryKind, Identity, Metadata};
use crate::walk::{
    Bound, Bounds, Visit, Visitor, WalkEnd, WalkEntry, WalkError, WalkOrder, WalkProblem,
    is_changed, walk,
};

const FILE_BITS: u32 = 0o777;
const DIRECTORY_BITS: u32 = 0o1777;

/// The owner of the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyOwner {
    /// The process that copies.
    Caller,
    /// That of the original. Takes root.
    Source,
}

/// Whether an entry is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    Copy,
    /// With everything in it.
    LeaveOut,
}

/// What a copy came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    pub files: u64,
    pub directories: u64,
    pub links: u64,
    /// Content that was written or shared.
    pub bytes: u64,
    /// FIFOs, sockets and devices, which are not copied.
    pub special: u64,
    /// Mount points, where those are not entered.
    pub mounts: u64,
    /// What was removed, exchanged or moved while it was copied.
    pub changed: u64,
}

/// A tree could not be copied. What was copied by then is still there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyTreeError {
    #[error("cannot read {path:?} to copy it")]
    Source {
        path: PathBuf,
        #[source]
        error: Errno,
    },
    #[error("cannot write the copy of {path:?}")]
    Target {
        path: PathBuf,
        #[source]
        error: Errno,
    },
    #[error("the tree is larger than may be copied: its {bound} passed the limit at {path:?}")]
    Bound { bound: Bound, path: PathBuf },
}

impl CopyTreeError {
    pub fn errno(&self) -> Errno {
        match self {
            Self::Source { error, .. } | Self::Target { error, .. } => *error,
            Self::Bound { .. } => Errno::FBIG,
        }
    }
}

crate::error::common_methods!(CopyTreeError);

/// Copies what is in one directory into another, and then the directory's own mode and times.
/// `select` is asked for every entry; of what it leaves out, only the name counts for the bounds.
pub fn copy_tree(
    from: &Dir,
    to: &Dir,
    bounds: Bounds,
    owner: CopyOwner,
    select: impl FnMut(&WalkEntry<'_>) -> Selection,
) -> Result<CopyReport, CopyTreeError> {
    let root = PathBuf::new();
    let source = from.stat("").map_err(|error| failed_source(&root, error.errno()))?;
    let target = to.open_dir("").map_err(|error| failed_target(&root, error.errno()))?;
    let target_root =
        target.stat("").map_err(|error| failed_target(&root, error.errno()))?.identity();
    let mut copier = Copier {
        select,
        owner,
        budget: bounds.bytes,
        target_root,
        target: LevelStack::new(target),
        entered: Vec::new(),
        report: CopyReport::default(),
    };
    let walked = walk(from, bounds, WalkOrder::AsStored, &mut copier);
    match walked {
        Ok(walked) => match walked.end {
            WalkEnd::Complete | WalkEnd::Stopped => {}
            WalkEnd::Bound { bound, path } => return Err(CopyTreeError::Bound { bound, path }),
        },
        Err(WalkError::Visitor(error)) => return Err(error),
        Err(WalkError::Root(error)) => return Err(failed_source(&root, error.errno())),
    }
    let target = to.open_dir("").map_err(|error| failed_target(&root, error.errno()))?;
    finish(target, &source, owner, DIRECTORY_BITS).map_err(|error| failed_target(&root, error))?;
    Ok(copier.report)
}

struct Copier<S> {
    select: S,
    owner: CopyOwner,
    /// Bytes that may still be written.
    budget: u64,
    target_root: Identity,
    target: LevelStack,
    /// The originals of the directories in the stack.
    entered: Vec<Metadata>,
    report: CopyReport,
}

impl<S: FnMut(&WalkEntry<'_>) -> Selection> Visitor for Copier<S> {
    type Error = CopyTreeError;

    fn entry(&mut self, entry: &WalkEntry<'_>) -> Result<Visit, CopyTreeError> {
        if (self.select)(entry) == Selection::LeaveOut {
            return Ok(Visit::Skip);
        }
        match entry.kind() {
            // A copy that lies in its own original would never end.
            EntryKind::Directory if self.is_target(entry) => return Ok(Visit::Skip),
            EntryKind::Directory => {}
            EntryKind::File => self.file(entry)?,
            EntryKind::Symlink => self.link(entry)?,
            EntryKind::Fifo
            | EntryKind::Socket
            | EntryKind::CharacterDevice
            | EntryKind::BlockDevice
            | EntryKind::Unknown => {
                self.report.special += 1;
                return Ok(Visit::Skip);
            }
        }
        Ok(Visit::Continue)
    }

    fn enter(&mut self, entry: &WalkEntry<'_>, directory: &Dir) -> Result<(), CopyTreeError> {
        let path = entry.path();
        let source = directory.stat("").map_err(|error| failed_source(path, error.errno()))?;
        let target = self.target(path)?;
        target
            .create_dir(entry.name(), 0o700)
            .map_err(|error| failed_target(path, error.errno()))?;
        let made = target.open_dir(entry.name());
        let made = made.map_err(|error| failed_target(path, error.errno()))?;
        self.target
            .push(entry.name().to_owned(), made)
            .map_err(|error| failed_target(path, error.errno()))?;
        self.entered.push(source);
        self.report.directories += 1;
        Ok(())
    }

    fn leave(&mut self, path: &Path) -> Result<(), CopyTreeError> {
        let (Some(made), Some(source)) = (self.target.pop(), self.entered.pop()) else {
            return Err(failed_target(path, Errno::NOENT));
        };
        // Only now: a directory that is read-only takes no entries, and has no way up.
        finish(made, &source, self.owner, DIRECTORY_BITS)
            .map_err(|error| failed_target(path, error))
    }

    fn problem(&mut self, path: &Path, problem: &WalkProblem) -> Result<(), CopyTreeError> {
        match problem {
            WalkProblem::Open(OpenDirError::Mount { .. }) => self.report.mounts += 1,
            WalkProblem::Open(error) if error.is_missing() => self.report.changed += 1,
            WalkProblem::Open(error) => return Err(failed_source(path, error.errno())),
            WalkProblem::List(error) => return Err(failed_source(path, *error)),
            WalkProblem::Moved { unvisited } => self.report.changed += *unvisited as u64,
        }
        Ok(())
    }
}

impl<S> Copier<S> {
    fn is_target(&self, entry: &WalkEntry<'_>) -> bool {
        entry.stat().is_ok_and(|found| found.identity() == self.target_root)
    }

    fn target(&self, path: &Path) -> Result<&Dir, CopyTreeError> {
        // Lost only if another process moves the copy.
        self.target.current().ok_or_else(|| failed_target(path, Errno::NOENT))
    }

    fn file(&mut self, entry: &WalkEntry<'_>) -> Result<(), CopyTreeError> {
        let path = entry.path();
        let from = match entry.parent().open_file(entry.name()) {
            Ok(from) => from,
            Err(crate::OpenFileError::NotRegular { .. } | crate::OpenFileError::Missing { .. }) => {
                self.report.changed += 1;
                return Ok(());
            }
            Err(crate::OpenFileError::Mount { .. }) => {
                self.report.mounts += 1;
                return Ok(());
            }
            Err(error) => return Err(failed_source(path, error.errno())),
        };
        let source = fstat(&from).map_err(|error| failed_source(path, error))?;
        let source = Metadata::from_stat(source);
        let made = self.target(path)?.create_file(entry.name(), 0o600);
        let made = made.map_err(|error| failed_target(path, error.errno()))?;
        let bounds = ContentBounds { size: source.size(), budget: self.budget };
        let copied = copy_content(&from, &made, bounds).map_err(|error| match error {
            CopyContentError::OverBudget { .. } => {
                CopyTreeError::Bound { bound: Bound::Bytes, path: path.to_owned() }
            }
            CopyContentError::Read(error) => failed_source(path, error),
            CopyContentError::Write(error) => failed_target(path, error),
        })?;
        if self.budget != u64::MAX {
            self.budget = self.budget.saturating_sub(copied.bytes);
        }
        self.report.bytes = self.report.bytes.saturating_add(copied.bytes);
        self.report.files += 1;
        finish(made, &source, self.owner, FILE_BITS).map_err(|error| failed_target(path, error))
    }

    fn link(&mut self, entry: &WalkEntry<'_>) -> Result<(), CopyTreeError> {
        let path = entry.path();
        let found = entry.stat().cloned().map_err(|error| error.errno());
        let read = entry.parent().read_link(entry.name()).map_err(|error| error.errno());
        let (source, leads_to) = match (found, read) {
            (Ok(found), Ok(leads_to)) => (found, leads_to),
            // Exchanged for something that is not a link.
            (_, Err(Errno::INVAL)) => {
                self.report.changed += 1;
                return Ok(());
            }
            (Err(error), _) | (_, Err(error)) if is_changed(error) => {
                self.report.changed += 1;
                return Ok(());
            }
            (Err(error), _) | (_, Err(error)) => return Err(failed_source(path, error)),
        };
        let owner = self.owner;
        let target = self.target(path)?;
        let name = entry.name();
        target.symlink(&leads_to, name).map_err(|error| failed_target(path, error.errno()))?;
        if owner == CopyOwner::Source {
            target
                .set_owner(name, source.uid(), source.gid())
                .map_err(|error| failed_target(path, error.errno()))?;
        }
        target
            .set_times(name, &source.times())
            .map_err(|error| failed_target(path, error.errno()))?;
        self.report.links += 1;
        Ok(())
    }
}

/// Owner, mode and times, in this order: a new owner takes bits from the mode.
fn finish(made: impl AsFd, source: &Metadata, owner: CopyOwner, bits: u32) -> Result<(), Errno> {
    let made = made.as_fd();
    if owner == CopyOwner::Source {
        fchown(made, Some(Uid::from_raw(source.uid())), Some(Gid::from_raw(source.gid())))?;
    }
    fchmod(made, Mode::from_raw_mode((source.mode() & bits) as _))?;
    futimens(made, &source.times())
}

fn failed_source(path: &Path, error: Errno) -> CopyTreeError {
    CopyTreeError::Source { path: path.to_owned(), error }
}

fn failed_target(path: &Path, error: Errno) -> CopyTreeError {
    CopyTreeError::Target { path: path.to_owned(), error }
}

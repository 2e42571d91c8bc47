//! The trait that a walk calls for each entry.

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::path::Path;

use rustix::io::Errno;

use crate::dir::Dir;
use crate::error::{OpenDirError, StatError};
use crate::metadata::{EntryKind, Metadata};

/// Called by [`walk`](super::walk()) for what it finds. A closure that takes an entry is one, too.
pub trait Visitor {
    type Error;

    /// An entry; of a directory, before anything in it.
    fn entry(&mut self, entry: &WalkEntry<'_>) -> Result<Visit, Self::Error>;

    /// A directory was opened, and what is in it comes next.
    fn enter(&mut self, _: &WalkEntry<'_>, _directory: &Dir) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Everything in a directory that was entered was visited. Not called once the walk has ended early.
    fn leave(&mut self, _path: &Path) -> Result<(), Self::Error> {
        Ok(())
    }

    /// A directory is left out, or what is left of it. The walk goes on, unless this fails.
    fn problem(&mut self, _path: &Path, _: &WalkProblem) -> Result<(), Self::Error> {
        Ok(())
    }
}

impl<F, E> Visitor for F
where
    F: FnMut(&WalkEntry<'_>) -> Result<Visit, E>,
{
    type Error = E;

    fn entry(&mut self, entry: &WalkEntry<'_>) -> Result<Visit, E> {
        self(entry)
    }
}

/// How the walk goes on after an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// The entry counts, and if it is a directory, what is in it comes next.
    Continue,
    /// It takes no bytes of the budget, and is not entered.
    Skip,
    /// Not at all.
    Stop,
}

/// Why a directory, or a part of it, was not visited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WalkProblem {
    #[error("the directory cannot be opened")]
    Open(#[source] OpenDirError),
    #[error("the directory cannot be listed")]
    List(#[source] Errno),
    #[error("the directory was moved away, and {unvisited} entries of it were not visited")]
    Moved { unvisited: usize },
}

/// An entry that a walk has come to.
#[derive(Debug)]
pub struct WalkEntry<'a> {
    pub(super) parent: &'a Dir,
    pub(super) name: &'a OsStr,
    pub(super) path: &'a Path,
    pub(super) depth: usize,
    pub(super) kind: EntryKind,
    pub(super) metadata: OnceCell<Metadata>,
}

impl<'a> WalkEntry<'a> {
    /// The directory that it is in: what is done to the entry is done by its name there.
    pub fn parent(&self) -> &'a Dir {
        self.parent
    }

    pub fn name(&self) -> &'a OsStr {
        self.name
    }

    /// From the root of the walk.
    pub fn path(&self) -> &'a Path {
        self.path
    }

    /// How many names its path has.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// As it was listed.
    pub fn kind(&self) -> EntryKind {
        self.kind
    }

    /// Looks at it, once.
    pub fn stat(&self) -> Result<&Metadata, StatError> {
        match self.metadata.get() {
            Some(found) => Ok(found),
            None => {
                let found = self.parent.stat(self.name)?;
                Ok(self.metadata.get_or_init(|| found))
            }
        }
    }
}

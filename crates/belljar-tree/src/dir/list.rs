//! Lists a directory, as a stream or as a bounded list.

use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir as DirStream, statat};
use rustix::io::Errno;

use super::Dir;
use crate::error::{ListError, OpenDirError, StatError};
use crate::metadata::{EntryKind, Metadata};
use crate::path::BeneathPath;
use crate::resolve::{Access, Rules};

/// A name in a directory, and its kind in the listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    pub name: OsString,
    /// As it was listed; it may have changed since.
    pub kind: EntryKind,
}

/// How much of one directory is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListLimits {
    pub entries: usize,
    /// Of all names together.
    pub name_bytes: usize,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListOrder {
    /// As the file system has them.
    AsStored,
    /// By the bytes of their names.
    Sorted,
}

/// Names of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    pub entries: Vec<DirEntry>,
    pub end: ListingEnd,
}

/// Whether a list has everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListingEnd {
    Complete,
    /// There are more than the limits allow.
    Limit,
}

impl Dir {
    /// The entries of a directory one by one, without `.` and `..`. There may be any number.
    pub fn entries(&self, path: impl AsRef<Path>) -> Result<Entries, ListError> {
        let path = path.as_ref();
        let parsed = BeneathPath::parse(path).map_err(OpenDirError::from)?;
        let fd = self.rules().open_dir(self.as_fd(), parsed, Access::List)?;
        let entries = Entries::of(fd, self.rules(), path.to_owned());
        entries.map_err(|error| ListError::Read { path: path.to_owned(), error })
    }

    /// The entries of this directory itself. Takes the handle, so that no further descriptor is opened.
    pub fn into_entries(self) -> Result<Entries, ListError> {
        let failed = |error| ListError::Read { path: PathBuf::new(), error };
        match self.access() {
            Access::List => {
                let rules = self.rules();
                Entries::of(self.into(), rules, PathBuf::new()).map_err(failed)
            }
            Access::Lookup => self.entries(""),
        }
    }

    /// The entries of a directory, no more than the limits allow.
    pub fn list(
        &self,
        path: impl AsRef<Path>,
        limits: ListLimits,
        order: ListOrder,
    ) -> Result<Listing, ListError> {
        let mut listing = Listing { entries: Vec::new(), end: ListingEnd::Complete };
        let mut bytes = 0_usize;
        for entry in self.entries(path)? {
            let entry = entry?;
            bytes = bytes.saturating_add(entry.name.len());
            if listing.entries.len() >= limits.entries || bytes > limits.name_bytes {
                listing.end = ListingEnd::Limit;
                break;
            }
            listing.entries.push(entry);
        }
        if order == ListOrder::Sorted {
            listing.entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        }
        Ok(listing)
    }

    /// Whether a directory has no entries.
    pub fn is_empty(&self, path: impl AsRef<Path>) -> Result<bool, ListError> {
        match self.entries(path)?.next() {
            None => Ok(true),
            Some(Ok(_)) => Ok(false),
            Some(Err(error)) => Err(error),
        }
    }
}

/// A directory that is being listed. Its entries can be looked at and opened as they come, so that one
/// descriptor does for both.
#[derive(Debug)]
pub struct Entries {
    stream: DirStream,
    rules: Rules,
    path: PathBuf,
    is_over: bool,
}

impl Entries {
    /// `path` is what errors call it.
    pub(crate) fn of(fd: OwnedFd, rules: Rules, path: PathBuf) -> Result<Self, Errno> {
        Ok(Self { stream: DirStream::new(fd)?, rules, path, is_over: false })
    }

    /// What an entry of this directory is; of a link, the link itself.
    pub fn stat(&self, name: impl AsRef<OsStr>) -> Result<Metadata, StatError> {
        let name = name.as_ref();
        let path = || self.path.join(name);
        let found = self.fd().and_then(|fd| statat(fd, name, AtFlags::SYMLINK_NOFOLLOW));
        match found {
            Ok(stat) => Ok(Metadata::from_stat(stat)),
            Err(Errno::NOENT) => Err(StatError::Missing { path: path() }),
            Err(error) => Err(StatError::System { path: path(), error }),
        }
    }

    /// Opens a directory that was listed.
    pub fn open_dir(&self, name: impl AsRef<OsStr>) -> Result<Dir, OpenDirError> {
        let name = name.as_ref();
        let failed = |error| OpenDirError::System { path: self.path.join(name), error };
        let fd = self.fd().map_err(failed)?;
        let opened = self.rules.open_dir(fd, BeneathPath::parse(Path::new(name))?, Access::List);
        let opened = opened.map_err(|error| error.at(&self.path.join(name)))?;
        Ok(Dir::with_rules(opened, Access::List, self.rules))
    }

    fn fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.stream.fd()
    }

    /// The next name that is not `.` or `..`. A directory that was removed meanwhile has no more.
    pub(crate) fn next_entry(&mut self) -> Option<Result<DirEntry, Errno>> {
        while !self.is_over {
            match self.stream.read() {
                None | Some(Err(Errno::NOENT)) => self.is_over = true,
                Some(Err(error)) => {
                    self.is_over = true;
                    return Some(Err(error));
                }
                Some(Ok(entry)) => {
                    let name = entry.file_name();
                    if !is_dot(name) {
                        return Some(Ok(DirEntry {
                            name: OsStr::from_bytes(name.to_bytes()).to_owned(),
                            kind: EntryKind::of(entry.file_type()),
                        }));
                    }
                }
            }
        }
        None
    }
}

impl Iterator for Entries {
    type Item = Result<DirEntry, ListError>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.next_entry()?;
        Some(entry.map_err(|error| ListError::Read { path: self.path.clone(), error }))
    }
}

/// One of the two names that every directory has.
pub(crate) fn is_dot(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

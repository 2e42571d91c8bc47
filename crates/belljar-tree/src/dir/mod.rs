//! A handle on a directory, from which everything beneath it is reached.

pub(crate) mod attributes;
pub(crate) mod create;
pub(crate) mod list;
mod names;
mod open;
mod pinned;
mod unlock;

pub use list::{DirEntry, Entries, ListLimits, ListOrder, Listing, ListingEnd};
pub use names::RenameMode;
pub use pinned::PinnedEntry;
pub use unlock::{ModeLock, UnlockedDir, UnlockedFile};

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::OpenDirError;
use crate::path::BeneathPath;
use crate::resolve::{Access, Mounts, Resolver, Rules};

/// An open directory. Paths given to its methods are relative to it, made of plain names, and no link
/// in them is followed; the empty path is the directory itself.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    access: Access,
    rules: Rules,
}

/// What to do where the last part of a trusted path is a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalLink {
    Follow,
    Refuse,
}

impl Dir {
    /// Opens a directory by a path that is trusted: links above the last part are followed.
    pub fn open(path: impl AsRef<Path>, link: FinalLink) -> Result<Self, OpenDirError> {
        Self::open_for(path, link, Access::List)
    }

    /// The same, for less than listing.
    pub fn open_for(
        path: impl AsRef<Path>,
        link: FinalLink,
        access: Access,
    ) -> Result<Self, OpenDirError> {
        let path = path.as_ref();
        let flags = match link {
            FinalLink::Follow => access.flags() - OFlags::NOFOLLOW,
            FinalLink::Refuse => access.flags(),
        };
        let opened = rustix::io::retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()));
        let at = || path.to_owned();
        match opened {
            Ok(fd) => Ok(Self { fd, access, rules: Rules::default() }),
            Err(Errno::NOENT) => Err(OpenDirError::Missing { path: at() }),
            Err(Errno::NOTDIR | Errno::LOOP) => Err(match path.is_symlink() {
                true => OpenDirError::Link { path: at() },
                false => OpenDirError::NotDirectory { path: at() },
            }),
            Err(error) => Err(OpenDirError::System { path: at(), error }),
        }
    }

    /// Takes over a descriptor that was opened for reading a directory.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd, access: Access::List, rules: Rules::default() }
    }

    /// Takes over a descriptor that was opened with `O_PATH`.
    pub fn from_lookup_fd(fd: OwnedFd) -> Self {
        Self { fd, access: Access::Lookup, rules: Rules::default() }
    }

    /// For this handle, and those opened from it.
    pub fn with_resolver(mut self, resolver: Resolver) -> Self {
        self.rules.resolver = resolver;
        self
    }

    /// For this handle, and those opened from it.
    pub fn with_mounts(mut self, mounts: Mounts) -> Self {
        self.rules.mounts = mounts;
        self
    }

    /// One more descriptor for the same directory.
    pub fn try_clone(&self) -> Result<Self, OpenDirError> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)
            .map_err(|error| OpenDirError::System { path: PathBuf::from("."), error })?;
        Ok(self.sibling(fd, self.access))
    }

    /// Opens a directory beneath this one.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Result<Self, OpenDirError> {
        self.open_dir_for(path, Access::List)
    }

    /// The same, for less than listing.
    pub fn open_dir_for(
        &self,
        path: impl AsRef<Path>,
        access: Access,
    ) -> Result<Self, OpenDirError> {
        let path = BeneathPath::parse(path.as_ref())?;
        let fd = self.rules.open_dir(self.fd.as_fd(), path, access)?;
        Ok(self.sibling(fd, access))
    }

    /// The same; nothing where no directory is.
    pub fn open_dir_if_exists(&self, path: impl AsRef<Path>) -> Result<Option<Self>, OpenDirError> {
        match self.open_dir(path) {
            Ok(opened) => Ok(Some(opened)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A handle with the same rules.
    pub(crate) fn sibling(&self, fd: OwnedFd, access: Access) -> Self {
        Self::with_rules(fd, access, self.rules)
    }

    pub(crate) fn with_rules(fd: OwnedFd, access: Access, rules: Rules) -> Self {
        Self { fd, access, rules }
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn rules(&self) -> Rules {
        self.rules
    }

    /// The directory that holds an entry, and the entry's name there.
    pub(crate) fn parent_of<'a, E>(&self, path: &'a Path) -> Result<(Parent<'_>, &'a OsStr), E>
    where
        E: From<crate::path::PathError> + From<OpenDirError>,
    {
        let (above, name) = BeneathPath::parse(path)?.split()?;
        if above.is_empty() {
            return Ok((Parent::Itself(self.fd.as_fd()), name));
        }
        let fd = self.rules.open_dir(self.fd.as_fd(), above, Access::Lookup)?;
        Ok((Parent::Opened(fd), name))
    }
}

/// The directory that an entry is in: often the one at hand.
pub(crate) enum Parent<'a> {
    Itself(BorrowedFd<'a>),
    Opened(OwnedFd),
}

impl AsFd for Parent<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Itself(fd) => *fd,
            Self::Opened(fd) => fd.as_fd(),
        }
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Dir> for OwnedFd {
    fn from(dir: Dir) -> Self {
        dir.fd
    }
}

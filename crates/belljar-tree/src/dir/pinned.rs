//! A handle on one entry that stays on it, whatever becomes of the name.
//!
//! For callers that look at an entry, decide, and then change that very entry and no other.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;

use super::Dir;
use crate::error::{Attribute, SetAttributeError, StatError};
use crate::metadata::Metadata;
use crate::path::BeneathPath;
use crate::resolve::Rules;

/// An entry that was looked at. Nothing was opened: its mode is no obstacle, and a FIFO does not block.
#[derive(Debug)]
pub struct PinnedEntry {
    path: PathBuf,
    metadata: Metadata,
    inode: Inode,
}

impl Dir {
    /// Pins an entry; of a link, the link itself. The empty path is the directory itself.
    pub fn pin(&self, path: impl AsRef<Path>) -> Result<PinnedEntry, StatError> {
        let path = path.as_ref();
        let pinned = match BeneathPath::parse(path)?.is_empty() {
            true => Inode::pin(self.rules(), self.as_fd(), OsStr::new(".")),
            false => {
                let (parent, name) = self.parent_of::<StatError>(path)?;
                Inode::pin(self.rules(), parent.as_fd(), name)
            }
        };
        match pinned {
            Ok((inode, metadata)) => Ok(PinnedEntry { path: path.to_owned(), metadata, inode }),
            Err(Errno::NOENT) => Err(StatError::Missing { path: path.to_owned() }),
            Err(error) => Err(StatError::System { path: path.to_owned(), error }),
        }
    }
}

impl PinnedEntry {
    /// As it was when it was pinned.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Sets the permission bits of this entry, even if another one has its name by now.
    pub fn set_mode(&self, mode: u32) -> Result<(), SetAttributeError> {
        let path = || self.path.clone();
        if self.metadata.is_symlink() {
            return Err(SetAttributeError::Link { path: path() });
        }
        self.inode.set_mode(Mode::from_raw_mode(mode as _)).map_err(|error| match error {
            Errno::NOENT => SetAttributeError::Missing { path: path() },
            error => SetAttributeError::System { path: path(), attribute: Attribute::Mode, error },
        })
    }
}

#[cfg(target_os = "linux")]
#[derive(Debug)]
pub(crate) struct Inode {
    fd: std::os::fd::OwnedFd,
}

#[cfg(target_os = "linux")]
impl Inode {
    pub(crate) fn pin(
        rules: Rules,
        parent: BorrowedFd<'_>,
        name: &OsStr,
    ) -> Result<(Self, Metadata), Errno> {
        let fd = rules.open_name(parent, name, rustix::fs::OFlags::PATH)?;
        let metadata = Metadata::from_stat(rustix::fs::fstat(&fd)?);
        Ok((Self { fd }, metadata))
    }

    /// Must not be called for a link: `/proc` would lead on to its target.
    pub(crate) fn set_mode(&self, mode: Mode) -> Result<(), Errno> {
        use std::os::fd::AsRawFd;
        // A descriptor made with `O_PATH` has no `fchmod`, so its entry in `/proc` has to do.
        match rustix::fs::chmod(format!("/proc/self/fd/{}", self.fd.as_raw_fd()), mode) {
            Err(Errno::NOENT) => Err(Errno::OPNOTSUPP), // no `/proc` is mounted
            set => set,
        }
    }
}

/// Without `O_PATH`: the name is checked again right before it is used.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(crate) struct Inode {
    parent: std::os::fd::OwnedFd,
    name: std::ffi::OsString,
    identity: crate::metadata::Identity,
}

#[cfg(not(target_os = "linux"))]
impl Inode {
    pub(crate) fn pin(
        _: Rules,
        parent: BorrowedFd<'_>,
        name: &OsStr,
    ) -> Result<(Self, Metadata), Errno> {
        use rustix::fs::{AtFlags, statat};
        let metadata = Metadata::from_stat(statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?);
        let parent = rustix::io::fcntl_dupfd_cloexec(parent, 0)?;
        let identity = metadata.identity();
        Ok((Self { parent, name: name.to_owned(), identity }, metadata))
    }

    pub(crate) fn set_mode(&self, mode: Mode) -> Result<(), Errno> {
        use rustix::fs::{AtFlags, chmodat, statat};
        let found = statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        if Metadata::from_stat(found).identity() != self.identity {
            return Err(Errno::NOENT);
        }
        chmodat(&self.parent, &self.name, mode, AtFlags::SYMLINK_NOFOLLOW)
    }
}

//! Looks at entries, and sets their mode, owner and times, never those of a link's target.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Gid, Mode, Timestamps, Uid, chownat, fstat, statat, utimensat};
use rustix::io::Errno;

use super::Dir;
use super::pinned::Inode;
use crate::error::{Attribute, SetAttributeError, StatError, SyncError};
use crate::metadata::Metadata;
use crate::path::BeneathPath;
use crate::resolve::{Access, Rules};

impl Dir {
    /// What an entry is; of a link, the link itself.
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Metadata, StatError> {
        let path = path.as_ref();
        let stat = match BeneathPath::parse(path)?.is_empty() {
            true => fstat(self.as_fd()),
            false => {
                let (parent, name) = self.parent_of::<StatError>(path)?;
                statat(parent.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)
            }
        };
        match stat {
            Ok(stat) => Ok(Metadata::from_stat(stat)),
            Err(Errno::NOENT) => Err(StatError::Missing { path: path.to_owned() }),
            Err(error) => Err(StatError::System { path: path.to_owned(), error }),
        }
    }

    /// The same; nothing where nothing is, or where something above it is not a directory.
    pub fn stat_if_exists(&self, path: impl AsRef<Path>) -> Result<Option<Metadata>, StatError> {
        match self.stat(path) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets the permission bits, whatever they are now: an entry with mode 0 is no obstacle.
    pub fn set_mode(&self, path: impl AsRef<Path>, mode: u32) -> Result<(), SetAttributeError> {
        let path = path.as_ref();
        let mode = Mode::from_raw_mode(mode as _);
        let set = match BeneathPath::parse(path)?.is_empty() {
            true => change_mode_at(self.rules(), self.as_fd(), OsStr::new("."), |_| mode),
            false => {
                let (parent, name) = self.parent_of::<SetAttributeError>(path)?;
                change_mode_at(self.rules(), parent.as_fd(), name, |_| mode)
            }
        };
        match set {
            Ok(_) => Ok(()),
            Err(Errno::LOOP) => Err(SetAttributeError::Link { path: path.to_owned() }),
            Err(error) => Err(set_failed(path, Attribute::Mode, error)),
        }
    }

    /// Sets the owner of an entry; of a link, the link's own.
    pub fn set_owner(
        &self,
        path: impl AsRef<Path>,
        uid: u32,
        gid: u32,
    ) -> Result<(), SetAttributeError> {
        let path = path.as_ref();
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        let set = match BeneathPath::parse(path)?.is_empty() {
            true => chownat(self.as_fd(), ".", uid, gid, AtFlags::SYMLINK_NOFOLLOW),
            false => {
                let (parent, name) = self.parent_of::<SetAttributeError>(path)?;
                chownat(parent.as_fd(), name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            }
        };
        set.map_err(|error| set_failed(path, Attribute::Owner, error))
    }

    /// Sets the times of an entry; of a link, the link's own.
    pub fn set_times(
        &self,
        path: impl AsRef<Path>,
        times: &Timestamps,
    ) -> Result<(), SetAttributeError> {
        let path = path.as_ref();
        let set = match BeneathPath::parse(path)?.is_empty() {
            true => utimensat(self.as_fd(), ".", times, AtFlags::SYMLINK_NOFOLLOW),
            false => {
                let (parent, name) = self.parent_of::<SetAttributeError>(path)?;
                utimensat(parent.as_fd(), name, times, AtFlags::SYMLINK_NOFOLLOW)
            }
        };
        set.map_err(|error| set_failed(path, Attribute::Times, error))
    }

    /// Puts the names of a directory on disk.
    pub fn sync(&self, path: impl AsRef<Path>) -> Result<(), SyncError> {
        let path = path.as_ref();
        let failed = |error| SyncError::System { path: path.to_owned(), error };
        if path.as_os_str().is_empty() && self.access() == Access::List {
            return rustix::fs::fsync(self.as_fd()).map_err(failed);
        }
        rustix::fs::fsync(self.open_dir(path)?).map_err(failed)
    }
}

fn set_failed(path: &Path, attribute: Attribute, error: Errno) -> SetAttributeError {
    let path = path.to_owned();
    match error {
        Errno::NOENT => SetAttributeError::Missing { path },
        error => SetAttributeError::System { path, attribute, error },
    }
}

/// Changes the mode of one entry, and gives what the entry was. `ELOOP`: a link.
pub(crate) fn change_mode_at(
    rules: Rules,
    parent: BorrowedFd<'_>,
    name: &OsStr,
    change: impl FnOnce(Mode) -> Mode,
) -> Result<Metadata, Errno> {
    let (inode, found) = Inode::pin(rules, parent, name)?;
    if found.is_symlink() {
        return Err(Errno::LOOP);
    }
    inode.set_mode(change(Mode::from_raw_mode(found.mode() as _)))?;
    Ok(found)
}

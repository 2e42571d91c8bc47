//! Makes, moves and removes names: links, renames, unlinks.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::{AtFlags, linkat, readlinkat, symlinkat, unlinkat};
use rustix::io::Errno;

use super::Dir;
use crate::error::{
    HardLinkError, ReadLinkError, RemoveDirError, RenameError, SymlinkError, UnlinkError,
};

/// What a rename does where something is already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// What is there is replaced.
    Replace,
    /// It stays, and the rename fails.
    NoReplace,
    /// Both change places.
    Exchange,
}

impl Dir {
    /// The target of a symbolic link, as it is written.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<OsString, ReadLinkError> {
        let path = path.as_ref();
        let (parent, name) = self.parent_of::<ReadLinkError>(path)?;
        let at = || path.to_owned();
        match readlinkat(parent.as_fd(), name, Vec::new()) {
            Ok(target) => Ok(OsString::from_vec(target.into_bytes())),
            Err(Errno::NOENT) => Err(ReadLinkError::Missing { path: at() }),
            Err(Errno::INVAL) => Err(ReadLinkError::NotLink { path: at() }),
            Err(error) => Err(ReadLinkError::System { path: at(), error }),
        }
    }

    /// Makes a symbolic link, whose target may be anything: nothing here follows it.
    pub fn symlink(
        &self,
        target: impl AsRef<OsStr>,
        path: impl AsRef<Path>,
    ) -> Result<(), SymlinkError> {
        let path = path.as_ref();
        let (parent, name) = self.parent_of::<SymlinkError>(path)?;
        match symlinkat(target.as_ref(), parent.as_fd(), name) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => Err(SymlinkError::Exists { path: path.to_owned() }),
            Err(error) => Err(SymlinkError::System { path: path.to_owned(), error }),
        }
    }

    /// Gives a file one more name. A symbolic link is linked itself.
    pub fn hard_link(
        &self,
        from: impl AsRef<Path>,
        to_dir: &Self,
        to: impl AsRef<Path>,
    ) -> Result<(), HardLinkError> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let (from_parent, from_name) = self.parent_of::<HardLinkError>(from)?;
        let (to_parent, to_name) = to_dir.parent_of::<HardLinkError>(to)?;
        let linked =
            linkat(from_parent.as_fd(), from_name, to_parent.as_fd(), to_name, AtFlags::empty());
        let (from, to) = (from.to_owned(), to.to_owned());
        match linked {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) => Err(HardLinkError::Missing { from }),
            Err(Errno::EXIST) => Err(HardLinkError::Exists { to }),
            Err(Errno::MLINK) => Err(HardLinkError::TooManyNames { from }),
            Err(Errno::XDEV) => Err(HardLinkError::CrossDevice { from, to }),
            Err(error) => Err(HardLinkError::System { from, to, error }),
        }
    }

    /// Moves an entry, perhaps to another directory.
    pub fn rename(
        &self,
        from: impl AsRef<Path>,
        to_dir: &Self,
        to: impl AsRef<Path>,
        mode: RenameMode,
    ) -> Result<(), RenameError> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let (from_parent, from_name) = self.parent_of::<RenameError>(from)?;
        let (to_parent, to_name) = to_dir.parent_of::<RenameError>(to)?;
        let renamed =
            rename_at((from_parent.as_fd(), from_name), (to_parent.as_fd(), to_name), mode);
        let (from, to) = (from.to_owned(), to.to_owned());
        match (renamed, mode) {
            (Ok(()), _) => Ok(()),
            (Err(Errno::NOENT), _) => Err(RenameError::Missing { from, to }),
            (Err(Errno::EXIST | Errno::NOTEMPTY), _) => Err(RenameError::Exists { to }),
            (Err(Errno::XDEV), _) => Err(RenameError::CrossDevice { from, to }),
            (
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP),
                RenameMode::NoReplace | RenameMode::Exchange,
            ) if !to.starts_with(&from) => Err(RenameError::Unsupported { to }),
            (Err(error), _) => Err(RenameError::System { from, to, error }),
        }
    }

    /// Removes a name that is not a directory's.
    pub fn unlink(&self, path: impl AsRef<Path>) -> Result<(), UnlinkError> {
        let path = path.as_ref();
        let (parent, name) = self.parent_of::<UnlinkError>(path)?;
        let at = || path.to_owned();
        match unlinkat(parent.as_fd(), name, AtFlags::empty()) {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) => Err(UnlinkError::Missing { path: at() }),
            Err(Errno::ISDIR) => Err(UnlinkError::IsDirectory { path: at() }),
            // POSIX has this error for directories.
            Err(Errno::PERM) if self.stat(path).is_ok_and(|found| found.is_dir()) => {
                Err(UnlinkError::IsDirectory { path: at() })
            }
            Err(error) => Err(UnlinkError::System { path: at(), error }),
        }
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<(), RemoveDirError> {
        let path = path.as_ref();
        let (parent, name) = self.parent_of::<RemoveDirError>(path)?;
        let at = || path.to_owned();
        match unlinkat(parent.as_fd(), name, AtFlags::REMOVEDIR) {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) => Err(RemoveDirError::Missing { path: at() }),
            Err(Errno::NOTDIR) => Err(RemoveDirError::NotDirectory { path: at() }),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Err(RemoveDirError::NotEmpty { path: at() }),
            Err(Errno::BUSY) => Err(RemoveDirError::Mount { path: at() }),
            Err(error) => Err(RemoveDirError::System { path: at(), error }),
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "macos"))]
fn rename_at(
    (from_dir, from): (BorrowedFd<'_>, &OsStr),
    (to_dir, to): (BorrowedFd<'_>, &OsStr),
    mode: RenameMode,
) -> Result<(), Errno> {
    use rustix::fs::{RenameFlags, renameat, renameat_with};
    match mode {
        RenameMode::Replace => renameat(from_dir, from, to_dir, to),
        RenameMode::NoReplace => renameat_with(from_dir, from, to_dir, to, RenameFlags::NOREPLACE),
        RenameMode::Exchange => renameat_with(from_dir, from, to_dir, to, RenameFlags::EXCHANGE),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn rename_at(
    (from_dir, from): (BorrowedFd<'_>, &OsStr),
    (to_dir, to): (BorrowedFd<'_>, &OsStr),
    mode: RenameMode,
) -> Result<(), Errno> {
    match mode {
        RenameMode::Replace => rustix::fs::renameat(from_dir, from, to_dir, to),
        RenameMode::NoReplace | RenameMode::Exchange => Err(Errno::NOSYS),
    }
}

//! Resolution one name at a time, each opened from the directory before it without following a link.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, openat, statat};
use rustix::io::Errno;

use super::mount::MountId;
use super::{Access, Mounts, retry};
use crate::error::OpenDirError;
use crate::path::BeneathPath;

pub(super) fn open_dir(
    root: BorrowedFd<'_>,
    path: BeneathPath<'_>,
    access: Access,
    mounts: Mounts,
) -> Result<OwnedFd, OpenDirError> {
    let whole = |error| OpenDirError::System { path: path.as_path().to_owned(), error };
    let mount = match mounts {
        Mounts::Cross => None,
        Mounts::Refuse => Some(MountId::of(root).map_err(whole)?),
    };
    let mut names = path.names().peekable();
    if names.peek().is_none() {
        return open_one(root, OsStr::new("."), access.flags()).map_err(whole);
    }
    let mut reached: Option<OwnedFd> = None;
    let mut at = PathBuf::new();
    while let Some(name) = names.next() {
        at.push(name);
        let parent = reached.as_ref().map_or(root, AsFd::as_fd);
        let access = if names.peek().is_some() { Access::Lookup } else { access };
        let opened = open_one(parent, name, access.flags()).map_err(|error| match error {
            Errno::NOENT => OpenDirError::Missing { path: path.as_path().to_owned() },
            error => refused(parent, name, at.clone(), error),
        })?;
        if let Some(mount) = &mount
            && MountId::of(opened.as_fd()).map_err(whole)? != *mount
        {
            return Err(OpenDirError::Mount { path: at });
        }
        reached = Some(opened);
    }
    reached.ok_or_else(|| whole(Errno::NOENT))
}

/// A name that must not be a mount point.
pub(super) fn open_name_on_mount(
    parent: BorrowedFd<'_>,
    name: &Path,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let mount = MountId::of(parent)?;
    let opened = open_one(parent, name.as_os_str(), flags)?;
    match MountId::of(opened.as_fd())? == mount {
        true => Ok(opened),
        false => Err(Errno::XDEV),
    }
}

fn open_one(parent: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    retry(|| openat(parent, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()))
}

/// Systems differ in the error for a link where a directory is wanted, so it is looked at.
fn refused(parent: BorrowedFd<'_>, name: &OsStr, path: PathBuf, error: Errno) -> OpenDirError {
    match error {
        Errno::LOOP | Errno::NOTDIR | Errno::MLINK => {
            let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
            match stat.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
                Ok(FileType::Symlink) => OpenDirError::Link { path },
                _ => OpenDirError::NotDirectory { path },
            }
        }
        error => OpenDirError::System { path, error },
    }
}

//! Opens a path of plain names beneath a directory, without following a link in any of them.
//!
//! On Linux the kernel does it in one call, `openat2`. Elsewhere, and where that call is missing or
//! forbidden, each name is opened from the directory before it. Both refuse the same things; the
//! second way also finds out which name was refused.

#[cfg(target_os = "linux")]
mod kernel;
mod mount;
mod stepwise;

use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::OpenDirError;
use crate::path::BeneathPath;

/// How paths are resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resolver {
    /// By `openat2` where the kernel has it, else stepwise.
    #[default]
    Automatic,
    /// One name at a time, as on systems without `openat2`.
    Stepwise,
}

/// Whether a path may lead into another mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mounts {
    #[default]
    Cross,
    Refuse,
}

/// What an opened directory is good for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// It can be listed and synced, so it has to be readable.
    #[default]
    List,
    /// Names in it can be used. On Linux it need not be readable.
    Lookup,
}

impl Access {
    pub(crate) fn flags(self) -> OFlags {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match self {
            Self::List => flags | OFlags::RDONLY | OFlags::NONBLOCK,
            #[cfg(target_os = "linux")]
            Self::Lookup => flags | OFlags::PATH,
            #[cfg(not(target_os = "linux"))]
            Self::Lookup => flags | OFlags::RDONLY | OFlags::NONBLOCK,
        }
    }
}

/// The rules of a directory, which those opened from it inherit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) resolver: Resolver,
    pub(crate) mounts: Mounts,
}

impl Rules {
    /// A directory beneath `root`; the empty path is `root` itself.
    pub(crate) fn open_dir(
        self,
        root: BorrowedFd<'_>,
        path: BeneathPath<'_>,
        access: Access,
    ) -> Result<OwnedFd, OpenDirError> {
        #[cfg(target_os = "linux")]
        if self.resolver == Resolver::Automatic {
            match kernel::open_dir(root, path, access, self.mounts) {
                Ok(fd) => return Ok(fd),
                Err(Errno::NOENT) => {
                    return Err(OpenDirError::Missing { path: path.as_path().to_owned() });
                }
                // Missing, forbidden by a filter, raced, or refused: the other way finds out which, as strictly.
                Err(
                    Errno::NOSYS
                    | Errno::PERM
                    | Errno::AGAIN
                    | Errno::LOOP
                    | Errno::NOTDIR
                    | Errno::XDEV,
                ) => {}
                Err(error) => {
                    return Err(OpenDirError::System { path: path.as_path().to_owned(), error });
                }
            }
        }
        stepwise::open_dir(root, path, access, self.mounts)
    }

    /// One name of an open directory. A link as that name is refused with `ELOOP`, or with `ENOTDIR`
    /// where a directory is wanted; a mount point, if those are refused, with `EXDEV`.
    pub(crate) fn open_name(
        self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        flags: OFlags,
    ) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match self.mounts {
            // One name without a link leads nowhere but there.
            Mounts::Cross => retry(|| rustix::fs::openat(parent, name, flags, Mode::empty())),
            Mounts::Refuse => {
                #[cfg(target_os = "linux")]
                if self.resolver == Resolver::Automatic {
                    match kernel::open(parent, Path::new(name), flags, self.mounts) {
                        Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN) => {}
                        opened => return opened,
                    }
                }
                stepwise::open_name_on_mount(parent, Path::new(name), flags)
            }
        }
    }
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    rustix::io::retry_on_intr(&mut call)
}

//! Resolution by the kernel: `openat2` with flags that forbid every way out.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::{Access, Mounts};
use crate::path::BeneathPath;

/// The kernel takes no path of more than 4095 bytes at once, and a run can make one that is longer.
const LONGEST_AT_ONCE: usize = 3000;
/// `EAGAIN` says that something was renamed meanwhile, or that a file is leased.
const MAX_TRIES: u32 = 16;

/// Kernels before 5.6 do not have the call, and do not get it while they run.
static IS_MISSING: AtomicBool = AtomicBool::new(false);

pub(super) fn open_dir(
    root: BorrowedFd<'_>,
    path: BeneathPath<'_>,
    access: Access,
    mounts: Mounts,
) -> Result<OwnedFd, Errno> {
    let whole = path.as_path();
    if whole.as_os_str().len() <= LONGEST_AT_ONCE {
        let whole = if whole.as_os_str().is_empty() { Path::new(".") } else { whole };
        return open(root, whole, access.flags(), mounts);
    }
    let mut reached: Option<OwnedFd> = None;
    let mut part = PathBuf::new();
    for name in path.names() {
        if part.as_os_str().len() + name.len() >= LONGEST_AT_ONCE && !part.as_os_str().is_empty() {
            let from = reached.as_ref().map_or(root, AsFd::as_fd);
            reached = Some(open(from, &part, Access::Lookup.flags(), mounts)?);
            part.clear();
        }
        part.push(name);
    }
    open(reached.as_ref().map_or(root, AsFd::as_fd), &part, access.flags(), mounts)
}

pub(super) fn open(
    root: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mounts: Mounts,
) -> Result<OwnedFd, Errno> {
    if IS_MISSING.load(Ordering::Relaxed) {
        return Err(Errno::NOSYS);
    }
    let mut resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    if mounts == Mounts::Refuse {
        resolve |= ResolveFlags::NO_XDEV;
    }
    let mut tries = 0;
    loop {
        match openat2(root, path, flags, Mode::empty(), resolve) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if tries < MAX_TRIES => tries += 1,
            Err(Errno::NOSYS) => {
                IS_MISSING.store(true, Ordering::Relaxed);
                return Err(Errno::NOSYS);
            }
            opened => return opened,
        }
    }
}

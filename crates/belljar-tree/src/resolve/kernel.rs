//! Resolution by the kernel: `openat2` with flags that forbid every way out.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::{Access, Mounts};
use crate::path::BeneathPath;

/// The kernel takes no path of more than 4095 bytes at once, and a run can make one that is longer.
const MAX_AT_ONCE: usize = 3000;
/// `EAGAIN` means that something was renamed meanwhile, or that a file is leased.
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
    if whole.as_os_str().len() <= MAX_AT_ONCE {
        let whole = if whole.as_os_str().is_empty() { Path::new(".") } else { whole };
        return open(root, whole, access.flags(), mounts);
    }
    let mut reached: Option<OwnedFd> = None;
    let mut part = PathBuf::new();
    for name in path.names() {
        if part.as_os_str().len() + name.len() >= MAX_AT_ONCE && !part.as_os_str().is_empty() {
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::dir::{Dir, FinalLink};
    use crate::error::OpenDirError;

    /// The other tests of this process then go the other way, too, which is as good.
    #[test]
    fn without_the_call_the_same_is_opened_and_refused() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("a/b")).unwrap();
        symlink("a", place.path().join("link")).unwrap();
        let dir = Dir::open(place.path(), FinalLink::Refuse).unwrap();
        for is_missing in [false, true] {
            IS_MISSING.store(is_missing, Ordering::Relaxed);
            let open =
                |path| open(dir.as_fd(), Path::new(path), Access::List.flags(), Mounts::Cross);
            assert_eq!(open("a/b").is_err(), is_missing);
            assert!(dir.open_dir("a/b").is_ok());
            let refused = dir.open_dir("link/b").unwrap_err();
            assert_eq!(refused, OpenDirError::Link { path: "link".into() });
        }
    }
}

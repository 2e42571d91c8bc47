//! Tells whether two open files are on the same mount, where the kernel does not refuse by itself.

use std::os::fd::BorrowedFd;

use rustix::fs::fstat;
use rustix::io::Errno;

/// The mount that an open file is on. Without a number of the kernel's, its device has to do: a bind
/// mount of the same file system then looks like the tree itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MountId {
    #[cfg(target_os = "linux")]
    Mount(u64),
    Device(u64),
}

impl MountId {
    pub(super) fn of(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        #[cfg(target_os = "linux")]
        if let Some(id) = by_statx(fd).or_else(|| by_proc(fd)) {
            return Ok(Self::Mount(id));
        }
        #[allow(clippy::unnecessary_cast, reason = "not unnecessary on every system")]
        Ok(Self::Device(fstat(fd)?.st_dev as u64))
    }
}

/// Since Linux 5.8.
#[cfg(target_os = "linux")]
fn by_statx(fd: BorrowedFd<'_>) -> Option<u64> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    let found = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
}

/// Since Linux 3.15.
#[cfg(target_os = "linux")]
fn by_proc(fd: BorrowedFd<'_>) -> Option<u64> {
    use std::os::fd::AsRawFd;
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:")).and_then(|id| id.trim().parse().ok())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn both_ways_give_the_same_number() {
        let (root, proc) =
            (std::fs::File::open("/").unwrap(), std::fs::File::open("/proc").unwrap());
        let id = by_proc(root.as_fd()).unwrap();
        assert!(by_statx(root.as_fd()).is_none_or(|statx| statx == id));
        assert_ne!(by_proc(proc.as_fd()).unwrap(), id, "the control");
    }
}

//! Calls `mount_setattr`, which `rustix` does not have yet.

use std::os::fd::{AsRawFd, BorrowedFd};

use belljar_bind::Depth;
use rustix::io::Errno;

use super::check;

bitflags_like! {
    /// What a mount forbids.
    MountAttr: u64 {
        READ_ONLY = libc::MOUNT_ATTR_RDONLY,
        NO_SUID = libc::MOUNT_ATTR_NOSUID,
        NO_DEV = libc::MOUNT_ATTR_NODEV,
        NO_EXEC = libc::MOUNT_ATTR_NOEXEC,
    }
}

/// Sets attributes on a mount; never clears one, which an ordinary user may not.
pub fn set_attributes(mount: BorrowedFd<'_>, set: MountAttr, depth: Depth) -> Result<(), Errno> {
    let attr = libc::mount_attr { attr_set: set.bits(), attr_clr: 0, propagation: 0, userns_fd: 0 };
    mount_setattr(mount, c"", &attr, depth)
}

/// The same for a clone that is not mounted anywhere yet, which becomes private: a clone of a shared mount is its peer,
/// so what is mounted on the clone would appear on the host, and the reverse.
pub fn set_attributes_of_clone(
    clone: BorrowedFd<'_>,
    set: MountAttr,
    depth: Depth,
) -> Result<(), Errno> {
    let attr = libc::mount_attr {
        attr_set: set.bits(),
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    mount_setattr(clone, c"", &attr, depth)
}

/// From here on no mount or unmount travels between this tree and any other.
pub fn make_private(path: &std::ffi::CStr) -> Result<(), Errno> {
    let attr =
        libc::mount_attr { attr_set: 0, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    mount_setattr(rustix::fs::CWD, path, &attr, Depth::WithSubmounts)
}

/// Owners on disk appear as the user namespace maps them.
pub fn set_id_map(mount: BorrowedFd<'_>, map: BorrowedFd<'_>, depth: Depth) -> Result<(), Errno> {
    let attr = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: map.as_raw_fd() as u64,
    };
    mount_setattr(mount, c"", &attr, depth)
}

fn mount_setattr(
    at: BorrowedFd<'_>,
    path: &std::ffi::CStr,
    attr: &libc::mount_attr,
    depth: Depth,
) -> Result<(), Errno> {
    let mut flags = if path.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    if depth == Depth::WithSubmounts {
        flags |= libc::AT_RECURSIVE;
    }
    // SAFETY: `path` ends with a NUL and `attr` is a whole `mount_attr`; both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            at.as_raw_fd(),
            path.as_ptr(),
            flags,
            std::ptr::from_ref(attr),
            size_of::<libc::mount_attr>(),
        )
    };
    check(result).map(|_| ())
}

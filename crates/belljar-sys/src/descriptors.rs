//! Closes the descriptors that a process was started with.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use rustix::io::Errno;

use crate::errno::check;

/// Closes every descriptor from `first` on.
pub fn close_from(first: RawFd) -> Result<(), Errno> {
    // No descriptor has a higher number than this, and gVisor takes one that is for negative.
    // SAFETY: only called in a process about to become another one, or that has just begun; no owner of a
    // closed descriptor is used or dropped after this.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, i32::MAX, 0) };
    match check(result) {
        Err(Errno::NOSYS) => close_each_from(first),
        other => other.map(|_| ()),
    }
}

/// Some versions of gVisor have no `close_range`.
fn close_each_from(first: RawFd) -> Result<(), Errno> {
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").map_err(|_| Errno::NOSYS)?.flatten() {
        open.extend(entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()));
    }
    for fd in open.into_iter().filter(|fd| *fd >= first) {
        // SAFETY: as in `close_from`; the directory's own descriptor is closed already or fails.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

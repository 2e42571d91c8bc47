//! One entry of a hostile directory: every call names it below an open directory, and follows no link.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

/// What one attempt at an entry came to.
pub(super) enum Entry {
    Gone,
    /// A directory that is not empty, and no mount point: the kernel looks for that first.
    Full,
}

pub(super) fn unlink(parent: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<Entry, Errno> {
    if kind == FileType::Directory {
        return rmdir(parent, name);
    }
    match or_thaw(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(Entry::Gone),
        Err(Errno::ISDIR) => rmdir(parent, name),
        // What POSIX asks for where Linux says EISDIR.
        Err(Errno::PERM) => rmdir(parent, name).map_err(|_| Errno::PERM),
        Err(errno) => Err(errno),
    }
}

pub(super) fn rmdir(parent: BorrowedFd<'_>, name: &CStr) -> Result<Entry, Errno> {
    match or_thaw(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(Entry::Gone),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Entry::Full),
        Err(errno) => Err(errno),
    }
}

/// Removes a name, if need be after the flags that forbid it were taken from the entry and from the
/// directory.
fn or_thaw(parent: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> Result<(), Errno> {
    match rustix::fs::unlinkat(parent, name, flags) {
        Err(Errno::PERM) if thaw(parent, name) => rustix::fs::unlinkat(parent, name, flags),
        done => done,
    }
}

/// Whether anything was changed.
#[cfg(target_os = "linux")]
fn thaw(parent: BorrowedFd<'_>, name: &CStr) -> bool {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    let clear = |fd: BorrowedFd<'_>| {
        let frozen = IFlags::IMMUTABLE | IFlags::APPEND;
        let flags = ioctl_getflags(fd);
        flags.is_ok_and(|flags| {
            flags.intersects(frozen) && ioctl_setflags(fd, flags - frozen).is_ok()
        })
    };
    // Not blocking: it may be a FIFO. Devices cannot be made by a run.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let is_plain = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
        matches!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile | FileType::Directory)
    });
    let entry = is_plain
        && rustix::fs::openat(parent, name, flags, Mode::empty())
            .is_ok_and(|entry| clear(entry.as_fd()));
    clear(parent) || entry
}

#[cfg(not(target_os = "linux"))]
fn thaw(_: BorrowedFd<'_>, _: &CStr) -> bool {
    false
}

/// Opens a directory so that its entries can be listed and removed, whatever its mode is.
pub(super) fn open_directory(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags =
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(parent, name, flags, Mode::empty());
    let directory = match open() {
        Err(Errno::ACCESS) => {
            make_accessible(parent, name)?;
            open()?
        }
        opened => opened?,
    };
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&directory)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        // It may work all the same, as for root: what cannot be removed is told then.
        let _ = rustix::fs::fchmod(&directory, Mode::RWXU);
    }
    Ok(directory)
}

/// Mode 0700 for a directory that cannot be opened. By descriptor, so that no link is followed.
#[cfg(target_os = "linux")]
pub(super) fn make_accessible(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    // A descriptor made with O_PATH has no fchmod; its entry in /proc leads to exactly this inode.
    rustix::fs::chmod(format!("/proc/self/fd/{}", directory.as_raw_fd()), Mode::RWXU)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn make_accessible(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::SYMLINK_NOFOLLOW)
}

//! One entry of a hostile directory: every call names it below an open directory, and follows no link.

use std::ffi::{CStr, OsStr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, FileType, Mode};
use rustix::io::Errno;

use crate::dir::attributes::change_mode_at;
use crate::resolve::{Access, Mounts, Resolver, Rules};

const RULES: Rules = Rules { resolver: Resolver::Automatic, mounts: Mounts::Refuse };

/// What one attempt at an entry came to.
pub(super) enum Removed {
    Gone,
    /// A directory that is not empty, and no mount point: the kernel looks for that first.
    NotEmpty,
}

pub(super) fn unlink(
    parent: BorrowedFd<'_>,
    name: &CStr,
    kind: FileType,
) -> Result<Removed, Errno> {
    if kind == FileType::Directory {
        return rmdir(parent, name);
    }
    match unlink_thawed(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(Removed::Gone),
        Err(Errno::ISDIR) => rmdir(parent, name),
        // What POSIX asks for where Linux has EISDIR.
        Err(Errno::PERM) => rmdir(parent, name).map_err(|_| Errno::PERM),
        Err(errno) => Err(errno),
    }
}

pub(super) fn rmdir(parent: BorrowedFd<'_>, name: &CStr) -> Result<Removed, Errno> {
    match unlink_thawed(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(Removed::Gone),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Removed::NotEmpty),
        // Exchanged since it was listed.
        Err(Errno::NOTDIR) => match unlink_thawed(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(Removed::Gone),
            Err(errno) => Err(errno),
        },
        Err(errno) => Err(errno),
    }
}

/// Removes a name, if need be after the flags that forbid it were taken from the entry and from the
/// directory.
fn unlink_thawed(parent: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> Result<(), Errno> {
    match rustix::fs::unlinkat(parent, name, flags) {
        Err(Errno::PERM) if thaw(parent, name) => rustix::fs::unlinkat(parent, name, flags),
        done => done,
    }
}

/// Takes the immutable and append-only flags away. Whether anything was changed.
#[cfg(target_os = "linux")]
fn thaw(parent: BorrowedFd<'_>, name: &CStr) -> bool {
    use std::os::fd::AsFd;

    use rustix::fs::{IFlags, OFlags, ioctl_getflags, ioctl_setflags};
    let clear = |fd: BorrowedFd<'_>| {
        let frozen = IFlags::IMMUTABLE | IFlags::APPEND;
        let flags = ioctl_getflags(fd);
        flags.is_ok_and(|flags| {
            flags.intersects(frozen) && ioctl_setflags(fd, flags - frozen).is_ok()
        })
    };
    let is_plain = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
        matches!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile | FileType::Directory)
    });
    // Not blocking: it may have become a FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let entry = is_plain
        && RULES.open_name(parent, as_os(name), flags).is_ok_and(|entry| clear(entry.as_fd()));
    // A descriptor for lookups takes no such call; it is opened again.
    let parent = RULES.open_name(parent, OsStr::new("."), Access::List.flags());
    parent.is_ok_and(|parent| clear(parent.as_fd())) || entry
}

#[cfg(not(target_os = "linux"))]
fn thaw(_: BorrowedFd<'_>, _: &CStr) -> bool {
    false
}

/// Opens a directory so that its entries can be listed and removed, whatever its mode is.
pub(super) fn open_directory(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let open = || RULES.open_name(parent, as_os(name), Access::List.flags());
    let directory = match open() {
        Err(Errno::ACCESS) => {
            make_accessible(parent, name)?;
            open()?
        }
        opened => opened?,
    };
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&directory)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        // It may work all the same, as for root: what cannot be removed is reported then.
        let _ = rustix::fs::fchmod(&directory, Mode::RWXU);
    }
    Ok(directory)
}

/// Mode 0700 for a directory that cannot be opened. By descriptor, so that no link is followed.
pub(super) fn make_accessible(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(Errno::NOTDIR);
    }
    change_mode_at(RULES, parent, as_os(name), |_| Mode::RWXU).map(drop)
}

fn as_os(name: &CStr) -> &OsStr {
    OsStr::from_bytes(name.to_bytes())
}

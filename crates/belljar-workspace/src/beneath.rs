//! Entries of a tree that somebody else may be changing at this moment: every name is looked up below an open
//! directory, and no link is followed on the way or at the end.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, openat2, statat};
use rustix::io::Errno;

const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Bytes of a path that are looked up at once.
const LONGEST: usize = 3000;

/// A directory below `root`; the empty path is `root` itself.
pub(crate) fn directory(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    if path.as_os_str().len() <= LONGEST {
        return one_step(root, path);
    }
    // The kernel takes no longer path at once, and a run can make one.
    let mut reached: Option<OwnedFd> = None;
    let mut step = PathBuf::new();
    for component in path.components() {
        if step.as_os_str().len() + component.as_os_str().len() >= LONGEST {
            let next = one_step(reached.as_ref().map_or(root, AsFd::as_fd), &step)?;
            reached = Some(next);
            step.clear();
        }
        step.push(component);
    }
    one_step(reached.as_ref().map_or(root, AsFd::as_fd), &step)
}

fn one_step(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(root, path, flags, Mode::empty(), BENEATH)
}

/// The directory that holds `path`, and its name there.
pub(crate) fn parent<'a>(
    root: BorrowedFd<'_>,
    path: &'a Path,
) -> Result<(OwnedFd, &'a OsStr), Errno> {
    let name = path.file_name().ok_or(Errno::INVAL)?;
    Ok((directory(root, path.parent().unwrap_or(Path::new("")))?, name))
}

/// What is there; `None` where nothing is, or where something above it is no directory.
pub(crate) fn look(root: BorrowedFd<'_>, path: &Path) -> Result<Option<Stat>, Errno> {
    let (parent, name) = match parent(root, path) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        parent => parent?,
    };
    match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(None),
        stat => stat.map(Some),
    }
}

/// A plain file, for reading. Anything else is [`Errno::LOOP`] (a link) or [`Errno::INVAL`], and is never waited
/// for.
pub(crate) fn file(root: BorrowedFd<'_>, path: &Path) -> Result<File, Errno> {
    let (parent, name) = parent(root, path)?;
    file_in(parent.as_fd(), name)
}

/// The same in an open directory.
pub(crate) fn file_in(directory: BorrowedFd<'_>, name: &OsStr) -> Result<File, Errno> {
    // Not blocking: a FIFO would wait for a writer. A device is not opened at all.
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Symlink => return Err(Errno::LOOP),
        _ => return Err(Errno::INVAL),
    }
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&opened)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(File::from(opened)),
        _ => Err(Errno::INVAL), // it was exchanged meanwhile
    }
}

//! Empties a tree level by level: what is not empty moves up, so that depth never grows.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Dir as DirStream, FileType, Mode};
use rustix::io::Errno;

use super::entry::{Removed, make_accessible, open_directory, rmdir, unlink};
use super::{Failures, RemoveAction};
use crate::dir::create::random_digits;
use crate::dir::list::is_dot;

const MAX_NAMES_TRIED: u32 = 16;

/// A level directory that held no more than this is used again.
const SMALL_LEVEL: u64 = 100;

/// Empties `top`. The directories of the levels below are made in it.
pub(super) fn remove_levels(top: OwnedFd, failures: &mut Failures) {
    let mut below =
        NextLevel { top: top.as_fd(), names: Names::new(), made: None, moved: 0, spare: None };
    let mut level: Option<CString> = None;
    let mut entries = 0;
    loop {
        let opened = match &level {
            None => open_directory(top.as_fd(), c".").and_then(DirStream::new),
            Some(name) => open_directory(top.as_fd(), name).and_then(DirStream::new),
        };
        match opened {
            Ok(mut opened) => empty_level(&mut opened, &mut below, failures),
            Err(errno) => {
                failures.add(RemoveAction::Open, level.as_deref().unwrap_or(c"."), errno);
            }
        }
        if let Some(name) = level.take() {
            if entries <= SMALL_LEVEL && failures.first.is_none() && below.spare.is_none() {
                below.spare = Some(name);
            } else {
                let _ = rmdir(top.as_fd(), &name); // not empty only after a failure, which is reported already
            }
        }
        let Some((next, _)) = below.made.take() else { break };
        level = Some(next);
        entries = std::mem::take(&mut below.moved);
    }
    if let Some(name) = below.spare {
        let _ = rmdir(top.as_fd(), &name);
    }
}

/// Where directories go that stand in a directory of this level.
struct NextLevel<'a> {
    top: BorrowedFd<'a>,
    names: Names,
    made: Option<(CString, OwnedFd)>,
    moved: u64,
    /// An empty directory from the level before. A large one is not used again: directories do not
    /// shrink, and reading it would cost as much as when it was full.
    spare: Option<CString>,
}

impl NextLevel<'_> {
    /// Whether the name is one of the level directories.
    fn is(&self, name: &CStr) -> bool {
        let made = self.made.as_ref().map(|(made, _)| made);
        made.into_iter().chain(&self.spare).any(|own| own.as_c_str() == name)
    }

    fn make(&mut self) -> Result<(), Errno> {
        let name = match self.spare.take() {
            Some(name) => name,
            None => self.names.make_directory(self.top)?,
        };
        let directory = open_directory(self.top, &name)?;
        self.made = Some((name, directory));
        Ok(())
    }

    /// Moves a directory that is not empty out of `from`.
    fn take_in(
        &mut self,
        level: BorrowedFd<'_>,
        from: BorrowedFd<'_>,
        name: &CStr,
    ) -> Result<(), Errno> {
        if self.made.is_none() {
            match self.make() {
                // A full disk must not keep itself full: this level, which is read again, has to do.
                Ok(()) | Err(Errno::NOSPC | Errno::DQUOT) => {}
                Err(errno) => return Err(errno),
            }
        }
        let place = self.made.as_ref().map_or(level, |(_, directory)| directory.as_fd());
        let new = self.names.next();
        let rename = || rustix::fs::renameat(from, name, place, &new);
        match rename() {
            // Its own entry `..` changes, so it must be writable itself.
            Err(Errno::ACCESS) => {
                make_accessible(from, name)?;
                rename()
            }
            done => done,
        }?;
        self.moved += 1;
        Ok(())
    }
}

fn empty_level(level: &mut DirStream, below: &mut NextLevel<'_>, failures: &mut Failures) {
    each_entry(level, failures, |level, name, kind, failures| {
        if below.is(name) {
            return Progress::None;
        }
        match unlink(level, name, kind) {
            Ok(Removed::Gone) => return Progress::Made,
            Ok(Removed::NotEmpty) => {}
            Err(errno) => return failed(failures, RemoveAction::Remove, name, errno),
        }
        match open_directory(level, name).and_then(DirStream::new) {
            Ok(mut directory) => empty_directory(&mut directory, level, below, failures),
            Err(errno) => return failed(failures, RemoveAction::Open, name, errno),
        }
        match rmdir(level, name) {
            Ok(Removed::Gone) => Progress::Made,
            Ok(Removed::NotEmpty) => failed(failures, RemoveAction::Empty, name, Errno::NOTEMPTY),
            Err(errno) => failed(failures, RemoveAction::Remove, name, errno),
        }
    });
}

/// Removes every entry, and moves the directories that are not empty to the next level.
fn empty_directory(
    directory: &mut DirStream,
    level: BorrowedFd<'_>,
    below: &mut NextLevel<'_>,
    failures: &mut Failures,
) {
    each_entry(directory, failures, |directory, name, kind, failures| {
        let done = match unlink(directory, name, kind) {
            Ok(Removed::Gone) => Ok(()),
            Ok(Removed::NotEmpty) => below.take_in(level, directory, name),
            Err(errno) => Err(errno),
        };
        match done {
            Ok(()) => Progress::Made,
            Err(errno) => failed(failures, RemoveAction::Remove, name, errno),
        }
    });
}

enum Progress {
    Made,
    None,
}

fn failed(failures: &mut Failures, action: RemoveAction, name: &CStr, errno: Errno) -> Progress {
    failures.add(action, name, errno);
    Progress::None
}

/// Calls `visit` for every entry, and again until that changes nothing: some file systems leave out
/// entries while others are removed, and on a full disk the second try may find room. Only what
/// fails in the last round counts.
fn each_entry(
    directory: &mut DirStream,
    failures: &mut Failures,
    mut visit: impl FnMut(BorrowedFd<'_>, &CStr, FileType, &mut Failures) -> Progress,
) {
    loop {
        let mut progress = Progress::None;
        let mut round = Failures::default();
        while let Some(entry) = directory.read() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Errno::NOENT) => return, // another process has removed the directory
                Err(errno) => return failures.add(RemoveAction::Read, c".", errno),
            };
            let name = entry.file_name();
            if is_dot(name) {
                continue;
            }
            let fd = match directory.fd() {
                Ok(fd) => fd,
                Err(errno) => return failures.add(RemoveAction::Read, c".", errno),
            };
            if let Progress::Made = visit(fd, name, entry.file_type(), &mut round) {
                progress = Progress::Made;
            }
        }
        if let Progress::None = progress {
            failures.first = failures.first.take().or(round.first);
            return;
        }
        directory.rewind();
    }
}

/// Names that the tree does not have: it was made before they were.
struct Names {
    random: u64,
    count: u64,
}

impl Names {
    fn new() -> Self {
        Self { random: random_digits(), count: 0 }
    }

    fn next(&mut self) -> CString {
        let name = format!(".{:x}.{}", self.random, self.count);
        self.count += 1;
        CString::new(name).unwrap_or_default() // digits hold no NUL
    }

    fn make_directory(&mut self, parent: BorrowedFd<'_>) -> Result<CString, Errno> {
        for _ in 0..MAX_NAMES_TRIED {
            let name = self.next();
            match rustix::fs::mkdirat(parent, &name, Mode::RWXU) {
                Ok(()) => return Ok(name),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::EXIST)
    }
}

//! One entry on both sides: what is known of it, and whether the two differ.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::path::Path;

use belljar_spec::{Backing, Moment, OsText};
use rustix::fs::{AtFlags, FileType, Stat, StatxFlags, readlinkat, statx};

use super::beneath;
use super::bounds::LONGEST_PATH;
use super::change::{Change, Facts, Kind, What};
use super::content::{self, Content};
use super::overlay_view::Entry;

/// An entry, and how to get at it.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) directory: BorrowedFd<'a>,
    pub(super) name: &'a OsStr,
    pub(super) stat: &'a Stat,
}

impl At<'_> {
    pub(super) fn facts(self) -> Facts {
        let kind = kind(self.stat);
        let target = (kind == Kind::Link).then(|| {
            let target = readlinkat(self.directory, self.name, Vec::with_capacity(LONGEST_PATH));
            OsText::from_bytes(target.map(|target| target.into_bytes()).unwrap_or_default())
        });
        let size = match kind {
            Kind::File => u64::try_from(self.stat.st_size).unwrap_or(0),
            _ => 0,
        };
        Facts { kind, mode: self.stat.st_mode & 0o777, size, target }
    }
}

pub(super) fn kind(stat: &Stat) -> Kind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Link,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        _ => Kind::Device,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touched {
    Yes,
    No,
}

impl Touched {
    pub(super) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, Self::No) => Self::No,
            _ => Self::Yes,
        }
    }
}

pub(super) fn change(
    path: &Path,
    what: What,
    was: Option<At<'_>>,
    is: Option<(At<'_>, &Entry)>,
) -> Change {
    Change {
        path: OsText::from(path),
        what,
        before: was.map(At::facts),
        after: is.map(|(at, _)| at.facts()),
        autorun: None,
        withheld: None,
        lies: is.map(|(_, entry)| entry.lies.clone()),
        judged: false,
    }
}

pub(super) fn difference(was: At<'_>, is: At<'_>) -> Option<What> {
    let kind = (kind(was.stat), kind(is.stat));
    let content = match kind {
        (Kind::File, Kind::File) => same_content(was, is),
        (Kind::Link, Kind::Link) if was.facts().target == is.facts().target => return None,
        (Kind::Link, Kind::Link) => Content::Different,
        (one, other) if one == other => Content::Same,
        _ => return Some(What::Replaced),
    };
    let modes = (was.stat.st_mode & 0o777, is.stat.st_mode & 0o777);
    match content {
        Content::Different => Some(What::Modified),
        Content::Same if modes.0 != modes.1 => Some(What::Mode),
        Content::Same => None,
    }
}

/// What cannot be read, or is not there any more, is not known to be the same.
fn same_content(was: At<'_>, is: At<'_>) -> Content {
    if was.stat.st_size != is.stat.st_size {
        return Content::Different;
    }
    let open = |at: At<'_>| beneath::file_in(at.directory, at.name).ok();
    match (open(was), open(is)) {
        (Some(was), Some(is)) => content::compare(&was, &is).unwrap_or(Content::Different),
        _ => Content::Different,
    }
}

/// Everything in a layer is the run's; of a copy, what changed after it was made.
pub(super) fn touched(backing: Backing, stat: &Stat) -> Touched {
    match backing {
        Backing::Copy { copied } if changed(stat) < copied => Touched::No,
        Backing::Copy { .. } | Backing::Overlay { .. } => Touched::Yes,
    }
}

pub(super) fn changed(stat: &Stat) -> Moment {
    Moment { secs: stat.st_ctime, nanos: u32::try_from(stat.st_ctime_nsec).unwrap_or(0) }
}

/// When the inode came to be, where the file system knows.
pub(super) fn born(directory: BorrowedFd<'_>, name: &OsStr) -> Option<Moment> {
    let found = statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME).ok()?;
    let known = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    known.then_some(Moment { secs: found.stx_btime.tv_sec, nanos: found.stx_btime.tv_nsec })
}

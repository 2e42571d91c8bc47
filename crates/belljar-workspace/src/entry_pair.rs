//! Compares one entry of the real tree with the run's.

use std::ffi::OsStr;
use std::path::Path;

use belljar_spec::{Backing, Moment, OsText};
use belljar_tree::{ContentComparison, Dir, EntryKind, Metadata, compare_content};
use rustix::fs::{AtFlags, StatxFlags, statx};

use super::change::{Change, Facts, Kind, What};
use super::fingerprint::changed;
use super::overlay_view::OverlayEntry;

/// An entry, and how to get at it.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) directory: &'a Dir,
    pub(super) name: &'a OsStr,
    pub(super) stat: &'a Metadata,
}

impl At<'_> {
    pub(super) fn facts(self) -> Facts {
        let kind = kind(self.stat);
        let target = (kind == Kind::Link)
            .then(|| OsText::from(self.directory.read_link(self.name).unwrap_or_default()));
        let size = match kind {
            Kind::File => self.stat.size(),
            _ => 0,
        };
        Facts { kind, mode: self.stat.mode() & 0o777, size, target }
    }
}

pub(super) fn kind(found: &Metadata) -> Kind {
    match found.kind() {
        EntryKind::File => Kind::File,
        EntryKind::Directory => Kind::Directory,
        EntryKind::Symlink => Kind::Link,
        EntryKind::Fifo => Kind::Fifo,
        EntryKind::Socket => Kind::Socket,
        EntryKind::CharacterDevice | EntryKind::BlockDevice | EntryKind::Unknown => Kind::Device,
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
    is: Option<(At<'_>, &OverlayEntry)>,
) -> Change {
    Change {
        path: OsText::from(path),
        what,
        before: was.map(At::facts),
        after: is.map(|(at, _)| at.facts()),
        autorun: None,
        withheld: None,
        place: is.map(|(_, entry)| entry.place.clone()),
        judged: false,
    }
}

pub(super) fn difference(was: At<'_>, is: At<'_>) -> Option<What> {
    let kind = (kind(was.stat), kind(is.stat));
    let content = match kind {
        (Kind::File, Kind::File) => same_content(was, is),
        (Kind::Link, Kind::Link) if was.facts().target == is.facts().target => return None,
        (Kind::Link, Kind::Link) => ContentComparison::Different,
        (one, other) if one == other => ContentComparison::Same,
        _ => return Some(What::Replaced),
    };
    let modes = (was.stat.mode() & 0o777, is.stat.mode() & 0o777);
    match content {
        ContentComparison::Different => Some(What::Modified),
        ContentComparison::Same if modes.0 != modes.1 => Some(What::Mode),
        ContentComparison::Same => None,
    }
}

/// What cannot be read, or is not there any more, is not known to be the same.
fn same_content(was: At<'_>, is: At<'_>) -> ContentComparison {
    if was.stat.size() != is.stat.size() {
        return ContentComparison::Different;
    }
    let open = |at: At<'_>| at.directory.open_file(at.name).ok();
    match (open(was), open(is)) {
        (Some(was), Some(is)) => compare_content(&was, &is).unwrap_or(ContentComparison::Different),
        _ => ContentComparison::Different,
    }
}

/// Everything in a layer is the run's; of a copy, what changed after it was made.
pub(super) fn touched(backing: Backing, stat: &Metadata) -> Touched {
    match backing {
        Backing::Copy { copied } if changed(stat) < copied => Touched::No,
        Backing::Copy { .. } | Backing::Overlay { .. } => Touched::Yes,
    }
}

/// When the inode came to be, where the file system knows.
pub(super) fn born(directory: &Dir, name: &OsStr) -> Option<Moment> {
    let found = statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME).ok()?;
    let known = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    known.then_some(Moment { secs: found.stx_btime.tv_sec, nanos: found.stx_btime.tv_nsec })
}

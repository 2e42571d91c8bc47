//! Walks a tree: down into one directory after the other, and up again.
//!
//! Only the lowest levels hold descriptors. On the way up a parent directory is opened through `..`, and is continued
//! only where it is the very one that was left; in the tree itself it may have been moved meanwhile.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat, fchmod, fstat, mkdirat, openat, statat};
use rustix::io::Errno;

use super::SnapshotError;
use super::copy::{Copier, CopyFailure, CopyTarget, Missed, failed, unread};
use super::index::{EntryKind, IndexEntry, NOWHERE, Names, ROOT};
use super::open::Directory;

/// Each has three descriptors.
const MAX_OPEN: usize = 40;
/// Somebody who makes new ones as fast as they are copied is not followed for ever.
const MAX_ENTRIES: u64 = 4_000_000;
/// Bytes for the names of directories that are yet to be gone into, and for the levels above.
const MAX_HELD: usize = 256 << 20;
/// What a name takes besides its bytes.
const NAME: usize = 48;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

#[derive(Debug)]
struct WalkLevel {
    /// In the level above.
    name: CString,
    number: u64,
    stat: Stat,
    source: Option<OwnedFd>,
    target: Option<OwnedFd>,
    before: Option<OwnedFd>,
    has_before: bool,
    /// The modes that the two had before they were opened up.
    lock: Option<Mode>,
    before_lock: Option<Mode>,
    /// What the snapshot before has here, and was not seen yet.
    was: Names,
    /// Directories that are yet to be gone into.
    pending: Vec<CString>,
    is_empty: bool,
    is_marked: bool,
    attributes: u64,
    /// Of the directory itself, in the snapshot before.
    before_itself: Option<IndexEntry>,
}

pub(super) struct SnapshotWalk<'a> {
    from: &'a Path,
    pub(super) copier: Copier,
    /// The roots, for what has to be found again.
    source: OwnedFd,
    before: Option<OwnedFd>,
    levels: Vec<WalkLevel>,
    seen: u64,
    held: usize,
    pub(super) bounds: Bounds,
    cancel: &'a AtomicBool,
}

/// How large a tree can be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) entries: u64,
    pub(super) held: usize,
    /// On disk, of what is copied anew.
    pub(super) bytes: u64,
}

impl<'a> SnapshotWalk<'a> {
    pub(super) fn new(
        from: &'a Path,
        copier: Copier,
        source: OwnedFd,
        cancel: &'a AtomicBool,
    ) -> Self {
        let bounds = Bounds { entries: MAX_ENTRIES, held: MAX_HELD, bytes: u64::MAX };
        let levels = Vec::new();
        Self { from, copier, source, before: None, levels, seen: 0, held: 0, bounds, cancel }
    }

    pub(super) fn run(
        &mut self,
        source: Directory,
        target: OwnedFd,
        before: Option<Directory>,
    ) -> Result<(), SnapshotError> {
        let doing = "opening the copy";
        let root = rustix::io::fcntl_dupfd_cloexec(&target, 0)
            .map_err(|error| self.failure(&[], CopyFailure { doing, error }))?;
        self.before = before.as_ref().and_then(|before| before.fd_of_same().ok());
        let walked = self.all(source, target, before, &root);
        if walked.is_err() {
            // Whatever was opened up is closed again.
            while let Some(level) = self.levels.pop() {
                if let Some(above) = self.levels.len().checked_sub(1) {
                    self.reopen(above, &level);
                }
                close_up(&level);
            }
        }
        walked
    }

    fn all(
        &mut self,
        source: Directory,
        target: OwnedFd,
        before: Option<Directory>,
        root: &OwnedFd,
    ) -> Result<(), SnapshotError> {
        // The root is compared with the former root: it has no name that could be looked up.
        let was = self.copier.names_of(NOWHERE).remove(&b""[..]);
        self.push(CString::default(), source, target, before.map(|it| (it, ROOT)), was, root)?;
        while let Some(level) = self.levels.last_mut() {
            match level.pending.pop() {
                Some(name) => self.enter(name, root)?,
                None => self.leave(root)?,
            }
        }
        self.look_up() // the last file counts too
    }

    /// Goes into a directory of the lowest level.
    fn enter(&mut self, name: CString, root: &OwnedFd) -> Result<(), SnapshotError> {
        self.look_up()?;
        self.held = self.held.saturating_sub(NAME + name.count_bytes());
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        let was = level.was.remove(name.to_bytes());
        let (Some(source), Some(target)) = (&level.source, &level.target) else {
            return Ok(()); // lost, and counted
        };
        let opened = match Directory::open(source, &name).map_err(unread("opening it")) {
            Ok(opened) => opened,
            Err(missed) => return self.missed(&[&name], missed, was),
        };
        // On another file system, or a separate volume.
        if opened.stat.st_dev != level.stat.st_dev {
            opened.close_up();
            return self.missed(&[&name], Missed::LeftOut, was);
        }
        let made = mkdirat(target, &name, Mode::RWXU)
            .and_then(|()| openat(target, &name, DIRECTORY, Mode::empty()))
            .map_err(failed("making the copy"));
        let made = match made {
            Ok(made) => made,
            Err(missed) => {
                opened.close_up();
                return self.missed(&[&name], missed, was);
            }
        };
        let directory = was.filter(|was| was.kind == EntryKind::Directory);
        let before = match (&directory, &level.before) {
            (Some(was), Some(before)) => {
                Directory::open(before, &name).ok().map(|it| (it, was.number))
            }
            _ => None,
        };
        if let Some(was) = was.filter(|was| was.kind != EntryKind::Directory) {
            self.copier.count_removed(&was);
        }
        // If its copy cannot be opened, the index still has the names.
        let names = match (&before, directory) {
            (None, Some(was)) => Some(self.copier.names_of(was.number)),
            _ => None,
        };
        self.push(name, opened, made, before, directory, root)?;
        if let (Some(names), Some(level)) = (names, self.levels.last_mut()) {
            level.was = names;
        }
        Ok(())
    }

    fn push(
        &mut self,
        name: CString,
        source: Directory,
        target: OwnedFd,
        before: Option<(Directory, u64)>,
        before_itself: Option<IndexEntry>,
        root: &OwnedFd,
    ) -> Result<(), SnapshotError> {
        let was = before.as_ref().map(|(_, number)| self.copier.names_of(*number));
        let (before, before_lock) = match before {
            Some((before, _)) => (Some(before.fd), before.lock),
            None => (None, None),
        };
        self.held += NAME + name.count_bytes();
        let mut level = WalkLevel {
            name,
            number: self.copier.number_directory(),
            stat: source.stat,
            source: Some(source.fd),
            target: Some(target),
            has_before: before.is_some(),
            before,
            lock: source.lock,
            before_lock,
            was: was.unwrap_or_default(),
            pending: Vec::new(),
            is_empty: true,
            is_marked: false,
            attributes: 0,
            before_itself,
        };
        let filled = self.fill(&mut level, root);
        self.levels.push(level); // even then: it may have to be closed again
        filled?;
        if let Some(far) = self.levels.len().checked_sub(MAX_OPEN + 1)
            && let Some(level) = self.levels.get_mut(far)
        {
            (level.source, level.target, level.before) = (None, None, None);
        }
        Ok(())
    }

    /// Copies the attributes, and everything in a directory but its directories.
    fn fill(&mut self, level: &mut WalkLevel, root: &OwnedFd) -> Result<(), SnapshotError> {
        let (Some(source), Some(target)) = (&level.source, &level.target) else { return Ok(()) };
        let at = level.name.as_c_str();
        match self.copier.mark_directory(source, target) {
            Ok(found) => (level.is_marked, level.attributes) = (found.is_marked, found.hash()),
            Err(trouble) => return Err(self.failure(&[at], trouble)),
        }
        let place = CopyTarget {
            source: source.as_fd(),
            target: target.as_fd(),
            before: level.before.as_ref().map(AsFd::as_fd),
            root: root.as_fd(),
        };
        let unlisted = |error| CopyFailure { doing: "reading it", error };
        let mut listing =
            Dir::read_from(source).map_err(|error| self.failure(&[at], unlisted(error)))?;
        while let Some(entry) = listing.read() {
            let entry = match entry {
                Err(Errno::NOENT) => break, // removed meanwhile
                entry => entry.map_err(|error| self.failure(&[at], unlisted(error)))?,
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.seen += 1;
            self.look_up()?;
            level.is_empty = false;
            let stat = match statat(source, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(error) => {
                    let was = level.was.remove(name.to_bytes());
                    self.missed(&[at, name], unread("looking at it")(error), was)?;
                    continue;
                }
            };
            let Some(kind) = EntryKind::of(&stat) else {
                let was = level.was.remove(name.to_bytes());
                self.missed(&[at, name], Missed::LeftOut, was)?;
                continue;
            };
            if kind == EntryKind::Directory {
                self.held += NAME + name.count_bytes();
                level.pending.push(name.to_owned());
                continue;
            }
            let was = level.was.remove(name.to_bytes());
            match self.copier.entry(place, name, (kind, &stat), was) {
                Ok(entry) => self.copier.note(level.number, name, entry),
                Err(missed) => self.missed(&[at, name], missed, was)?,
            }
        }
        Ok(())
    }

    /// Whether the walk continues.
    fn look_up(&self) -> Result<(), SnapshotError> {
        let path = || self.from.to_owned();
        if self.cancel.load(Ordering::Relaxed) {
            return Err(SnapshotError::Cancelled);
        }
        if self.seen > self.bounds.entries {
            return Err(SnapshotError::Endless { path: path(), limit: self.bounds.entries });
        }
        if self.copier.taken.on_disk > self.bounds.bytes {
            return Err(SnapshotError::TooLarge { path: path(), limit: self.bounds.bytes });
        }
        let levels = self.levels.len() * size_of::<WalkLevel>();
        if self.held + levels > self.bounds.held {
            return Err(SnapshotError::TooWide { path: path(), limit: self.bounds.held });
        }
        Ok(())
    }

    /// One that is not in the copy. Where it was before, it is one that was removed.
    fn missed(
        &mut self,
        names: &[&CStr],
        missed: Missed,
        was: Option<IndexEntry>,
    ) -> Result<(), SnapshotError> {
        match missed {
            Missed::LeftOut => {
                self.copier.taken.left_out += 1;
                if let Some(was) = was {
                    self.copier.count_removed(&was);
                }
                Ok(())
            }
            Missed::Failed(trouble) => Err(self.failure(names, trouble)),
        }
    }

    fn leave(&mut self, root: &OwnedFd) -> Result<(), SnapshotError> {
        let Some(mut level) = self.levels.pop() else { return Ok(()) };
        self.held = self.held.saturating_sub(NAME + level.name.count_bytes());
        let above = self.levels.len().checked_sub(1);
        // Before the directory's mode is restored: `..` is looked up in it.
        if let Some(above) = above {
            self.reopen(above, &level);
        } else {
            let cleared = self.copier.clear_links(root);
            cleared.map_err(|trouble| self.failure(&[], trouble))?;
        }
        for was in std::mem::take(&mut level.was).values() {
            self.copier.count_removed(was);
        }
        close_up(&level);
        let mut entry = IndexEntry::of(EntryKind::Directory, &level.stat);
        (entry.number, entry.attributes) = (level.number, level.attributes);
        entry.counts = level.is_empty || level.is_marked;
        let is_changed = match &level.before_itself {
            Some(was) => !was.is_like(&entry),
            None => above.is_some() && entry.counts,
        };
        self.copier.taken.changed += u64::from(is_changed);
        let parent = match above.and_then(|above| self.levels.get(above)) {
            Some(above) => above.number,
            None => NOWHERE,
        };
        self.copier.note(parent, &level.name, entry);
        let finished = match &level.target {
            Some(target) => self.copier.dress(target, &level.stat, 0o3777),
            None => Err(Errno::BADF),
        };
        finished.map_err(|error| {
            self.failure(&[&level.name], CopyFailure { doing: "finishing the copy", error })
        })
    }

    /// Makes a level's descriptors again, from the one below it.
    fn reopen(&mut self, at: usize, below: &WalkLevel) {
        let up = |from: &Option<OwnedFd>| {
            let from = from.as_ref()?;
            openat(from, c"..", DIRECTORY, Mode::empty()).ok()
        };
        let Some(level) = self.levels.get(at) else { return };
        let (needs_source, needs_rest) = (level.source.is_none(), level.target.is_none());
        let source = needs_source.then(|| {
            let is_it = |fd: &OwnedFd, level: &WalkLevel| {
                fstat(fd).is_ok_and(|now| is_same(&now, &level.stat))
            };
            let above = up(&below.source).filter(|above| is_it(above, level));
            above.or_else(|| self.found_again(&self.source, at, is_it))
        });
        // Where the snapshot before has nothing of the level below, `..` does not lead up from it.
        let before = (needs_rest && level.has_before).then(|| {
            up(&below.before).or_else(|| self.found_again(self.before.as_ref()?, at, |_, _| true))
        });
        let Some(level) = self.levels.get_mut(at) else { return };
        if let Some(source) = source {
            if source.is_none() {
                // It was moved, and what was not copied yet with it.
                self.copier.taken.left_out += level.pending.len() as u64;
                level.pending.clear();
            }
            level.source = source;
        }
        if needs_rest {
            level.target = up(&below.target);
            level.before = before.flatten();
        }
    }

    /// By its path, if that still leads to it.
    fn found_again(
        &self,
        root: &OwnedFd,
        at: usize,
        is_it: impl Fn(&OwnedFd, &WalkLevel) -> bool,
    ) -> Option<OwnedFd> {
        let mut reached = rustix::io::fcntl_dupfd_cloexec(root, 0).ok()?;
        for level in self.levels.get(1..=at)? {
            reached = openat(&reached, &level.name, DIRECTORY, Mode::empty()).ok()?;
            if !is_it(&reached, level) {
                return None;
            }
        }
        Some(reached)
    }

    fn failure(&self, names: &[&CStr], CopyFailure { doing, error }: CopyFailure) -> SnapshotError {
        let levels = self.levels.iter().map(|level| level.name.as_c_str());
        let mut path = self.from.to_owned();
        for name in levels.chain(names.iter().copied()).filter(|name| !name.is_empty()) {
            path.push(OsStr::from_bytes(name.to_bytes()));
        }
        SnapshotError::Entry { path, doing, error }
    }
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Gives back the modes.
fn close_up(level: &WalkLevel) {
    for (fd, lock) in [(&level.source, level.lock), (&level.before, level.before_lock)] {
        if let (Some(fd), Some(mode)) = (fd, lock) {
            let _ = fchmod(fd, mode); // gone meanwhile
        }
    }
}

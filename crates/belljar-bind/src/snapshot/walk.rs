//! Walks a tree: down into one directory after the other, and up again.
//!
//! Three trees are walked at once: the tree itself, its copy, and the snapshot before. How each is descended and
//! climbed, with few descriptors and however it is moved about, is [`LevelStack`]'s part. The order is the
//! snapshot's own: all entries of a directory come before any directory in it, so that a directory's names in the
//! snapshot before are known while its entries are copied.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use belljar_tree::{Dir, LevelStack, Metadata, ModeLock, UnlockedDir};
use rustix::io::Errno;

use super::SnapshotError;
use super::copy::{Copier, CopyFailure, CopyTarget, Missed, failed, unread};
use super::index::{EntryKind, IndexEntry, NOWHERE, Names, ROOT};

/// A process that makes new ones as fast as they are copied is not followed for ever.
const MAX_ENTRIES: u64 = 4_000_000;
/// Bytes for the names of directories that are yet to be gone into, and for the levels above.
const MAX_HELD: usize = 256 << 20;
/// What a name takes besides its bytes.
const NAME: usize = 48;

/// A directory that is being copied.
#[derive(Debug)]
struct WalkLevel {
    /// In the level above.
    name: OsString,
    number: u64,
    metadata: Metadata,
    /// Whether the snapshot before has this directory.
    has_before: bool,
    /// The modes that the two had before they were opened up.
    lock: Option<ModeLock>,
    before_lock: Option<ModeLock>,
    /// What the snapshot before has here, and was not seen yet.
    was: Names,
    /// Directories that are yet to be gone into.
    pending: Vec<OsString>,
    is_empty: bool,
    is_marked: bool,
    attributes: u64,
    /// Of the directory itself, in the snapshot before.
    before_itself: Option<IndexEntry>,
}

/// The same directory in the three trees.
struct SnapshotTrees {
    source: LevelStack,
    target: LevelStack,
    before: Option<LevelStack>,
}

/// What was left on the way up. Nothing: it was moved away meanwhile.
struct LeftDirs {
    source: Option<Dir>,
    target: Option<Dir>,
    before: Option<Dir>,
}

impl SnapshotTrees {
    /// The lowest directory; nothing if it was moved away.
    fn place(&self, level: &WalkLevel) -> Option<CopyTarget<'_>> {
        let before = self.before.as_ref().filter(|_| level.has_before);
        Some(CopyTarget {
            source: self.source.current()?,
            target: self.target.current()?,
            before: before.and_then(LevelStack::current),
            root: self.target.root(),
        })
    }

    fn enter(
        &mut self,
        name: &OsStr,
        (source, target): (Dir, Dir),
        before: Option<Dir>,
    ) -> Result<(), Errno> {
        self.source.push(name.to_owned(), source)?;
        self.target.push(name.to_owned(), target)?;
        if let (Some(stack), Some(before)) = (&mut self.before, before) {
            stack.push(name.to_owned(), before)?;
        }
        Ok(())
    }

    fn leave(&mut self, level: &WalkLevel) -> LeftDirs {
        let before = self.before.as_mut().filter(|_| level.has_before);
        LeftDirs {
            source: up(&mut self.source),
            target: up(&mut self.target),
            before: before.and_then(up),
        }
    }
}

/// The root stays where it is.
fn up(stack: &mut LevelStack) -> Option<Dir> {
    match stack.depth() {
        0 => stack.root().try_clone().ok(),
        _ => stack.pop(),
    }
}

pub(super) struct SnapshotWalk<'a> {
    from: &'a Path,
    pub(super) copier: Copier,
    levels: Vec<WalkLevel>,
    seen: u64,
    held: usize,
    pub(super) bounds: SnapshotBounds,
    cancel: &'a AtomicBool,
}

/// How large a tree can be.
#[derive(Clone, Copy, Debug)]
pub(super) struct SnapshotBounds {
    pub(super) entries: u64,
    pub(super) held: usize,
    /// On disk, of what is copied anew.
    pub(super) bytes: u64,
}

impl<'a> SnapshotWalk<'a> {
    pub(super) fn new(from: &'a Path, copier: Copier, cancel: &'a AtomicBool) -> Self {
        let bounds = SnapshotBounds { entries: MAX_ENTRIES, held: MAX_HELD, bytes: u64::MAX };
        Self { from, copier, levels: Vec::new(), seen: 0, held: 0, bounds, cancel }
    }

    pub(super) fn run(
        &mut self,
        source: UnlockedDir,
        target: Dir,
        before: Option<UnlockedDir>,
    ) -> Result<(), SnapshotError> {
        // The root is compared with the former root: it has no name that could be looked up.
        let was = self.copier.names_of(NOWHERE).remove(&b""[..]);
        let UnlockedDir { dir, metadata, lock } = source;
        let mut root = self.level(OsString::new(), metadata, lock);
        root.before_itself = was;
        let before = before.map(|UnlockedDir { dir, lock, .. }| {
            root.has_before = true;
            root.before_lock = lock;
            root.was = self.copier.names_of(ROOT);
            LevelStack::new(dir)
        });
        let (source, target) = (LevelStack::new(dir), LevelStack::new(target));
        let mut trees = SnapshotTrees { source, target, before };
        let walked = self.push(&trees, root).and_then(|()| self.all(&mut trees));
        if walked.is_err() {
            // Whatever was opened up is closed again.
            while let Some(level) = self.levels.pop() {
                let left = trees.leave(&level);
                close_up(&level, &left);
            }
        }
        walked
    }

    fn all(&mut self, trees: &mut SnapshotTrees) -> Result<(), SnapshotError> {
        while let Some(level) = self.levels.last_mut() {
            match level.pending.pop() {
                Some(name) => self.enter(trees, name)?,
                None => self.leave(trees)?,
            }
        }
        self.look_up() // the last file counts too
    }

    fn level(&mut self, name: OsString, metadata: Metadata, lock: Option<ModeLock>) -> WalkLevel {
        self.held += NAME + name.len();
        WalkLevel {
            name,
            number: self.copier.number_directory(),
            metadata,
            has_before: false,
            lock,
            before_lock: None,
            was: Names::default(),
            pending: Vec::new(),
            is_empty: true,
            is_marked: false,
            attributes: 0,
            before_itself: None,
        }
    }

    /// Goes into a directory of the lowest level.
    fn enter(&mut self, trees: &mut SnapshotTrees, name: OsString) -> Result<(), SnapshotError> {
        self.look_up()?;
        self.held = self.held.saturating_sub(NAME + name.len());
        let Some(above) = self.levels.last_mut() else { return Ok(()) };
        let was = above.was.remove(name.as_bytes());
        let device = above.metadata.identity().device;
        let Some(place) = trees.place(above) else { return Ok(()) }; // lost, and counted
        let opened = match place.source.unlock_dir(&name) {
            Ok(opened) => opened,
            Err(error) => {
                return self.missed(&[&name], unread("opening it")(error.errno()), was);
            }
        };
        // On another file system, or a separate volume.
        if opened.metadata.identity().device != device {
            opened.relock();
            return self.missed(&[&name], Missed::LeftOut, was);
        }
        let made = match make_directory(place.target, &name) {
            Ok(made) => made,
            Err(error) => {
                opened.relock();
                return self.missed(&[&name], failed("making the copy")(error), was);
            }
        };
        let directory = was.filter(|was| was.kind == EntryKind::Directory);
        let before = match (&directory, place.before) {
            (Some(_), Some(before)) => before.unlock_dir(&name).ok(),
            _ => None,
        };
        if let Some(was) = was.filter(|was| was.kind != EntryKind::Directory) {
            self.copier.count_removed(&was);
        }
        let UnlockedDir { dir, metadata, lock } = opened;
        let mut level = self.level(name.clone(), metadata, lock);
        level.before_itself = directory;
        // If its copy cannot be opened, the index still has the names.
        level.was = directory.map(|was| self.copier.names_of(was.number)).unwrap_or_default();
        level.has_before = before.is_some();
        let before = before.map(|UnlockedDir { dir, lock, .. }| {
            level.before_lock = lock;
            dir
        });
        if let Err(error) = trees.enter(&name, (dir, made), before) {
            return Err(self.failure(&[&name], CopyFailure { doing: "opening it", error }));
        }
        self.push(trees, level)
    }

    /// The three trees are in it already.
    fn push(&mut self, trees: &SnapshotTrees, mut level: WalkLevel) -> Result<(), SnapshotError> {
        let filled = self.fill(trees, &mut level);
        self.levels.push(level); // even then: it may have to be closed again
        filled
    }

    /// Copies the attributes, and everything in a directory but its directories.
    fn fill(&mut self, trees: &SnapshotTrees, level: &mut WalkLevel) -> Result<(), SnapshotError> {
        let Some(place) = trees.place(level) else { return Ok(()) };
        let at = level.name.as_os_str();
        match self.copier.mark_directory(place.source, place.target) {
            Ok(found) => (level.is_marked, level.attributes) = (found.is_marked, found.hash()),
            Err(trouble) => return Err(self.failure(&[at], trouble)),
        }
        let unlisted = |error| CopyFailure { doing: "reading it", error };
        let listing = place.source.entries("");
        let listing = listing.map_err(|error| self.failure(&[at], unlisted(error.errno())))?;
        for entry in listing {
            let entry = entry.map_err(|error| self.failure(&[at], unlisted(error.errno())))?;
            let name = entry.name.as_os_str();
            self.seen += 1;
            self.look_up()?;
            level.is_empty = false;
            let found = match place.source.stat(name) {
                Ok(found) => found,
                Err(error) => {
                    let was = level.was.remove(name.as_bytes());
                    self.missed(&[at, name], unread("looking at it")(error.errno()), was)?;
                    continue;
                }
            };
            let Some(kind) = EntryKind::of(&found) else {
                let was = level.was.remove(name.as_bytes());
                self.missed(&[at, name], Missed::LeftOut, was)?;
                continue;
            };
            if kind == EntryKind::Directory {
                self.held += NAME + name.len();
                level.pending.push(entry.name);
                continue;
            }
            let was = level.was.remove(name.as_bytes());
            match self.copier.entry(place, name, (kind, &found), was) {
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
        names: &[&OsStr],
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

    fn leave(&mut self, trees: &mut SnapshotTrees) -> Result<(), SnapshotError> {
        let Some(mut level) = self.levels.pop() else { return Ok(()) };
        self.held = self.held.saturating_sub(NAME + level.name.len());
        // Before the directory's mode is restored: `..` is looked up in it.
        let left = trees.leave(&level);
        let parent = match self.levels.last_mut() {
            Some(above) => {
                if trees.source.current().is_none() {
                    // It was moved, and what was not copied yet with it.
                    self.copier.taken.left_out += above.pending.len() as u64;
                    above.pending.clear();
                }
                Some(above.number)
            }
            None => {
                let cleared = self.copier.clear_links(trees.target.root());
                cleared.map_err(|trouble| self.failure(&[], trouble))?;
                None
            }
        };
        for was in std::mem::take(&mut level.was).values() {
            self.copier.count_removed(was);
        }
        close_up(&level, &left);
        let mut entry = IndexEntry::of(EntryKind::Directory, &level.metadata);
        (entry.number, entry.attributes) = (level.number, level.attributes);
        entry.counts = level.is_empty || level.is_marked;
        let is_changed = match &level.before_itself {
            Some(was) => !was.is_like(&entry),
            None => parent.is_some() && entry.counts,
        };
        self.copier.taken.changed += u64::from(is_changed);
        self.copier.note(parent.unwrap_or(NOWHERE), &level.name, entry);
        let finished = match &left.target {
            Some(target) => self.copier.dress(target, &level.metadata, 0o3777),
            None => Err(Errno::BADF),
        };
        finished.map_err(|error| {
            self.failure(&[&level.name], CopyFailure { doing: "finishing the copy", error })
        })
    }

    fn failure(
        &self,
        names: &[&OsStr],
        CopyFailure { doing, error }: CopyFailure,
    ) -> SnapshotError {
        let levels = self.levels.iter().map(|level| level.name.as_os_str());
        let mut path = self.from.to_owned();
        for name in levels.chain(names.iter().copied()).filter(|name| !name.is_empty()) {
            path.push(name);
        }
        SnapshotError::Entry { path, doing, error }
    }
}

fn make_directory(target: &Dir, name: &OsStr) -> Result<Dir, Errno> {
    target.create_dir(name, 0o700)?;
    Ok(target.open_dir(name)?)
}

/// Gives back the modes.
fn close_up(level: &WalkLevel, left: &LeftDirs) {
    for (dir, lock) in [(&left.source, level.lock), (&left.before, level.before_lock)] {
        if let (Some(dir), Some(lock)) = (dir, lock) {
            lock.restore(dir);
        }
    }
}

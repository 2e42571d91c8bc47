//! Copies one entry of a tree from one open directory to another.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use belljar_tree::{
    ContentBounds, ContentComparison, CreateFileError, Dir, Metadata, UnlockedFile,
    compare_content, copy_content,
};
use rustix::fs::{FileType, Gid, Mode, Uid, fchmod, fchown, ftruncate, futimens, mknodat};
use rustix::io::Errno;

use super::SnapshotSummary;
use super::attributes::{self, ExtendedAttributes};
use super::index::{EntryKind, Index, IndexEntry, IndexWriter, Names, Print};
use super::links::Links;

/// How often a file is copied that changes meanwhile.
const MAX_TRIES: usize = 3;
/// A larger file that was written to counts as changed.
const MAX_COMPARED: u64 = 64 << 20;

/// Why an entry was not copied.
#[derive(Debug)]
pub(super) enum Missed {
    /// Nothing to be done about it.
    LeftOut,
    Failed(CopyFailure),
}

#[derive(Debug)]
pub(super) struct CopyFailure {
    pub(super) doing: &'static str,
    pub(super) error: Errno,
}

pub(super) fn failed(doing: &'static str) -> impl Fn(Errno) -> Missed {
    move |error| Missed::Failed(CopyFailure { doing, error })
}

/// An error on something in the source: it may have been replaced by now, or be unreadable.
pub(super) fn unread(doing: &'static str) -> impl Fn(Errno) -> Missed {
    move |error| match error {
        Errno::NOENT
        | Errno::NOTDIR
        | Errno::ISDIR
        | Errno::LOOP
        | Errno::NXIO
        | Errno::INVAL
        | Errno::STALE => Missed::LeftOut,
        Errno::ACCESS | Errno::PERM => Missed::LeftOut,
        Errno::AGAIN => Missed::LeftOut, // a process holds a lease on it
        error => Missed::Failed(CopyFailure { doing, error }),
    }
}

/// The same directory in the tree, in the copy, and in the snapshot before.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyTarget<'a> {
    pub(super) source: &'a Dir,
    pub(super) target: &'a Dir,
    pub(super) before: Option<&'a Dir>,
    /// Of the copy.
    pub(super) root: &'a Dir,
}

#[derive(Debug)]
pub(super) struct Copier {
    pub(super) taken: SnapshotSummary,
    /// Entries that are in the copy.
    pub(super) noted: u64,
    writer: Option<IndexWriter>,
    /// The first thing that went wrong with it.
    unwritten: Option<io::Error>,
    previous: Option<Index>,
    links: Links,
    is_root: bool,
    next_directory: u64,
}

impl Copier {
    pub(super) fn new(writer: Option<IndexWriter>, previous: Option<Index>) -> Self {
        Self {
            taken: SnapshotSummary::default(),
            noted: 0,
            writer,
            unwritten: None,
            previous,
            links: Links::default(),
            is_root: rustix::process::geteuid().is_root(),
            next_directory: 0,
        }
    }

    pub(super) fn finish(self) -> io::Result<SnapshotSummary> {
        if let Some(error) = self.unwritten {
            return Err(error);
        }
        self.writer.map_or(Ok(()), IndexWriter::finish)?;
        Ok(self.taken)
    }

    pub(super) fn number_directory(&mut self) -> u64 {
        let number = self.next_directory;
        self.next_directory += 1;
        number
    }

    /// What the snapshot before has in a directory.
    pub(super) fn names_of(&mut self, directory: u64) -> Names {
        self.previous.as_mut().map(|index| index.take(directory)).unwrap_or_default()
    }

    pub(super) fn note(&mut self, parent: u64, name: &OsStr, entry: IndexEntry) {
        self.noted += 1;
        if let Some(writer) = &mut self.writer
            && self.unwritten.is_none()
        {
            self.unwritten = writer.add(parent, name, entry).err();
        }
    }

    pub(super) fn count_removed(&mut self, entry: &IndexEntry) {
        let previous = self.previous.as_mut();
        self.taken.changed += previous.map_or(0, |index| index.count_removed(entry));
    }

    /// Removes the directory that held the copies of files with several names.
    pub(super) fn clear_links(&mut self, root: &Dir) -> Result<(), CopyFailure> {
        let doing = "removing a name";
        self.links.clear(root).map_err(|error| CopyFailure { doing, error })
    }

    /// Anything but a directory.
    pub(super) fn entry(
        &mut self,
        place: CopyTarget<'_>,
        name: &OsStr,
        (kind, stat): (EntryKind, &Metadata),
        was: Option<IndexEntry>,
    ) -> Result<IndexEntry, Missed> {
        // overlayfs itself gives all that it makes for removed names one inode.
        let has_more_names = stat.links() > 1 && kind != EntryKind::Whiteout;
        let linked = match has_more_names {
            true => self.links.give(stat, place.target, name).map_err(failed("linking it"))?,
            false => None,
        };
        let entry = match linked {
            Some(entry) => {
                self.taken.files += u64::from(kind == EntryKind::File);
                entry
            }
            None => {
                let entry = match kind {
                    EntryKind::File => self.file(place, name, stat, was.as_ref())?,
                    EntryKind::Link => self.link(place, name, stat)?,
                    EntryKind::Fifo => self.node(place, name, stat, FileType::Fifo)?,
                    EntryKind::Socket => self.node(place, name, stat, FileType::Socket)?,
                    EntryKind::Whiteout => {
                        self.node(place, name, stat, FileType::CharacterDevice)?
                    }
                    EntryKind::Directory => return Err(Missed::LeftOut), // handled separately
                };
                if has_more_names {
                    let linked = self.links.keep(place.root, stat, (place.target, name), entry);
                    linked.map_err(failed("linking it"))?;
                }
                entry
            }
        };
        match &was {
            None => self.taken.changed += 1,
            Some(was) if was.kind == kind => {
                let is_same = was.is_like(&entry) && has_same_content(place, name, &entry, was);
                self.taken.changed += u64::from(!is_same);
            }
            Some(was) => {
                self.taken.changed += 1;
                self.count_removed(was);
            }
        }
        Ok(entry)
    }

    fn file(
        &mut self,
        place: CopyTarget<'_>,
        name: &OsStr,
        stat: &Metadata,
        was: Option<&IndexEntry>,
    ) -> Result<IndexEntry, Missed> {
        if let Some(was) = was.filter(|was| self.is_unchanged(stat, was))
            && let Some(before) = place.before
        {
            match before.hard_link(name, place.target, name).map_err(Errno::from) {
                Ok(()) => {
                    self.taken.files += 1;
                    self.taken.bytes += stat.size();
                    return Ok(*was);
                }
                Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) => {
                    return Err(failed("linking it")(error));
                }
                Err(_) => {} // too many names, or not there: it is copied
            }
        }
        let source = place.source.unlock_file(name);
        let source = source.map_err(|error| unread("opening it")(error.errno()))?;
        let copied = self.copy_file(&source, || place.target.create_file(name, 0o600))?;
        self.taken.files += 1;
        self.taken.new_files += 1;
        self.taken.bytes += copied.size();
        self.taken.new_bytes += copied.size();
        let on_disk = copied.size().min(stat.disk_bytes());
        self.taken.on_disk = self.taken.on_disk.saturating_add(on_disk);
        self.taken.unsettled += u64::from(!copied.is_settled);
        Ok(copied)
    }

    /// Whether the copy in the snapshot before is one of what the inode holds now.
    fn is_unchanged(&self, stat: &Metadata, was: &IndexEntry) -> bool {
        let print = Print::of(stat);
        was.kind == EntryKind::File
            && was.is_settled
            && was.print == print
            && self.previous.as_ref().is_some_and(|previous| print.changed < previous.begun)
    }

    fn copy_file(
        &mut self,
        source: &UnlockedFile,
        make: impl Fn() -> Result<File, CreateFileError>,
    ) -> Result<IndexEntry, Missed> {
        let look = || {
            let stat = source.metadata().map_err(failed("looking at it"))?;
            match EntryKind::of(&stat) {
                Some(EntryKind::File) => Ok(stat),
                _ => Err(Missed::LeftOut), // exchanged meanwhile
            }
        };
        let mut stat = look()?;
        let target = make().map_err(|error| failed("making the copy")(error.errno()))?;
        let mut tries = 1;
        let is_settled = loop {
            let bounds = ContentBounds { size: stat.size(), budget: u64::MAX };
            copy_content(&source.file, &target, bounds)
                .map_err(|error| failed("copying its content")(error.errno()))?;
            let after = look()?;
            if Print::of(&after) == Print::of(&stat) {
                break true;
            }
            if tries == MAX_TRIES {
                break false;
            }
            tries += 1;
            stat = after;
            ftruncate(&target, 0).map_err(failed("writing the copy"))?;
        };
        let found = attributes::read(&source.file).map_err(failed("reading its attributes"))?;
        self.taken.left_out += found.left_out;
        found.put(&target).map_err(failed("writing its attributes"))?;
        self.dress(&target, &stat, 0o777).map_err(failed("finishing the copy"))?;
        Ok(IndexEntry {
            attributes: found.hash(),
            is_settled,
            ..IndexEntry::of(EntryKind::File, &stat)
        })
    }

    /// Owner, mode and times, in this order: a new owner takes bits from the mode.
    pub(super) fn dress(
        &self,
        target: impl AsFd,
        found: &Metadata,
        bits: u32,
    ) -> Result<(), Errno> {
        if self.is_root {
            let (uid, gid) = (Uid::from_raw(found.uid()), Gid::from_raw(found.gid()));
            fchown(&target, Some(uid), Some(gid))?;
        }
        fchmod(&target, Mode::from_raw_mode(found.mode() & bits))?;
        futimens(target, &found.times())
    }

    pub(super) fn mark_directory(
        &mut self,
        source: &Dir,
        target: &Dir,
    ) -> Result<ExtendedAttributes, CopyFailure> {
        let trouble = |doing| move |error| CopyFailure { doing, error };
        let found = attributes::read(source).map_err(trouble("reading its attributes"))?;
        self.taken.left_out += found.left_out;
        found.put(target).map_err(trouble("writing its attributes"))?;
        Ok(found)
    }

    fn link(
        &mut self,
        place: CopyTarget<'_>,
        name: &OsStr,
        stat: &Metadata,
    ) -> Result<IndexEntry, Missed> {
        let leads_to = place.source.read_link(name);
        let leads_to = leads_to.map_err(|error| unread("reading the link")(error.errno()))?;
        let made = place.target.symlink(leads_to, name);
        made.map_err(|error| failed("making the link")(error.errno()))?;
        self.dress_name(place, name, stat).map_err(failed("finishing the link"))?;
        Ok(IndexEntry::of(EntryKind::Link, stat))
    }

    fn node(
        &mut self,
        place: CopyTarget<'_>,
        name: &OsStr,
        stat: &Metadata,
        kind: FileType,
    ) -> Result<IndexEntry, Missed> {
        let mode = stat.mode() & 0o777;
        let made = mknodat(place.target, name, kind, Mode::from_raw_mode(mode), 0)
            .and_then(|()| self.dress_name(place, name, stat))
            .and_then(|()| Ok(place.target.set_mode(name, mode)?));
        made.map_err(failed("making it"))?;
        EntryKind::of(stat).map(|kind| IndexEntry::of(kind, stat)).ok_or(Missed::LeftOut)
    }

    fn dress_name(
        &self,
        place: CopyTarget<'_>,
        name: &OsStr,
        found: &Metadata,
    ) -> Result<(), Errno> {
        if self.is_root {
            place.target.set_owner(name, found.uid(), found.gid())?;
        }
        Ok(place.target.set_times(name, &found.times())?)
    }
}

/// Of the copy and of the one before. What cannot be read differs.
fn has_same_content(
    place: CopyTarget<'_>,
    name: &OsStr,
    entry: &IndexEntry,
    was: &IndexEntry,
) -> bool {
    let Some(before) = place.before else { return false };
    match entry.kind {
        EntryKind::File if entry.print == was.print && entry.is_settled => true,
        EntryKind::File if entry.size() != was.size() => false,
        EntryKind::File if entry.size() > MAX_COMPARED => false,
        EntryKind::File => {
            let open = |at: &Dir| at.unlock_file(name).ok();
            let (Some(is), Some(was)) = (open(place.target), open(before)) else { return false };
            matches!(compare_content(&is.file, &was.file), Ok(ContentComparison::Same))
        }
        EntryKind::Link => {
            let read = |at: &Dir| at.read_link(name);
            matches!((read(place.target), read(before)), (Ok(is), Ok(was)) if is == was)
        }
        EntryKind::Directory | EntryKind::Fifo | EntryKind::Socket | EntryKind::Whiteout => true,
    }
}

//! Copies one entry of a tree from one open directory to another.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, chmodat, chownat, fchmod, fchown, ftruncate,
    futimens, linkat, mknodat, openat, readlinkat, symlinkat, utimensat,
};
use rustix::io::{Errno, pread};

use super::SnapshotSummary;
use super::attributes::{self, ExtendedAttributes};
use super::index::{EntryKind, Index, IndexEntry, IndexWriter, Names, Print};
use super::links::Links;
use super::open::File;
use crate::content::{content, times};

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
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO | Errno::INVAL | Errno::STALE => {
            Missed::LeftOut
        }
        Errno::ACCESS | Errno::PERM => Missed::LeftOut,
        Errno::AGAIN => Missed::LeftOut, // a process holds a lease on it
        error => Missed::Failed(CopyFailure { doing, error }),
    }
}

/// The same directory in the tree, in the copy, and in the snapshot before.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyTarget<'a> {
    pub(super) source: BorrowedFd<'a>,
    pub(super) target: BorrowedFd<'a>,
    pub(super) before: Option<BorrowedFd<'a>>,
    /// Of the copy.
    pub(super) root: BorrowedFd<'a>,
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

    pub(super) fn note(&mut self, parent: u64, name: &CStr, entry: IndexEntry) {
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
    pub(super) fn clear_links(&mut self, root: impl AsFd) -> Result<(), CopyFailure> {
        let doing = "removing a name";
        self.links.clear(root).map_err(|error| CopyFailure { doing, error })
    }

    /// Anything but a directory.
    pub(super) fn entry(
        &mut self,
        place: CopyTarget<'_>,
        name: &CStr,
        (kind, stat): (EntryKind, &Stat),
        was: Option<IndexEntry>,
    ) -> Result<IndexEntry, Missed> {
        // overlayfs itself gives all that it makes for removed names one inode.
        let has_more_names = stat.st_nlink > 1 && kind != EntryKind::Whiteout;
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
        name: &CStr,
        stat: &Stat,
        was: Option<&IndexEntry>,
    ) -> Result<IndexEntry, Missed> {
        if let Some(was) = was.filter(|was| self.is_unchanged(stat, was))
            && let Some(before) = place.before
        {
            match linkat(before, name, place.target, name, AtFlags::empty()) {
                Ok(()) => {
                    self.taken.files += 1;
                    self.taken.bytes += size(stat);
                    return Ok(*was);
                }
                Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) => {
                    return Err(failed("linking it")(error));
                }
                Err(_) => {} // too many names, or not there: it is copied
            }
        }
        let source = File::open(place.source, name).map_err(unread("opening it"))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let copied = self.copy_file(&source, || openat(place.target, name, flags, mode))?;
        self.taken.files += 1;
        self.taken.new_files += 1;
        self.taken.bytes += copied.size();
        self.taken.new_bytes += copied.size();
        let on_disk = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
        self.taken.on_disk = self.taken.on_disk.saturating_add(copied.size().min(on_disk));
        self.taken.unsettled += u64::from(!copied.is_settled);
        Ok(copied)
    }

    /// Whether the copy in the snapshot before is one of what the inode holds now.
    fn is_unchanged(&self, stat: &Stat, was: &IndexEntry) -> bool {
        let print = Print::of(stat);
        was.kind == EntryKind::File
            && was.is_settled
            && was.print == print
            && self.previous.as_ref().is_some_and(|previous| print.changed < previous.begun)
    }

    fn copy_file(
        &mut self,
        source: &File,
        make: impl Fn() -> Result<OwnedFd, Errno>,
    ) -> Result<IndexEntry, Missed> {
        let look = || {
            let stat = source.stat().map_err(failed("looking at it"))?;
            match EntryKind::of(&stat) {
                Some(EntryKind::File) => Ok(stat),
                _ => Err(Missed::LeftOut), // exchanged meanwhile
            }
        };
        let mut stat = look()?;
        let target = make().map_err(failed("making the copy"))?;
        let mut tries = 1;
        let is_settled = loop {
            content(&source.fd, &target, size(&stat)).map_err(failed("copying its content"))?;
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
        let found = attributes::read(&source.fd).map_err(failed("reading its attributes"))?;
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
    pub(super) fn dress(&self, target: &OwnedFd, stat: &Stat, bits: u32) -> Result<(), Errno> {
        if self.is_root {
            fchown(target, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
        }
        fchmod(target, Mode::from_raw_mode(stat.st_mode & bits))?;
        futimens(target, &times(stat))
    }

    pub(super) fn mark_directory(
        &mut self,
        source: &OwnedFd,
        target: &OwnedFd,
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
        name: &CStr,
        stat: &Stat,
    ) -> Result<IndexEntry, Missed> {
        let leads_to =
            readlinkat(place.source, name, Vec::new()).map_err(unread("reading the link"))?;
        symlinkat(leads_to.as_c_str(), place.target, name).map_err(failed("making the link"))?;
        self.dress_name(place, name, stat).map_err(failed("finishing the link"))?;
        Ok(IndexEntry::of(EntryKind::Link, stat))
    }

    fn node(
        &mut self,
        place: CopyTarget<'_>,
        name: &CStr,
        stat: &Stat,
        kind: FileType,
    ) -> Result<IndexEntry, Missed> {
        let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
        let made = mknodat(place.target, name, kind, mode, 0)
            .and_then(|()| self.dress_name(place, name, stat))
            // The copy is ours alone: no link can have taken the name.
            .and_then(|()| chmodat(place.target, name, mode, AtFlags::empty()));
        made.map_err(failed("making it"))?;
        EntryKind::of(stat).map(|kind| IndexEntry::of(kind, stat)).ok_or(Missed::LeftOut)
    }

    fn dress_name(&self, place: CopyTarget<'_>, name: &CStr, stat: &Stat) -> Result<(), Errno> {
        let itself = AtFlags::SYMLINK_NOFOLLOW;
        if self.is_root {
            let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
            chownat(place.target, name, Some(uid), Some(gid), itself)?;
        }
        utimensat(place.target, name, &times(stat), itself)
    }
}

fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// Of the copy and of the one before. What cannot be read differs.
fn has_same_content(
    place: CopyTarget<'_>,
    name: &CStr,
    entry: &IndexEntry,
    was: &IndexEntry,
) -> bool {
    let Some(before) = place.before else { return false };
    match entry.kind {
        EntryKind::File if entry.print == was.print && entry.is_settled => true,
        EntryKind::File if entry.size() != was.size() => false,
        EntryKind::File if entry.size() > MAX_COMPARED => false,
        EntryKind::File => File::open(before, name)
            .and_then(|before| is_same(&File::open(place.target, name)?.fd, &before.fd))
            .unwrap_or(false),
        EntryKind::Link => {
            let read = |at| readlinkat(at, name, Vec::new());
            matches!((read(place.target), read(before)), (Ok(is), Ok(was)) if is == was)
        }
        EntryKind::Directory | EntryKind::Fifo | EntryKind::Socket | EntryKind::Whiteout => true,
    }
}

fn is_same(one: &OwnedFd, other: &OwnedFd) -> Result<bool, Errno> {
    let mut rooms = [vec![0; 64 * 1024], vec![0; 64 * 1024]];
    let mut at = 0;
    loop {
        let [first, second] = &mut rooms;
        let read = rustix::io::retry_on_intr(|| pread(one, &mut first[..], at))?;
        let mut filled = 0;
        while filled < read {
            match pread(other, &mut second[filled..read], at + filled as u64) {
                Ok(0) => return Ok(false),
                Ok(more) => filled += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        if read == 0 {
            return Ok(true);
        }
        if first[..read] != second[..read] {
            return Ok(false);
        }
        at += read as u64;
    }
}

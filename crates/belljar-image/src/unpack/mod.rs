//! Unpacks one layer into a directory that overlayfs takes as a lower layer.
//!
//! A layer is hostile input. Every name is used below an open directory and without following a link, so
//! nothing is written outside the target; what an archive may make us do is bounded by [`UnpackLimits`];
//! an entry that cannot be what it says ends the unpacking with an error. In detail:
//!
//! - `..` in a path is refused; a leading `/` means the image's root, as engines have it.
//! - A path through anything but a directory of the same layer is refused, a symbolic link included.
//! - Of two entries with one path the later counts. A hard link must name a file or link of this layer that
//!   is already there.
//! - Device nodes and FIFOs are left out and counted: a sandbox has its own `/dev`.
//! - Extended attributes: `user.*` are kept within a budget, but never those of an overlay;
//!   `security.capability` as [`PrivilegedBits`] says; all others are dropped and counted.
//! - A directory that no entry names gets mode and owner of the directory that it covers in the layers
//!   below, or 0755 and root's.
//! - Whiteouts are made last, and only where a lower layer has the directory: the kernel hides them in
//!   merged directories only, and lists them as broken entries in all others (seen on 6.18).

mod budget;
mod cursor;
mod entry_path;
mod error;
mod file;
mod lower;
mod options;
mod whiteout;
mod xattr;

pub use error::{UnpackError, UnpackProblem};
pub use options::{
    OverlayForm, Ownership, PrivilegedBits, UnpackLimits, UnpackOptions, UnpackReport,
};

use std::ffi::OsStr;
use std::io::{BufRead, Read};
use std::os::fd::AsFd;

use belljar_tree::Dir;
use rustix::fs::{Timespec, Timestamps};

use crate::digest::Digest;
use crate::stream::read_ahead;
use crate::tar::{TarEntry, TarKind, TarLimits, TarReader};
use budget::Budget;
use cursor::Cursor;
use entry_path::{EntryPath, Special};
use file::NewEntry;
use lower::LowerLayers;

/// What must come out of a layer's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedLayer {
    /// Of the uncompressed bytes, from the image's configuration.
    pub diff_id: Digest,
}

/// Unpacks a layer, compressed or not, into an empty directory. `lower` are the layers below it, bottom
/// first, unpacked with the same options. On an error the directory holds an unfinished tree, which the
/// caller removes.
pub fn unpack_layer(
    blob: impl Read + Send,
    target: &Dir,
    lower: &[Dir],
    expected: ExpectedLayer,
    options: &UnpackOptions,
) -> Result<UnpackReport, UnpackError> {
    let (unpacked, digest) = read_ahead(blob, |stream| unpack(stream, target, lower, options));
    let report = unpacked?;
    let found = digest.map_err(|error| UnpackProblem::Tar(crate::tar::TarError::Read(error)))?;
    match found == expected.diff_id {
        true => Ok(report),
        false => Err(UnpackProblem::DiffId { expected: expected.diff_id, found }.into()),
    }
}

/// Unpacks an uncompressed archive whose digest nobody knows.
pub(crate) fn unpack(
    stream: &mut dyn BufRead,
    target: &Dir,
    lower: &[Dir],
    options: &UnpackOptions,
) -> Result<UnpackReport, UnpackError> {
    let limits = &options.limits;
    let tar_limits = TarLimits {
        path_bytes: limits.path_bytes,
        pax_bytes: limits.xattr_bytes.saturating_add(64 * 1024),
        sparse_segments: limits.sparse_segments,
    };
    let mut unpacker = Unpacker {
        cursor: Cursor::new(target, LowerLayers::new(lower, options.form), options)?,
        options,
        budget: Budget::new(limits),
        report: UnpackReport::default(),
        whiteouts: Vec::new(),
        opaque: Vec::new(),
    };
    let mut archive = TarReader::new(stream, tar_limits);
    while let Some(entry) = archive.next_entry().map_err(UnpackProblem::Tar)? {
        unpacker.budget.archive_position(archive.position())?;
        unpacker
            .entry(&entry, &mut archive)
            .map_err(|problem| UnpackError::at(&entry.path, problem))?;
    }
    unpacker.drain(archive)?;
    unpacker.finish()
}

struct Unpacker<'a> {
    cursor: Cursor<'a>,
    options: &'a UnpackOptions,
    budget: Budget<'a>,
    report: UnpackReport,
    /// Paths that the layer removes, and directories of which it hides everything below: made at the end,
    /// since they concern lower layers only, whatever their place in the archive is.
    whiteouts: Vec<EntryPath>,
    opaque: Vec<EntryPath>,
}

impl Unpacker<'_> {
    fn entry<R: BufRead>(
        &mut self,
        entry: &TarEntry,
        archive: &mut TarReader<R>,
    ) -> Result<(), UnpackProblem> {
        self.budget.entry()?;
        let path = EntryPath::parse(&entry.path, self.options.limits.depth)?;
        match path.special()? {
            Special::No => {}
            Special::Ignored => {
                self.report.skipped_metadata += 1;
                return Ok(());
            }
            Special::Whiteout(path) => {
                self.budget.deferred(entry.path.len())?;
                self.whiteouts.push(path);
                return Ok(());
            }
            Special::Opaque(path) => {
                self.budget.deferred(entry.path.len())?;
                self.opaque.push(path);
                return Ok(());
            }
        }
        let Some((above, name)) = path.split() else {
            return match entry.kind {
                TarKind::Directory => {
                    let attributes = self.attributes(entry)?;
                    self.cursor.describe_root(&attributes)
                }
                _ => Err(UnpackProblem::RootNotDirectory),
            };
        };
        match entry.kind {
            TarKind::Directory => {
                let attributes = self.attributes(entry)?;
                let made = self.cursor.directory(above, name, &attributes)?;
                self.set_xattrs(entry, XattrTarget::Directory)?;
                self.report.directories += u64::from(made);
            }
            TarKind::File => self.file(above, name, entry, archive)?,
            TarKind::Symlink => {
                let attributes = self.attributes(entry)?;
                let parent = self.cursor.enter(above)?;
                file::symlink(parent, name, &entry.link, &attributes)?;
                self.report.symlinks += 1;
                self.report.dropped_xattrs += entry.xattrs.len() as u64;
            }
            TarKind::HardLink => {
                let target = EntryPath::parse(&entry.link, self.options.limits.depth)?;
                if !matches!(target.special()?, Special::No) {
                    return Err(UnpackProblem::LinkTarget { target: shown(&entry.link) });
                }
                self.cursor.hard_link(above, name, &target)?;
                self.report.hard_links += 1;
            }
            TarKind::CharDevice | TarKind::BlockDevice => self.report.skipped_devices += 1,
            TarKind::Fifo => self.report.skipped_fifos += 1,
            TarKind::Other(letter) => return Err(UnpackProblem::Kind { letter }),
        }
        Ok(())
    }

    fn file<R: BufRead>(
        &mut self,
        above: &[std::ffi::OsString],
        name: &OsStr,
        entry: &TarEntry,
        archive: &mut TarReader<R>,
    ) -> Result<(), UnpackProblem> {
        self.budget.file(entry.size)?;
        let attributes = self.attributes(entry)?;
        let parent = self.cursor.enter(above)?;
        let file = file::create(parent, name, &attributes)?;
        file::write(&file, entry, archive)?;
        file::describe(parent, &file, &attributes)?;
        self.report.files += 1;
        self.report.bytes += entry.size;
        if !entry.xattrs.is_empty() {
            self.set_xattrs(entry, XattrTarget::File(file.as_fd()))?;
        }
        file::set_times(&file, &attributes.times)?;
        Ok(())
    }

    fn set_xattrs(
        &mut self,
        entry: &TarEntry,
        target: XattrTarget<'_>,
    ) -> Result<(), UnpackProblem> {
        if entry.xattrs.is_empty() {
            return Ok(());
        }
        let fd = match target {
            XattrTarget::File(fd) => fd,
            XattrTarget::Directory => self.cursor.current(),
        };
        let privileged = self.options.privileged_bits;
        xattr::set_all(fd, &entry.xattrs, privileged, &mut self.budget, &mut self.report)
    }

    fn attributes(&mut self, entry: &TarEntry) -> Result<NewEntry, UnpackProblem> {
        let id = |id: u64| match u32::try_from(id) {
            Ok(id) if id != u32::MAX => Ok(id),
            _ => Err(UnpackProblem::Owner { id }),
        };
        let (uid, gid) = (id(entry.uid)?, id(entry.gid)?);
        self.report.highest_id = self.report.highest_id.max(uid).max(gid);
        let mode = match self.options.privileged_bits {
            PrivilegedBits::Keep => entry.mode,
            PrivilegedBits::Strip if entry.kind == TarKind::Directory => entry.mode & !0o4000,
            PrivilegedBits::Strip => entry.mode & !0o6000,
        };
        let (seconds, nanos) = entry.modified;
        let time = Timespec { tv_sec: seconds, tv_nsec: i64::from(nanos) };
        let times = Timestamps { last_access: time, last_modification: time };
        Ok(NewEntry { mode, uid, gid, times })
    }

    /// Archives are padded; the padding is part of the digest.
    fn drain<R: BufRead>(&self, archive: TarReader<R>) -> Result<(), UnpackProblem> {
        let mut position = archive.position();
        let mut rest = archive.into_inner();
        loop {
            let length =
                rest.fill_buf().map_err(crate::tar::read_failed).map_err(UnpackProblem::Tar)?.len();
            if length == 0 {
                return Ok(());
            }
            position += length as u64;
            self.budget.archive_position(position)?;
            rest.consume(length);
        }
    }

    fn finish(mut self) -> Result<UnpackReport, UnpackError> {
        whiteout::make(&mut self.cursor, &self.opaque, &self.whiteouts, &mut self.report)?;
        self.report.implicit_directories = self.cursor.finish()?;
        Ok(self.report)
    }
}

enum XattrTarget<'a> {
    File(std::os::fd::BorrowedFd<'a>),
    /// The one that was entered last.
    Directory,
}

fn shown(bytes: &[u8]) -> String {
    let head = &bytes[..bytes.len().min(300)];
    belljar_spec::text::escape(head)
}

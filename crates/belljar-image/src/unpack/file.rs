//! Makes files and symbolic links, and gives them their attributes.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;

use belljar_tree::{CreateFileError, Dir, SymlinkError};
use rustix::fs::{Gid, Mode, Timestamps, Uid, fchmod, fchown, futimens};

use super::cursor::Parent;
use super::error::UnpackProblem;
use super::options::Ownership;
use crate::tar::{TarEntry, TarReader};

/// What an entry says about itself, after the caller's policy.
#[derive(Clone, Debug)]
pub(super) struct NewEntry {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) times: Timestamps,
}

/// What new entries get from the process, so that calls that would change nothing are left out: they are a
/// third of all calls for an image of small files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    pub(super) ownership: Ownership,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Nothing where it is not known what becomes of a mode.
    pub(super) umask: Option<u32>,
}

impl Defaults {
    pub(super) fn of(target: &Dir, ownership: Ownership) -> Result<Self, UnpackProblem> {
        let about = target.stat("")?;
        // A default ACL takes the place of the umask.
        let mut acl = [0_u8; 8];
        let has_acl = rustix::fs::fgetxattr(target, "system.posix_acl_default", &mut acl);
        let umask = match has_acl {
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::NOTSUP) => read_umask(),
            _ => None,
        };
        // As the file system gave them to the target, which this process made just now.
        Ok(Self { ownership, uid: about.uid(), gid: about.gid(), umask })
    }

    /// The owner that must be set; nothing where it is already right.
    pub(super) fn owner(&self, entry: &NewEntry, parent_sets_group: bool) -> Option<(Uid, Gid)> {
        let is_right = (entry.uid, entry.gid) == (self.uid, self.gid) && !parent_sets_group;
        match self.ownership {
            Ownership::Single => None,
            Ownership::Archive if is_right => None,
            Ownership::Archive => Some((Uid::from_raw(entry.uid), Gid::from_raw(entry.gid))),
        }
    }
}

/// Without setting it, which would concern all threads.
fn read_umask() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

/// Makes an empty file; an earlier entry of the name is replaced.
pub(super) fn create(
    parent: Parent<'_>,
    name: &OsStr,
    entry: &NewEntry,
) -> Result<File, UnpackProblem> {
    let mode = entry.mode & 0o777;
    match parent.dir.create_file(name, mode) {
        Err(CreateFileError::Exists { .. }) => {
            parent.dir.remove_all(name)?;
            Ok(parent.dir.create_file(name, mode)?)
        }
        made => Ok(made?),
    }
}

/// Writes the entry's data, with holes where it is sparse.
pub(super) fn write<R: io::BufRead>(
    mut file: &File,
    entry: &TarEntry,
    archive: &mut TarReader<R>,
) -> Result<(), UnpackProblem> {
    let failed = |error| UnpackProblem::System { action: "write the file", error };
    let Some(segments) = &entry.segments else {
        loop {
            let piece = archive.data(u64::MAX).map_err(UnpackProblem::Tar)?;
            if piece.is_empty() {
                return Ok(());
            }
            file.write_all(piece).map_err(failed)?;
            let length = piece.len();
            archive.consume(length);
        }
    };
    for segment in segments {
        let (mut at, end) = (segment.offset, segment.offset + segment.length);
        while at < end {
            let piece = archive.data(end - at).map_err(UnpackProblem::Tar)?;
            if piece.is_empty() {
                return Err(UnpackProblem::Tar(crate::tar::TarError::Truncated));
            }
            file.write_all_at(piece, at).map_err(failed)?;
            let length = piece.len();
            at += length as u64;
            archive.consume(length);
        }
    }
    file.set_len(entry.size).map_err(failed)
}

/// Owner first: it takes setuid bits and capabilities away.
pub(super) fn describe(
    parent: Parent<'_>,
    file: &File,
    entry: &NewEntry,
) -> Result<(), UnpackProblem> {
    let owner = parent.defaults.owner(entry, parent.sets_group);
    if let Some((uid, gid)) = owner {
        fchown(file, Some(uid), Some(gid)).map_err(UnpackProblem::system("set the owner"))?;
    }
    let is_right = entry.mode & !0o777 == 0
        && parent.defaults.umask.is_some_and(|umask| entry.mode & umask == 0);
    if !is_right {
        fchmod(file, Mode::from_raw_mode(entry.mode))
            .map_err(UnpackProblem::system("set the mode"))?;
    }
    Ok(())
}

/// Last, since everything else changes them.
pub(super) fn set_times(file: &File, times: &Timestamps) -> Result<(), UnpackProblem> {
    futimens(file.as_fd(), times).map_err(UnpackProblem::system("set the times"))
}

/// Makes a link to anything: nothing here follows it.
pub(super) fn symlink(
    parent: Parent<'_>,
    name: &OsStr,
    target: &[u8],
    entry: &NewEntry,
) -> Result<(), UnpackProblem> {
    if target.contains(&0) {
        return Err(UnpackProblem::Nul);
    }
    let target = OsString::from_vec(target.to_vec());
    match parent.dir.symlink(&target, name) {
        Err(SymlinkError::Exists { .. }) => {
            parent.dir.remove_all(name)?;
            parent.dir.symlink(&target, name)?;
        }
        made => made?,
    }
    if parent.defaults.owner(entry, parent.sets_group).is_some() {
        parent.dir.set_owner(name, entry.uid, entry.gid)?;
    }
    Ok(parent.dir.set_times(name, &entry.times)?)
}

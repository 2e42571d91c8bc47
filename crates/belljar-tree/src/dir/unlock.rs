//! Opens what denies its own owner, and puts the mode back afterwards.
//!
//! For whoever has to read all of a tree, whatever modes are in it. Whoever is killed in between leaves the
//! entry opened up.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Mode, fchmod, fstat};
use rustix::io::Errno;

use super::Dir;
use super::attributes::change_mode_at;
use crate::error::{OpenDirError, OpenFileError};
use crate::metadata::Metadata;
use crate::path::PathError;

/// What it takes to list a directory and to open what is in it.
const ENTER: u32 = 0o500;
const READ: u32 = 0o400;

/// An open directory whose mode may have been widened for it.
#[derive(Debug)]
pub struct UnlockedDir {
    pub dir: Dir,
    /// With the mode that it had.
    pub metadata: Metadata,
    lock: Option<Mode>,
}

impl UnlockedDir {
    /// Gives the mode back that the directory had. What is open stays open.
    pub fn relock(&self) {
        if let Some(mode) = self.lock {
            let _ = fchmod(self.dir.as_fd(), mode); // gone meanwhile
        }
    }
}

/// An open file whose mode may have been widened for it. It gets its mode back when this is dropped.
#[derive(Debug)]
pub struct UnlockedFile {
    pub file: File,
    lock: Option<Mode>,
}

impl UnlockedFile {
    /// As it is now, with the mode that it had.
    pub fn metadata(&self) -> Result<Metadata, Errno> {
        Ok(with_mode(Metadata::from_stat(fstat(&self.file)?), self.lock))
    }
}

impl Drop for UnlockedFile {
    fn drop(&mut self) {
        if let Some(mode) = self.lock {
            let _ = fchmod(&self.file, mode);
        }
    }
}

impl Dir {
    /// Opens a directory of the caller's, whatever its mode is.
    pub fn unlock_dir(&self, path: impl AsRef<Path>) -> Result<UnlockedDir, OpenDirError> {
        let path = path.as_ref();
        let failed = |error| OpenDirError::System { path: path.to_owned(), error };
        let (dir, before) = match self.open_dir(path) {
            Err(OpenDirError::System { error: Errno::ACCESS, .. }) => {
                let before = self.widen::<OpenDirError>(path, ENTER)?.map_err(failed)?;
                (self.open_dir(path)?, Some(before))
            }
            opened => (opened?, None),
        };
        let metadata = Metadata::from_stat(fstat(dir.as_fd()).map_err(failed)?);
        let mut lock = lock_of(&metadata, before);
        // It can be listed, and yet nothing in it be opened.
        if lock.is_none() && metadata.mode() & ENTER != ENTER && is_own(&metadata) {
            let mode = Mode::from_raw_mode(metadata.mode() as _);
            fchmod(dir.as_fd(), mode | Mode::from_raw_mode(ENTER as _)).map_err(failed)?;
            lock = Some(mode);
        }
        Ok(UnlockedDir { dir, metadata: with_mode(metadata, lock), lock })
    }

    /// Opens a regular file of the caller's for reading, whatever its mode is.
    pub fn unlock_file(&self, path: impl AsRef<Path>) -> Result<UnlockedFile, OpenFileError> {
        let path = path.as_ref();
        let failed = |error| OpenFileError::System { path: path.to_owned(), error };
        let (file, before) = match self.open_file(path) {
            Err(OpenFileError::System { error: Errno::ACCESS, .. }) => {
                let before = self.widen::<OpenFileError>(path, READ)?.map_err(failed)?;
                (self.open_file(path)?, Some(before))
            }
            opened => (opened?, None),
        };
        let metadata = Metadata::from_stat(fstat(&file).map_err(failed)?);
        Ok(UnlockedFile { file, lock: lock_of(&metadata, before) })
    }

    /// Adds bits to the mode of an entry, and gives what it was.
    fn widen<E>(&self, path: &Path, bits: u32) -> Result<Result<Metadata, Errno>, E>
    where
        E: From<PathError> + From<OpenDirError>,
    {
        let (parent, name) = self.parent_of::<E>(path)?;
        let bits = Mode::from_raw_mode(bits as _);
        Ok(change_mode_at(self.rules(), parent.as_fd(), name, |mode| mode | bits))
    }
}

/// The mode to be given back, if what was opened is what was widened, and nothing that took its name since.
fn lock_of(opened: &Metadata, before: Option<Metadata>) -> Option<Mode> {
    let before = before.filter(|before| before.identity() == opened.identity())?;
    Some(Mode::from_raw_mode(before.mode() as _))
}

/// Root needs no mode's leave.
fn is_own(metadata: &Metadata) -> bool {
    let user = rustix::process::geteuid();
    !user.is_root() && metadata.uid() == user.as_raw()
}

fn with_mode(metadata: Metadata, lock: Option<Mode>) -> Metadata {
    let mut stat = *metadata.as_stat();
    if let Some(mode) = lock {
        stat.st_mode = (stat.st_mode & !0o7777) | (mode.as_raw_mode() & 0o7777);
    }
    Metadata::from_stat(stat)
}

//! Opens what denies its own owner, and puts the mode back afterwards.
//!
//! For callers that have to read all of a tree, whatever modes are in it. A process that is killed in between leaves
//! the entry with the wider mode.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Mode, fchmod, fstat};
use rustix::io::Errno;

use super::{Dir, PinnedEntry};
use crate::error::{OpenDirError, OpenFileError};
use crate::metadata::Metadata;

/// What it takes to list a directory and to open what is in it.
const ENTER: u32 = 0o500;
const READ: u32 = 0o400;

/// An open directory whose mode may have been widened for it.
#[derive(Debug)]
pub struct UnlockedDir {
    pub dir: Dir,
    /// With the mode that it had.
    pub metadata: Metadata,
    /// What it takes to give that mode back.
    pub lock: Option<ModeLock>,
}

/// The mode that a directory had before it was widened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeLock(Mode);

impl ModeLock {
    /// Gives the mode back.
    pub fn restore(self, dir: &Dir) {
        let _ = fchmod(dir.as_fd(), self.0); // gone meanwhile
    }
}

impl UnlockedDir {
    /// Gives the mode back that the directory had. What is open stays open.
    pub fn relock(&self) {
        if let Some(lock) = self.lock {
            lock.restore(&self.dir);
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
        let (dir, mut lock) = match self.open_dir(path) {
            Err(OpenDirError::System { error: Errno::ACCESS, .. }) => {
                let widened = self.widen(path, ENTER).map_err(failed)?;
                let dir = self.open_dir(path);
                let lock = widened.keep_for(dir.as_ref().ok());
                (dir?, lock)
            }
            opened => (opened?, None),
        };
        let metadata = Metadata::of(dir.as_fd()).map_err(failed)?;
        // It can be listed, and yet nothing in it be opened.
        if lock.is_none() && metadata.mode() & ENTER != ENTER && is_own(&metadata) {
            let mode = Mode::from_raw_mode(metadata.mode() as _);
            fchmod(dir.as_fd(), mode | Mode::from_raw_mode(ENTER as _)).map_err(failed)?;
            lock = Some(mode);
        }
        Ok(UnlockedDir { dir, metadata: with_mode(metadata, lock), lock: lock.map(ModeLock) })
    }

    /// Opens a regular file of the caller's for reading, whatever its mode is.
    pub fn unlock_file(&self, path: impl AsRef<Path>) -> Result<UnlockedFile, OpenFileError> {
        let path = path.as_ref();
        let failed = |error| OpenFileError::System { path: path.to_owned(), error };
        match self.open_file(path) {
            Err(OpenFileError::System { error: Errno::ACCESS, .. }) => {
                let widened = self.widen(path, READ).map_err(failed)?;
                let file = self.open_file(path);
                let lock = widened.keep_for(file.as_ref().ok());
                Ok(UnlockedFile { file: file?, lock })
            }
            opened => Ok(UnlockedFile { file: opened?, lock: None }),
        }
    }

    /// Adds bits to the mode of an entry.
    fn widen(&self, path: &Path, bits: u32) -> Result<Widened, Errno> {
        let entry = self.pin(path)?;
        entry.set_mode(entry.metadata().mode() | bits)?;
        Ok(Widened { entry })
    }
}

/// An entry whose mode was widened.
struct Widened {
    entry: PinnedEntry,
}

impl Widened {
    /// The mode to be given back, if what was opened is this entry. Where nothing was opened, or something that
    /// took its name since, the entry gets its mode back at once.
    fn keep_for(self, opened: Option<impl AsFd>) -> Option<Mode> {
        let before = self.entry.metadata();
        let is_it = opened.is_some_and(|opened| {
            Metadata::of(opened).is_ok_and(|found| found.identity() == before.identity())
        });
        if !is_it {
            let _ = self.entry.set_mode(before.mode());
            return None;
        }
        Some(Mode::from_raw_mode(before.mode() as _))
    }
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

//! Directories in which one process makes what it is going to add, and what dead ones left.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};

use belljar_tree::{CreateDirError, Dir, RenameMode};
use rustix::fs::{FlockOperation, flock};

use super::lock::{LockMode, is_held, open_lock_file};
use super::{PRIVATE, Store, StoreError};

const TMP: &str = "tmp";
/// Beside a work directory: held exclusively while its process lives. Outside of it, so that it is there until
/// the directory is gone.
const LOCK_SUFFIX: &str = ".lock";
const LEFT: &str = "left";

/// A directory below `tmp/`, removed when it is dropped.
#[derive(Debug)]
pub(super) struct WorkDir {
    tmp: Dir,
    name: OsString,
    pub(super) dir: Dir,
    pub(super) path: PathBuf,
    _lock: File,
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // What cannot be removed is found by the next process.
        if self.tmp.remove_all(&self.name).is_ok() {
            let _ = self.tmp.unlink(lock_name(&self.name));
        }
    }
}

impl Store {
    /// Makes a work directory, and removes those that dead processes left.
    pub(super) fn work_dir(&self) -> Result<WorkDir, StoreError> {
        let shown = self.path.join(TMP);
        let failed = |action: &'static str| {
            let shown = shown.clone();
            move |error: rustix::io::Errno| StoreError::io(action, &shown, error)
        };
        let guard = self.lock(LockMode::Exclusive)?;
        let tmp = self.root.open_dir(TMP).map_err(|error| failed("open")(error.errno()))?;
        let (name, dir) = tmp
            .create_unique_dir("work-", PRIVATE)
            .map_err(|error| failed("make a directory in")(error.errno()))?;
        let path = shown.join(&name);
        let lock = open_lock_file(&tmp, &lock_name(&name), path.clone())?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(failed("lock a file in"))?;
        let work = WorkDir { tmp, name, dir, path, _lock: lock };
        self.collect_dead(&work)?;
        drop(guard);
        // Without the lock: a layer has any number of files.
        work.dir
            .remove_all(LEFT)
            .map_err(|error| failed("remove what an earlier process left in")(error.errno()))?;
        Ok(work)
    }

    /// Moves what dead processes left into our own directory. Under the exclusive lock.
    fn collect_dead(&self, work: &WorkDir) -> Result<(), StoreError> {
        let failed =
            |error: rustix::io::Errno| StoreError::io("clean", &self.path.join(TMP), error);
        let mut number = 0_u64;
        for name in self.names(Path::new(TMP))? {
            let owner = name.strip_suffix(LOCK_SUFFIX).unwrap_or(&name);
            if *owner == *work.name || self.is_alive(&work.tmp, owner) {
                continue;
            }
            match work.dir.create_dir(LEFT, PRIVATE) {
                Ok(()) | Err(CreateDirError::Exists { .. }) => {}
                Err(error) => return Err(failed(error.errno())),
            }
            let to = PathBuf::from(LEFT).join(number.to_string());
            match work.tmp.rename(&name, &work.dir, &to, RenameMode::NoReplace) {
                Ok(()) => number += 1,
                // Its process has just removed it.
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(failed(error.errno())),
            }
        }
        Ok(())
    }

    /// Work directories of processes that live. Under the exclusive lock.
    pub(super) fn live_work(&self, tmp: &Dir) -> Result<Vec<String>, StoreError> {
        let mut names = self.names(Path::new(TMP))?;
        names.retain(|name| !name.ends_with(LOCK_SUFFIX) && self.is_alive(tmp, name));
        Ok(names)
    }

    /// Made and locked under the store's lock, so that one without a lock is dead, or just gone.
    fn is_alive(&self, tmp: &Dir, name: &str) -> bool {
        tmp.open_file_writable(lock_name(OsStr::new(name))).is_ok_and(|lock| is_held(&lock))
    }
}

fn lock_name(name: &OsStr) -> String {
    format!("{}{LOCK_SUFFIX}", name.to_string_lossy())
}

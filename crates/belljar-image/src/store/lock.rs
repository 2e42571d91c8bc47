//! The locks of a store. They belong to open files, so that they end with the process that holds them.

use std::fs::File;
use std::path::PathBuf;

use belljar_tree::{CreateFileError, Dir};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{Store, StoreError};

const LOCK: &str = "lock";

/// What holding the store's lock allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockMode {
    /// To read, and to take use locks.
    Shared,
    /// To change the index, to move content into place or away.
    Exclusive,
}

/// The store's lock, until it is dropped. Held for short: never while something is fetched or unpacked.
#[derive(Debug)]
pub(super) struct StoreLock(#[allow(dead_code, reason = "held, not used")] File);

impl Store {
    pub(super) fn lock(&self, mode: LockMode) -> Result<StoreLock, StoreError> {
        let file = self.lock_file(LOCK)?;
        let operation = match mode {
            LockMode::Shared => FlockOperation::LockShared,
            LockMode::Exclusive => FlockOperation::LockExclusive,
        };
        rustix::io::retry_on_intr(|| flock(&file, operation))
            .map_err(|error| StoreError::io("lock", &self.path.join(LOCK), error))?;
        Ok(StoreLock(file))
    }

    /// A file that is only ever locked.
    pub(super) fn lock_file(&self, name: &str) -> Result<File, StoreError> {
        open_lock_file(&self.root, name, self.path.join(name))
    }
}

/// `shown` is what messages call it.
pub(super) fn open_lock_file(dir: &Dir, name: &str, shown: PathBuf) -> Result<File, StoreError> {
    match dir.create_file(name, 0o600) {
        Err(CreateFileError::Exists { .. }) => {}
        Err(error) => return Err(StoreError::io("make", &shown, error.errno())),
        Ok(_) => {}
    }
    // A second look-up, so that all processes lock the same file.
    let file = dir.open_file_writable(name);
    file.map_err(|error| StoreError::io("open", &shown, error.errno()))
}

/// Whether somebody holds a lock on this file.
pub(super) fn is_held(file: &File) -> bool {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            let _ = flock(file, FlockOperation::Unlock); // ends with the file at the latest
            false
        }
        // Whatever else goes wrong, what may be in use is left alone.
        Err(Errno::WOULDBLOCK) | Err(_) => true,
    }
}

//! Keeps a checkpoint while it is being read, by a lock on its directory.

use std::os::fd::OwnedFd;
use std::path::Path;

use belljar_tree::{Dir, FinalLink, Metadata, OpenDirError};
use rustix::fs::{FlockOperation, flock, lstat};
use rustix::io::Errno;

use super::CheckpointError;

/// For as long as this is held, the checkpoint is not removed to make room.
#[derive(Debug)]
pub struct Pin {
    _lock: OwnedFd,
}

/// For reading.
pub fn pin(checkpoint: &Path) -> Result<Pin, CheckpointError> {
    match lock(checkpoint, FlockOperation::NonBlockingLockShared) {
        Ok(Some(lock)) => Ok(Pin { _lock: lock }),
        // Whoever holds it alone is about to remove it.
        Ok(None) => Err(CheckpointError::Gone { path: checkpoint.to_owned() }),
        Err(error) => Err(failed(checkpoint, error)),
    }
}

/// For removing. `None`: it is gone already.
pub(super) fn pin_alone(checkpoint: &Path) -> Result<Option<Pin>, CheckpointError> {
    match lock(checkpoint, FlockOperation::NonBlockingLockExclusive) {
        Ok(Some(lock)) => Ok(Some(Pin { _lock: lock })),
        Ok(None) if lstat(checkpoint).is_err() => Ok(None),
        Ok(None) => Err(CheckpointError::InUse { path: checkpoint.to_owned() }),
        Err(error) => Err(failed(checkpoint, error)),
    }
}

fn failed(checkpoint: &Path, error: Errno) -> CheckpointError {
    CheckpointError::Take { path: checkpoint.to_owned(), error: error.into() }
}

/// `None`: it is locked, or not there.
fn lock(checkpoint: &Path, how: FlockOperation) -> Result<Option<OwnedFd>, Errno> {
    let dir = match Dir::open(checkpoint, FinalLink::Refuse) {
        Err(OpenDirError::Missing { .. }) => return Ok(None),
        dir => dir?,
    };
    match rustix::io::retry_on_intr(|| flock(&dir, how)) {
        Err(Errno::WOULDBLOCK) => return Ok(None),
        done => done?,
    }
    // It may have been moved away between the two.
    let locked = Metadata::of(&dir)?.identity();
    let is_there = lstat(checkpoint).map(Metadata::from_stat);
    Ok(is_there.is_ok_and(|found| found.identity() == locked).then(|| dir.into()))
}

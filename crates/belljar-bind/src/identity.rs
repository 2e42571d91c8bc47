//! Chooses the host uids of a run.
//!
//! Root chooses an unused pair for each live run: one for the command, one for PID 1. The lock is
//! host-wide, so that two launchers with different homes cannot choose the same.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Above what `useradd`, subordinate ids and systemd hand out, below the sign bit.
const FIRST_UID: u32 = 0x7000_0000;
const PAIRS: u32 = 0x10000;
const LOCKS: &str = "/run/belljar/uids";

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("cannot update the list of used uids in {LOCKS}")]
    Locks(#[source] std::io::Error),
    #[error("all {PAIRS} uids for runs are in use")]
    Exhausted,
}

/// The uids and gids of a run on the host.
#[derive(Debug)]
pub struct HostIdentity {
    pub command: Pair,
    /// PID 1's, where it differs from the command's.
    pub init: Option<Pair>,
    /// Held for as long as the run lives.
    _lock: Option<File>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    pub uid: u32,
    pub gid: u32,
}

impl From<belljar_spec::User> for Pair {
    fn from(user: belljar_spec::User) -> Self {
        Self { uid: user.uid, gid: user.gid }
    }
}

impl HostIdentity {
    /// The caller's ids: an ordinary user has no others.
    pub fn caller() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        Self { command: Pair { uid, gid }, init: None, _lock: None }
    }

    /// The owner of a tree on a file system that cannot show another owner.
    pub fn owner(pair: Pair) -> Self {
        Self { command: pair, init: None, _lock: None }
    }

    /// An unused pair. Only root can give itself one.
    pub fn choose() -> Result<Self, IdentityError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(LOCKS)
            .map_err(IdentityError::Locks)?;
        let mut seed = [0; 4];
        // Where random bytes are not to be had, starting at 0 is only slower.
        let _ = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
        let start = u32::from_ne_bytes(seed) % PAIRS;
        for step in 0..PAIRS {
            let slot = (start + step) % PAIRS;
            if let Some(lock) = try_lock(slot)? {
                let uid = FIRST_UID + 2 * slot;
                return Ok(Self {
                    command: Pair { uid, gid: uid },
                    init: Some(Pair { uid: uid + 1, gid: uid + 1 }),
                    _lock: Some(lock),
                });
            }
        }
        Err(IdentityError::Exhausted)
    }
}

fn try_lock(slot: u32) -> Result<Option<File>, IdentityError> {
    let path = PathBuf::from(LOCKS).join(slot.to_string());
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
    let file = file.map_err(IdentityError::Locks)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(IdentityError::Locks(error.into())),
    }
}

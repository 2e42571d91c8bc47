//! Chooses the host uids of a run.
//!
//! Root chooses an unused pair for each live run: one for the command, one for PID 1. A run from an image gets a
//! block, in which all owners of the image's files have their place. The lock is host-wide, so that two launchers with
//! different homes cannot choose the same.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use belljar_spec::User;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Above what `useradd`, subordinate ids and systemd hand out, below the sign bit.
const FIRST_UID: u32 = 0x7000_0000;
const PAIRS: u32 = 0x10000;
const LOCKS: &str = "/run/belljar/uids";
/// Above the pairs; the last block ends below the sign bit.
const FIRST_BLOCK: u32 = 0x7100_0000;
const BLOCKS: u32 = 0x0e00;
/// Ids of one block.
pub const BLOCK_SIZE: u32 = 0x10000;
const BLOCK_LOCKS: &str = "/run/belljar/uid-blocks";
/// Who may use which ids in user namespaces; an administrator may have put some where the blocks are.
const SUBORDINATE_IDS: [&str; 2] = ["/etc/subuid", "/etc/subgid"];

/// The uid that PID 1 has inside, where it differs from the command's.
const INIT_UID: u32 = 999;

/// PID 1's ids inside, which must not be the command's.
pub fn init_ids(command: User) -> User {
    let free = |wanted: u32, taken: u32| if wanted == taken { wanted - 1 } else { wanted };
    User { uid: free(INIT_UID, command.uid), gid: free(INIT_UID, command.gid) }
}

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("cannot update the list of used uids in {LOCKS}")]
    Locks(#[source] std::io::Error),
    #[error("all {PAIRS} uids for runs are in use")]
    Exhausted,
    #[error("cannot read {path}, which says which uids belong to users")]
    SubordinateIds {
        path: &'static str,
        #[source]
        error: std::io::Error,
    },
    #[error("all {BLOCKS} blocks of uids for runs from images are in use")]
    BlocksExhausted,
    #[error(
        "the user {uid}:{gid} of the sandbox is outside of the {BLOCK_SIZE} ids that a run from an image has; choose \
         another: --user UID:GID"
    )]
    OutsideBlock { uid: u32, gid: u32 },
}

/// The uids and gids of a run on the host.
#[derive(Debug)]
pub struct HostIdentity {
    pub command: Pair,
    /// PID 1's, where it differs from the command's.
    pub init: Option<Pair>,
    /// The first of [`BLOCK_SIZE`] ids that the run has, by its ids inside.
    pub block: Option<u32>,
    /// Held for as long as the run lives.
    _lock: Option<File>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    pub uid: u32,
    pub gid: u32,
}

impl From<User> for Pair {
    fn from(user: User) -> Self {
        Self { uid: user.uid, gid: user.gid }
    }
}

impl HostIdentity {
    /// The caller's ids: an ordinary user has no others.
    pub fn caller() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        Self { command: Pair { uid, gid }, init: None, block: None, _lock: None }
    }

    /// The owner of a tree on a file system that cannot show another owner.
    pub fn owner(pair: Pair) -> Self {
        Self { command: pair, init: None, block: None, _lock: None }
    }

    /// An unused pair. Only root can give itself one.
    pub fn choose() -> Result<Self, IdentityError> {
        make_lock_directory(LOCKS)?;
        let start = random() % PAIRS;
        for step in 0..PAIRS {
            let slot = (start + step) % PAIRS;
            if let Some(lock) = try_lock(LOCKS, slot)? {
                let uid = FIRST_UID + 2 * slot;
                return Ok(Self {
                    command: Pair { uid, gid: uid },
                    init: Some(Pair { uid: uid + 1, gid: uid + 1 }),
                    block: None,
                    _lock: Some(lock),
                });
            }
        }
        Err(IdentityError::Exhausted)
    }

    /// An unused block, for a run whose command has these ids inside. Only root can give itself one.
    pub fn choose_block(command: User) -> Result<Self, IdentityError> {
        let User { uid, gid } = command;
        if uid >= BLOCK_SIZE || gid >= BLOCK_SIZE {
            return Err(IdentityError::OutsideBlock { uid, gid });
        }
        make_lock_directory(BLOCK_LOCKS)?;
        let taken = subordinate_ranges()?;
        let start = random() % BLOCKS;
        for step in 0..BLOCKS {
            let slot = (start + step) % BLOCKS;
            let first = FIRST_BLOCK + slot * BLOCK_SIZE;
            if taken
                .iter()
                .any(|range| range.0 < u64::from(first + BLOCK_SIZE) && u64::from(first) < range.1)
            {
                continue;
            }
            if let Some(lock) = try_lock(BLOCK_LOCKS, slot)? {
                let on_host = |User { uid, gid }| Pair { uid: first + uid, gid: first + gid };
                return Ok(Self {
                    command: on_host(command),
                    init: Some(on_host(init_ids(command))),
                    block: Some(first),
                    _lock: Some(lock),
                });
            }
        }
        Err(IdentityError::BlocksExhausted)
    }
}

fn make_lock_directory(path: &str) -> Result<(), IdentityError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(IdentityError::Locks)
}

fn random() -> u32 {
    let mut seed = [0; 4];
    // Where random bytes are not to be had, starting at 0 is only slower.
    let _ = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
    u32::from_ne_bytes(seed)
}

/// The ranges that `/etc/subuid` and `/etc/subgid` give to users: first, and behind the last.
fn subordinate_ranges() -> Result<Vec<(u64, u64)>, IdentityError> {
    let mut ranges = Vec::new();
    for path in SUBORDINATE_IDS {
        match std::fs::read_to_string(path) {
            Ok(text) => ranges.extend(parse_ranges(&text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(IdentityError::SubordinateIds { path, error }),
        }
    }
    Ok(ranges)
}

fn parse_ranges(text: &str) -> Vec<(u64, u64)> {
    let range = |line: &str| {
        let mut fields = line.split(':').skip(1).map(|field| field.trim().parse::<u64>().ok());
        let (first, count) = (fields.next()??, fields.next()??);
        Some((first, first.saturating_add(count)))
    };
    text.lines().filter_map(range).collect()
}

fn try_lock(directory: &str, slot: u32) -> Result<Option<File>, IdentityError> {
    let path = PathBuf::from(directory).join(slot.to_string());
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
    let file = file.map_err(IdentityError::Locks)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(IdentityError::Locks(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_pairs_do_not_meet_and_stay_below_the_sign_bit() {
        const { assert!(FIRST_UID + 2 * PAIRS <= FIRST_BLOCK) };
        let end = u64::from(FIRST_BLOCK) + u64::from(BLOCKS) * u64::from(BLOCK_SIZE);
        assert!(end <= 1 << 31, "{end}");
    }

    #[test]
    fn ranges_of_subordinate_ids_are_read() {
        let text = "me:100000:65536\n# comment\nyou:1895825408:65536\nodd:x:1\n";
        assert_eq!(parse_ranges(text), [(100_000, 165_536), (1_895_825_408, 1_895_890_944)]);
    }
}

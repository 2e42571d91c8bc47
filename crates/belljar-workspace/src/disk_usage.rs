//! Measures what trees take on disk, bounded and without following a link.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use belljar_spec::Moment;
use belljar_tree::{Dir, Entries, FinalLink, Identity};

use crate::fingerprint::changed;

/// A deeper tree counts as too large.
pub const MAX_DEPTH: usize = 512;
/// What an empty file takes too.
const INODE: u64 = 256;
/// Files with several names that are remembered, so that each counts once.
const MAX_REMEMBERED: usize = 200_000;

/// What several trees take on disk, each file counted once.
#[derive(Debug, Default)]
pub struct DiskUsage {
    seen: HashSet<Identity>,
    bytes: u64,
}

impl DiskUsage {
    pub fn add(&mut self, tree: &Path, stop: &AtomicBool) {
        let ever = Moment { secs: i64::MIN, nanos: 0 };
        self.bytes = self.bytes.saturating_add(usage(tree, ever, &mut self.seen, stop));
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Bytes on disk below a directory, without following a link or counting a file twice. What cannot be
/// read is not counted: the run itself may be changing it. By descriptor, one for each level, so that
/// neither a wide nor a deep tree, nor a directory that becomes a link, leads anywhere or costs memory.
pub fn usage(
    directory: &Path,
    since: Moment,
    seen: &mut HashSet<Identity>,
    stop: &AtomicBool,
) -> u64 {
    let mut total = 0;
    let root = Dir::open(directory, FinalLink::Refuse).ok();
    let Some(top) = root.and_then(|root| root.into_entries().ok()) else { return 0 };
    let mut levels: Vec<Entries> = vec![top];
    while let Some(level) = levels.last_mut() {
        if stop.load(Ordering::Relaxed) {
            return total;
        }
        let Some(Ok(entry)) = level.next() else {
            levels.pop();
            continue;
        };
        let Ok(found) = level.stat(&entry.name) else { continue };
        let is_later = changed(&found) >= since;
        // Past so many files with several names they are counted as often as they are met.
        let is_new = found.links() < 2
            || found.is_dir()
            || seen.len() >= MAX_REMEMBERED
            || seen.insert(found.identity());
        if is_later && is_new {
            total += found.disk_bytes() + INODE;
        }
        if found.is_dir() && levels.len() >= MAX_DEPTH {
            if is_later {
                return u64::MAX; // no program works in such a tree: it is there to hide something
            }
        } else if found.is_dir() {
            let below = levels.last().and_then(|level| level.open_dir(&entry.name).ok());
            levels.extend(below.and_then(|below| below.into_entries().ok()));
        }
    }
    total
}

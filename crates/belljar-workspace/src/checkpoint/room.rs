//! Limits the disk space of a run's checkpoints.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::place::{complete, path, remove};
use crate::disk_usage::DiskUsage;

/// Removes the oldest, until all and what is about to be added take no more than `most`; the newest stays. What cannot
/// be removed, or is being read, stays too.
pub(super) fn make_room(directory: &Path, sources: &[PathBuf], most: u64, cancel: &AtomicBool) {
    let complete = complete(directory);
    if complete.len() < 2 {
        return;
    }
    let mut used = DiskUsage::default();
    sources.iter().for_each(|source| used.add(source, cancel));
    // The newest first: what it shares with older ones is its own, and theirs is only what goes with them.
    for (age, number) in complete.into_iter().rev().enumerate() {
        let checkpoint = path(directory, number);
        if used.bytes() <= most || age == 0 {
            used.add(&checkpoint, cancel);
        }
        if used.bytes() > most && age > 0 {
            let _ = remove(&checkpoint);
        }
    }
}

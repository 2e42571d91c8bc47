//! Removes control groups of runs that have no directory any more.
//!
//! A group carries the path of the directory as an extended attribute, which the kernel stores with it on both versions.
//! So any launcher with the right to do so can detect that an empty group has no run.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, getxattr, setxattr};

use super::{Available, Group, detect};

const MARK: &str = "user.belljar.run";
/// More than any path.
const MAX_COUNT: usize = 8192;

impl Group {
    /// Best effort: without the mark a group of a home that was deleted is left for its owner to remove.
    pub(crate) fn mark(&self, run_directory: &Path) {
        for directory in self.directories() {
            let path = run_directory.as_os_str().as_bytes();
            let _ = setxattr(&directory, MARK, path, XattrFlags::empty());
        }
    }
}

/// Whether there are more groups than `live` runs: some may be orphaned. Lists each parent once.
pub fn may_have_orphans(live: usize) -> bool {
    use std::os::unix::fs::MetadataExt;
    // A directory has two links, and one more for each directory in it.
    let count = |parent: &PathBuf| std::fs::metadata(parent).map_or(0, |found| found.nlink());
    parents().iter().map(count).max().unwrap_or(0) > 2 + live as u64
}

fn parents() -> Vec<PathBuf> {
    match detect() {
        Available::V1(hierarchies) => hierarchies.parents(),
        Available::V2 { parent } => vec![parent],
        // The manager removes its scopes itself.
        Available::Manager { .. } | Available::None { .. } => Vec::new(),
    }
}

/// Removes the groups of runs that have no directory any more, and returns them. One that holds a process stays: the
/// kernel refuses to remove it.
pub fn remove_orphaned_groups() -> Vec<PathBuf> {
    let groups = parents().into_iter().flat_map(std::fs::read_dir).flatten().flatten();
    let orphans = groups.map(|entry| entry.path()).filter(|group| is_orphan(group));
    orphans.filter(|group| std::fs::remove_dir(group).is_ok()).collect()
}

fn is_orphan(group: &Path) -> bool {
    let mut value = vec![0; MAX_COUNT];
    let Ok(length) = getxattr(group, MARK, &mut value[..]) else { return false };
    let run_directory = Path::new(OsStr::from_bytes(&value[..length]));
    let there = std::fs::symlink_metadata(run_directory);
    run_directory.is_absolute() && there.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use belljar_spec::Limits;

    use super::*;

    #[test]
    fn a_group_goes_when_its_runs_directory_is_gone_and_not_before() {
        let limits = Limits {
            memory: Some(64 << 20),
            millicpus: None,
            pids: Some(10),
            time: None,
            idle: None,
            output: 0,
            disk: None,
            stop_timeout: std::time::Duration::ZERO,
        };
        let name = format!("orphan-test-{}", std::process::id());
        let Ok(Some(group)) = Group::make(&detect(), &name, &limits) else {
            return; // no control group can be made here; the limits' tests report that
        };
        let directories = group.directories();
        assert!(remove_orphaned_groups().iter().all(|gone| !directories.contains(gone)), "no mark");
        let home = tempfile::tempdir().unwrap();
        group.mark(home.path());
        assert!(remove_orphaned_groups().iter().all(|gone| !directories.contains(gone)), "alive");
        drop(home);
        let gone = remove_orphaned_groups();
        assert!(directories.iter().all(|directory| gone.contains(directory)), "{gone:?}");
        assert!(directories.iter().all(|directory| !directory.exists()));
    }
}

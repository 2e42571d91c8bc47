//! What is left of runs that have ended: processes, mounts, live entries, control groups.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use belljar::home::Home;

use crate::processes;

/// Processes and groups that were killed may take a moment to be gone.
const GONE_TIMEOUT: Duration = Duration::from_secs(5);
const ROLES: [&[u8]; 3] = [b"__init", b"__supervise", b"__egress"];

/// Our descendants that are belljar; what runs inside them is not.
pub(super) fn our_processes() -> Result<Vec<u32>> {
    let own = std::process::id();
    let mut family = processes::descendants(own)?;
    family.retain(|pid| *pid != own && is_belljar(*pid));
    Ok(family)
}

fn is_belljar(pid: u32) -> bool {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments.split(|byte| *byte == 0).any(|word| ROLES.contains(&word))
}

/// What must be as it was.
pub(super) struct Traces {
    mounts: usize,
    processes: usize,
}

impl Traces {
    pub(super) fn find() -> Result<Self> {
        let mounts =
            fs::read_to_string("/proc/self/mountinfo").context("cannot list the mounts")?;
        Ok(Self { mounts: mounts.lines().count(), processes: our_processes()?.len() })
    }

    /// How many things there are that were not there before, of runs with these ids.
    pub(super) fn left(&self, home: &Home, ids: &BTreeSet<String>) -> Result<usize> {
        let deadline = Instant::now() + GONE_TIMEOUT;
        loop {
            let now = Self::find()?;
            let live = fs::read_dir(home.live()).context("cannot list the live runs")?.count();
            let left = live
                + groups_of(Path::new("/sys/fs/cgroup"), ids, 6)
                + now.processes.saturating_sub(self.processes)
                + now.mounts.saturating_sub(self.mounts);
            if left == 0 || Instant::now() > deadline {
                return Ok(left);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Control groups that carry the id of one of these runs.
fn groups_of(directory: &Path, ids: &BTreeSet<String>, depth: usize) -> usize {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let directories =
        entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let count = |entry: fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let own = usize::from(ids.iter().any(|id| name.contains(id.as_str())));
        let below = if depth == 0 { 0 } else { groups_of(&entry.path(), ids, depth - 1) };
        own + below
    };
    directories.map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_group_of_a_run_is_found_and_a_strangers_is_not() {
        let scratch = Scratch::new("left-behind-test").unwrap();
        fs::create_dir_all(scratch.path().join("memory/belljar/run-abc")).unwrap();
        fs::create_dir_all(scratch.path().join("memory/system/abd")).unwrap();
        let found = |id: &str| groups_of(scratch.path(), &BTreeSet::from([id.to_owned()]), 6);
        assert_eq!(found("abc"), 1);
        assert_eq!(found("xyz"), 0);
    }
}

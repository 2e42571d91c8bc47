//! Taking everything of the engines away. Only children are signalled: the keeper adopts whatever its
//! engines leave behind, so in the end all of it are children, and nothing else ever is.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

use crate::processes;

/// Docker gives its containers ten seconds.
const GRACE: Duration = Duration::from_secs(20);
const GONE_TIMEOUT: Duration = Duration::from_secs(20);

/// Takes the end of every child that has ended; their numbers are free again.
pub(super) fn reap(children: &mut Vec<Pid>) {
    while let Ok(Some((ended, _))) = wait(WaitOptions::NOHANG) {
        children.retain(|pid| *pid != ended);
    }
}

/// Asks each to end, the last one first: a dockerd needs its containerd until then.
pub(super) fn end_in_turn(daemons: &mut Vec<Pid>) {
    while let Some(pid) = daemons.last().copied() {
        let _ = kill_process(pid, Signal::TERM); // not yet waited for, so it is still the same one
        let deadline = Instant::now() + GRACE;
        while daemons.contains(&pid) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
            reap(daemons);
        }
        daemons.retain(|other| *other != pid); // one that does not heed it is a child like others
    }
}

/// Ends whatever is left: shims, watchers, containers.
pub(super) fn end_the_rest() -> Result<()> {
    let deadline = Instant::now() + GONE_TIMEOUT;
    loop {
        reap(&mut Vec::new());
        let left = processes::children(std::process::id())?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let name = |pid: &u32| format!("{pid} {}", processes::name(*pid).unwrap_or_default());
            bail!("cannot end: {}", left.iter().map(name).collect::<Vec<_>>().join(", "));
        }
        for pid in left.into_iter().filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Engines leave some on their own directories.
pub(super) fn unmount_below(directory: &Path) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("cannot list the mounts")?;
    for point in below(&mounts, directory).into_iter().rev() {
        unmount(&point, UnmountFlags::DETACH)
            .with_context(|| format!("cannot unmount {}", point.display()))?;
    }
    Ok(())
}

/// In the order in which they were mounted.
fn below(mounts: &str, directory: &Path) -> Vec<PathBuf> {
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    points.filter(|point| point.starts_with(directory)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_below_are_found() {
        let mounts = "1 0 8:1 / / rw - ext4 a rw\n2 1 8:1 /d /t/e-1/data rw - ext4 a rw\n\
                      3 1 8:1 /d /t/e-12/data rw - ext4 a rw\n4 2 0:1 / /t/e-1/data/x rw - t t rw\n";
        let found = below(mounts, Path::new("/t/e-1"));
        assert_eq!(found, [PathBuf::from("/t/e-1/data"), PathBuf::from("/t/e-1/data/x")]);
    }
}

//! Inspects processes and cgroups of the host from outside the sandbox.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// Looks again and again until it holds, or the time is over.
pub fn until(within: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let limit = Instant::now() + within;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(i32::try_from(number).unwrap()).unwrap()
}

/// To a process that the test itself started, or that belongs to one of its runs.
pub fn send(to: u32, signal: Signal) {
    let _ = kill_process(pid(to), signal); // gone already is what the caller finds out anyway
}

pub fn alive(number: u32) -> bool {
    test_kill_process(pid(number)).is_ok() && state(number) != Some('Z')
}

/// `R`, `S`, `T`, `Z`, …
pub(crate) fn state(number: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

pub(super) fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Processes with this text among their arguments, whatever namespace they are in.
pub fn processes_with(text: &str) -> Vec<u32> {
    let has = |number: &u32| {
        let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        line.windows(text.len()).any(|window| window == text.as_bytes())
    };
    all().into_iter().filter(has).collect()
}

/// Processes that run this file: launchers, half-made sandboxes, and PID 1 of each.
pub fn processes_of(executable: &Path) -> Vec<u32> {
    let runs = |number: &u32| {
        fs::read_link(format!("/proc/{number}/exe")).is_ok_and(|exe| {
            exe.as_os_str().as_bytes().starts_with(executable.as_os_str().as_bytes())
        })
    };
    all().into_iter().filter(runs).collect()
}

pub fn children_of(parent: u32) -> Vec<u32> {
    let is_child = |number: &u32| {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        after_name.split_whitespace().nth(1) == Some(parent.to_string().as_str())
    };
    all().into_iter().filter(is_child).collect()
}

/// Real, effective, saved and file system uid, as the host knows them.
pub fn host_uids(number: u32) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    line.split_whitespace().map(|uid| uid.parse().unwrap()).collect()
}

/// The most memory that a process had resident so far, in bytes; nothing once it is gone.
pub fn peak_memory(number: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{number}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

#[track_caller]
pub fn wait_until_gone(within: Duration, marker: &str, executable: &Path) {
    let left = || [processes_with(marker), processes_of(executable)].concat();
    assert!(
        until(within, || left().is_empty()),
        "left after {within:?}: {:?}",
        left().into_iter().map(describe).collect::<Vec<_>>()
    );
}

pub(super) fn describe(number: u32) -> String {
    let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
    format!("{number} {:?} {}", state(number), String::from_utf8_lossy(&line).replace('\0', " "))
}

/// Cgroup directories of these runs, wherever they are.
pub fn cgroups_named(names: &[String]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    look_in(Path::new("/sys/fs/cgroup"), names, 8, &mut found);
    found
}

fn look_in(directory: &Path, names: &[String], depth: u32, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
    {
        let name = entry.file_name();
        if names.iter().any(|run| name.to_string_lossy().ends_with(run.as_str())) {
            found.push(entry.path());
        } else if depth > 0 {
            look_in(&entry.path(), names, depth - 1, found);
        }
    }
}

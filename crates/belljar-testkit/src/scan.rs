//! Searches processes and files of a sandbox for a text, from outside, as root.
//!
//! `grep` searches: it is in every Debian system, and the memory of an agent is hundreds of megabytes.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::processes::all;

const PAGE: u64 = 4096;
/// Of an entry in `/proc/PID/pagemap`: the page is in memory, or swapped out.
const PRESENT_OR_SWAPPED: u64 = 0b11 << 62;

/// The value of a variable in a process's environment.
pub fn variable_of(pid: u32, name: &str) -> Option<String> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let head = format!("{name}=");
    let mut variables = environ.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    variables.find_map(|variable| variable.strip_prefix(&head).map(str::to_owned))
}

/// All processes in the same pid namespace.
pub fn in_same_pid_namespace(pid: u32) -> Vec<u32> {
    let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let wanted = namespace(pid);
    all().into_iter().filter(|other| wanted.is_some() && namespace(*other) == wanted).collect()
}

/// Whether the text is in the memory of a process: every page that it can read, and its environment. `None` where the
/// process is gone.
pub fn memory_has(pid: u32, text: &str) -> Option<bool> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    let pages = File::open(format!("/proc/{pid}/pagemap")).ok()?;
    let mut grep = Command::new("grep")
        .args(["-z", "-a", "-c", "-F", "-e", text])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = grep.stdin.take().unwrap();
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ').unwrap();
        let is_kernels = line.ends_with("[vvar]") || line.ends_with("[vsyscall]");
        if !rest.starts_with('r') || is_kernels || line.ends_with("[vvar_vclock]") {
            continue;
        }
        let (begin, end) = range.split_once('-').unwrap();
        let bounds = [begin, end].map(|text| u64::from_str_radix(text, 16).unwrap());
        feed(&memory, &pages, bounds, &mut to);
    }
    drop(to);
    let found = grep.wait_with_output().unwrap();
    let count = String::from_utf8(found.stdout).unwrap();
    Some(count.trim() != "0")
}

/// The pages that are there, in order; a text may cross from one to the next.
fn feed(memory: &File, pages: &File, [begin, end]: [u64; 2], to: &mut impl Write) {
    const AT_ONCE: u64 = 1 << 16;
    let mut page = begin / PAGE;
    let mut content = vec![0; PAGE as usize];
    let mut after_gap = true;
    while page < end / PAGE {
        let count = (end / PAGE - page).min(AT_ONCE);
        let mut entries = vec![0; (count * 8) as usize];
        if pages.read_exact_at(&mut entries, page * 8).is_err() {
            return;
        }
        for (index, entry) in entries.chunks_exact(8).enumerate() {
            let entry = u64::from_ne_bytes(entry.try_into().unwrap());
            let at = (page + index as u64) * PAGE;
            // A page can go between the two reads.
            if entry & PRESENT_OR_SWAPPED != 0 && memory.read_exact_at(&mut content, at).is_ok() {
                to.write_all(&content).unwrap();
                after_gap = false;
            } else if !std::mem::replace(&mut after_gap, true) {
                to.write_all(&[0]).unwrap(); // what is apart is not joined
            }
        }
        page += count;
    }
}

/// Files below these directories that have the text. Devices, sockets and pipes are not opened.
pub fn files_with(text: &str, directories: &[PathBuf]) -> Vec<PathBuf> {
    let present: Vec<&Path> =
        directories.iter().map(PathBuf::as_path).filter(|path| path.exists()).collect();
    assert!(!present.is_empty(), "nothing to search: {directories:?}");
    let found = Command::new("grep")
        .args(["-r", "-a", "-l", "-s", "--devices=skip", "-F", "-e", text])
        .args(&present)
        .output()
        .unwrap();
    String::from_utf8_lossy(&found.stdout).lines().map(PathBuf::from).collect()
}

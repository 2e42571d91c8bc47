//! Ends a whole tree of processes, also one that resists.
//!
//! Finds children through `/proc`, since this must work without control groups. Everything is stopped
//! before anything is killed: a stopped process cannot fork, and still counts against the limit of
//! processes, so a fork bomb runs dry instead of outrunning us.

use std::collections::{HashMap, HashSet};

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// So that one round ends, also when a process inside wakes what we stop.
const MAX_PASSES: usize = 100;

/// Everything below a process, without some of its children and what is below those.
pub(super) struct Tree<'a> {
    pub(super) root: Pid,
    pub(super) spared: &'a [Pid],
}

/// Whether a round found anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    Nothing,
    Processes,
}

impl Tree<'_> {
    /// Stops all, then kills all. What was found may take a moment to be gone.
    pub(super) fn end_once(&self) -> Round {
        let mut stopped = HashSet::new();
        for _ in 0..MAX_PASSES {
            let mut found_new = false;
            for pid in self.living().unwrap_or_default() {
                if stopped.insert(pid) {
                    found_new = true;
                    let _ = kill_process(pid, Signal::STOP); // gone already is as good
                }
            }
            if !found_new {
                break;
            }
        }
        // Looked up again: a pid from the first pass may be another process's by now.
        // A failed lookup does not count as an empty tree.
        let Ok(all) = self.living() else { return Round::Processes };
        for pid in &all {
            let _ = kill_process(*pid, Signal::KILL);
        }
        if all.is_empty() { Round::Nothing } else { Round::Processes }
    }

    fn living(&self) -> Result<Vec<Pid>, Errno> {
        let mut children: HashMap<Pid, Vec<(Pid, State)>> = HashMap::new();
        for ProcessStat { pid, parent, state } in processes()? {
            children.entry(parent).or_default().push((pid, state));
        }
        let mut living = Vec::new();
        let mut todo = vec![self.root];
        while let Some(parent) = todo.pop() {
            for (pid, state) in children.remove(&parent).unwrap_or_default() {
                if parent == self.root && self.spared.contains(&pid) {
                    continue;
                }
                todo.push(pid);
                if state != State::Dead {
                    living.push(pid);
                }
            }
        }
        Ok(living)
    }
}

/// Whether a process, or one of its children, is stopped.
pub(super) fn is_stopped_below(pid: Pid) -> bool {
    let is_in_tree = |seen: &ProcessStat| seen.pid == pid || seen.parent == pid;
    processes()
        .unwrap_or_default()
        .iter()
        .any(|seen| is_in_tree(seen) && seen.state == State::Stopped)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Alive,
    /// Alive as well, and waiting for a signal to continue.
    Stopped,
    Dead,
}

struct ProcessStat {
    pid: Pid,
    parent: Pid,
    state: State,
}

fn processes() -> Result<Vec<ProcessStat>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = open("/proc", flags, Mode::empty())?;
    let mut all = Vec::new();
    let mut buffer = [0; 1024];
    for entry in rustix::fs::Dir::read_from(&proc)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        let Some(pid) = name.parse().ok().and_then(Pid::from_raw) else { continue };
        let stat = format!("{name}/stat");
        // A process that is gone between the two lines has no parent.
        let Ok(file) = openat(&proc, stat, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
            continue;
        };
        let Ok(length) = rustix::io::read(&file, &mut buffer) else { continue };
        all.extend(read_stat(pid, &buffer[..length]));
    }
    Ok(all)
}

/// `7 (any (name) 1 2) S 1 …`: the name may hold anything, so the fields begin after the last bracket.
fn read_stat(pid: Pid, line: &[u8]) -> Option<ProcessStat> {
    let end = line.iter().rposition(|byte| *byte == b')')?;
    let mut fields = std::str::from_utf8(&line[end + 1..]).ok()?.split_ascii_whitespace();
    let state = match fields.next()? {
        "Z" | "X" | "x" => State::Dead,
        "T" | "t" => State::Stopped,
        _ => State::Alive,
    };
    let parent = Pid::from_raw(fields.next()?.parse().ok()?)?;
    Some(ProcessStat { pid, parent, state })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_move_the_fields() {
        let pid = Pid::from_raw(7).unwrap();
        let seen = read_stat(pid, b"7 (a) S 1 (b\n) Z) R 42 7 7 0 -1 4194304 1").unwrap();
        assert_eq!(seen.parent, Pid::from_raw(42).unwrap());
        assert!(seen.state == State::Alive);
        assert!(read_stat(pid, b"7 (a) Z 42").unwrap().state == State::Dead);
        for broken in [&b""[..], b"7 (a", b"7 (a)", b"7 (a) S", b"7 (a) S x", b"7 (a) S 0"] {
            assert!(read_stat(pid, broken).is_none());
        }
    }

    #[test]
    fn what_is_below_a_process_is_found_and_ended_and_what_is_spared_is_not() {
        let mut shell = std::process::Command::new("/bin/sh")
            .args(["-c", "sleep 60 & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = std::io::BufReader::new(shell.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut { stdout }, &mut line).unwrap();
        let sleeper = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        let root = Pid::from_child(&shell);
        assert_eq!(Tree { root, spared: &[sleeper] }.end_once(), Round::Nothing);
        assert_eq!(Tree { root, spared: &[] }.living().unwrap(), [sleeper]);
        assert_eq!(Tree { root, spared: &[] }.end_once(), Round::Processes);
        shell.wait().unwrap();
    }
}

//! Collects what a run used: from its control groups, or from the kernel's accounting of PID 1 and all that PID 1
//! reaped.

use std::fs::File;
use std::os::unix::fs::FileExt;

use belljar_spec::Usage;
use rustix::process::Pid;

use crate::sys::process::Used;

/// What is known besides the groups' present counters.
#[derive(Clone, Debug, Default)]
pub(super) struct Count {
    most_processes: Option<u64>,
    written: Option<u64>,
    last: Option<Usage>,
}

impl Count {
    pub(super) fn saw_processes(&mut self, now: Option<u64>) {
        self.most_processes = self.most_processes.max(now);
    }

    pub(super) fn saw_written(&mut self, so_far: Option<u64>) {
        self.written = self.written.max(so_far);
    }

    /// After the end. What a group counted holds for the whole tree, so it goes first.
    pub(super) fn is_final(&mut self, group: Usage, used: Option<Used>) {
        self.last = Some(Usage {
            wall_ms: 0,
            cpu_ms: group.cpu_ms.or(used.map(|used| used.cpu_ms)),
            memory_peak_bytes: group.memory_peak_bytes.or(used.map(|used| used.memory_peak_bytes)),
            pids_peak: group.pids_peak,
            written_bytes: group.written_bytes,
        });
    }

    pub(super) fn fill(&self, usage: &mut Usage) {
        if let Some(last) = &self.last {
            *usage = Usage { wall_ms: usage.wall_ms, ..*last };
        }
        usage.pids_peak = usage.pids_peak.or(self.most_processes);
        // A group counts what reached a disk, the process what will: the larger one is what it wrote.
        usage.written_bytes = usage.written_bytes.max(self.written);
    }
}

/// The kernel's accounting of the bytes that a process, and all that it reaped, wrote. Opened at once:
/// afterwards PID 1 hides itself, and an ordinary user may not open its files any more, but may read on while
/// PID 1 lives. (Some kernels let it read on until it is reaped, newer ones only root.)
#[derive(Debug)]
pub(super) struct WriteAccount(Option<File>);

impl WriteAccount {
    pub(super) fn open(pid: Pid) -> Self {
        Self(File::open(format!("/proc/{}/io", pid.as_raw_nonzero())).ok())
    }

    /// `None` where the kernel keeps no such account, or after the process was reaped.
    pub(super) fn bytes(&self) -> Option<u64> {
        let mut text = [0; 512];
        let length = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..length]).ok()?;
        text.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USED: Used = Used { cpu_ms: 7, memory_peak_bytes: 4096 };

    #[test]
    fn what_a_group_counted_goes_before_what_pid_1_did() {
        let mut count = Count::default();
        count.saw_processes(Some(3));
        count.saw_processes(Some(2));
        count.saw_processes(None);
        let group = Usage { cpu_ms: Some(9), written_bytes: Some(1), ..Usage::default() };
        count.saw_written(Some(5));
        count.saw_written(None);
        count.is_final(group, Some(USED));
        let mut usage = Usage { wall_ms: 11, ..Usage::default() };
        count.fill(&mut usage);
        let expected = Usage {
            wall_ms: 11,
            cpu_ms: Some(9),
            memory_peak_bytes: Some(4096),
            pids_peak: Some(3),
            written_bytes: Some(5),
        };
        assert_eq!(usage, expected);
    }

    #[test]
    fn a_child_that_ended_can_be_asked_until_it_is_reaped() {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"])
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        let account = WriteAccount::open(pid);
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        assert!(account.bytes().is_some());
        let used = crate::sys::process::reap(pid).unwrap();
        assert!(used.cpu_ms > 0 && used.memory_peak_bytes > 0, "{used:?}");
        assert!(crate::sys::process::reap(pid).is_err());
        assert!(child.wait().is_err());
        assert_eq!(account.bytes(), None);
    }
}

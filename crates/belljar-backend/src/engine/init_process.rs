//! A container of an engine, as the host sees it: its first process and its control groups.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use belljar_spec::{Limits, Usage};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::groups::{self, Observed};

/// The first process of a container, held by descriptor.
///
/// Its number comes from the engine. It is this very process as long as the sandbox answered on its channel
/// after this was made: a number cannot be given away while its owner lives.
#[derive(Debug)]
pub(super) struct Init {
    pid: Pid,
    pidfd: OwnedFd,
    groups: Observed,
}

impl Init {
    /// `container`: what must be in the names of its control groups; otherwise they are not the container's.
    pub(super) fn find(pid: i32, container: &str) -> io::Result<Self> {
        let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        // The container may have ended before, and its pid be another process's.
        if !names(pid, container) {
            return Err(Errno::SRCH.into());
        }
        Ok(Self { pid, pidfd, groups: groups::of(pid).of_container(container) })
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Readable once it is gone, and with it everything inside.
    pub(super) fn end(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Ends it where this user may. Gone already is as good.
    pub(super) fn kill(&self) -> Result<(), Errno> {
        match pidfd_send_signal(&self.pidfd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Limits as the kernel has them; what does not read back is not held.
    pub(super) fn check_limits(&self, limits: &Limits) -> Result<(), LimitNotHeld> {
        self.groups.check(limits)
    }

    pub(super) fn usage(&self, usage: &mut Usage) {
        self.groups.usage(usage);
    }

    pub(super) fn oom_kills(&self) -> u64 {
        self.groups.oom_kills()
    }

    pub(super) fn processes(&self) -> Option<u64> {
        self.groups.processes()
    }
}

/// Whether a process has a container's id in its control groups, in its arguments (gVisor's sandbox), or in
/// those of the engine's process that watches it (a rootless engine without groups).
fn names(pid: Pid, container: &str) -> bool {
    let has = |pid: i32, file: &str| {
        let text = std::fs::read(format!("/proc/{pid}/{file}"));
        text.is_ok_and(|text| String::from_utf8_lossy(&text).contains(container))
    };
    let init = pid.as_raw_nonzero().get();
    let watched = || parent_of(init).is_some_and(|parent| has(parent, "cmdline"));
    !container.is_empty() && (has(init, "cgroup") || has(init, "cmdline") || watched())
}

fn parent_of(pid: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    parent.trim().parse().ok()
}

/// A limit that the engine was asked for and the kernel does not have.
#[derive(Debug, thiserror::Error)]
#[error("{what} is {found}, not {wanted}")]
pub struct LimitNotHeld {
    pub what: String,
    pub wanted: String,
    pub found: String,
}

impl LimitNotHeld {
    pub(super) fn at(path: &Path, wanted: impl ToString, found: Option<String>) -> Self {
        let (what, wanted) = (path.display().to_string(), wanted.to_string());
        Self { what, wanted, found: found.unwrap_or_else(|| "not to be read".to_owned()) }
    }

    pub(super) fn no_group(name: &str, wanted: impl ToString) -> Self {
        let what = format!("the {name} control group");
        Self { what, wanted: wanted.to_string(), found: "missing".to_owned() }
    }
}

/// Whether limits of an engine's containers can be read back here at all.
pub(super) fn groups_can_be_read() -> bool {
    let current = Pid::from_raw(std::process::id() as i32);
    current.is_some_and(|pid| !groups::of(pid).is_empty())
}

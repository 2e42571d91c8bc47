//! A control group with little memory, for a control that raises the limit.

use std::path::PathBuf;
use std::time::Duration;

use belljar_linux::jail::cgroup::{Available, Group, detect};
use belljar_spec::Limits;

use super::{TestBed, TestBedError};

/// Removed when dropped; by then its processes must have ended.
pub(crate) struct MemoryGroup(Group);

impl MemoryGroup {
    /// `Err` inside is why this host has none for us.
    pub(crate) fn make(
        testbed: &TestBed,
        bytes: u64,
    ) -> Result<Result<Self, String>, TestBedError> {
        let available = detect();
        if let Available::Manager { .. } = available {
            return Ok(Err("only the systemd user manager makes control groups here".to_owned()));
        }
        let limits = Limits {
            memory: Some(bytes),
            millicpus: None,
            pids: None,
            time: None,
            idle: None,
            output: 0,
            disk: None,
            stop_timeout: Duration::ZERO,
        };
        match Group::make(&available, &testbed.unique_name()?, &limits) {
            Ok(Some(group)) => Ok(Ok(Self(group))),
            Ok(None) => Ok(Err("no control group can be made".to_owned())),
            Err(error) => Ok(Err(belljar_spec::text::error_chain(&error))),
        }
    }

    fn files(&self, names: &[&str]) -> Vec<PathBuf> {
        let directories = self.0.directories();
        let all = directories.iter().flat_map(|at| names.iter().map(|name| at.join(name)));
        all.filter(|path| path.exists()).collect()
    }

    /// What a process writes itself to, to be in it.
    pub(crate) fn procs(&self) -> Vec<PathBuf> {
        self.files(&["cgroup.procs"])
    }

    pub(crate) fn limits(&self) -> Vec<PathBuf> {
        self.files(crate::probe::MEMORY_LIMITS)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = self.0.remove(); // empty by now; an error cannot be reported
    }
}

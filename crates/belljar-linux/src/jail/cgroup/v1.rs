//! cgroup v1: one directory in each hierarchy that enforces a limit of the run.

use std::path::{Path, PathBuf};

use belljar_spec::{Limits, Usage, user_cgroup};
use belljar_sys::cgroup_files::{read_keyed, read_number};
use belljar_sys::mountinfo::{MountLine, MountTable};

use super::{CgroupError, Controller, TOP, is_read_only, make_directory, set_and_verify};

/// Where groups can be made; `None` for a controller that is not there or not ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hierarchies {
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
    pids: Option<PathBuf>,
}

/// `None` where no v1 hierarchy has a controller that limits are held by.
pub(super) fn detect(table: &MountTable, current: &str, is_root: bool) -> Option<Hierarchies> {
    let find = |controller: &str| {
        let has = |options: &str| options.split(',').any(|option| option == controller);
        let mount = table.of_type("cgroup").find(|line| has(&line.super_options))?;
        if is_read_only(mount) {
            return None; // as in a container
        }
        if is_root {
            return Some(mount.mount_point.join(TOP));
        }
        // `5:memory:/some/group`: an ordinary user can make groups below where it is, if that was given to it.
        let path = current.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let controllers = fields.next()?;
            controllers.split(',').any(|name| name == controller).then(|| fields.next())?
        })?;
        let delegated = mount.mount_point.join(path.trim_start_matches('/'));
        // Or in what `belljar setup` made: v1 lets a user move its processes there from anywhere.
        let own = || mount.mount_point.join(user_cgroup(rustix::process::geteuid().as_raw()));
        [delegated].into_iter().chain(std::iter::once_with(own)).find(|place| may_make_in(place))
    };
    let mounted = table.of_type("cgroup").any(holds_limits);
    let found = Hierarchies { memory: find("memory"), cpu: find("cpu"), pids: find("pids") };
    mounted.then_some(found)
}

/// Whether this hierarchy has a controller that limits are held by.
pub(super) fn holds_limits(line: &MountLine) -> bool {
    line.super_options.split(',').any(|option| ["memory", "cpu", "pids"].contains(&option))
}

fn may_make_in(directory: &Path) -> bool {
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK).is_ok()
        && rustix::fs::access(directory.join("cgroup.procs"), rustix::fs::Access::WRITE_OK).is_ok()
}

impl Hierarchies {
    fn of(&self, controller: Controller) -> Option<&PathBuf> {
        match controller {
            Controller::Memory => self.memory.as_ref(),
            Controller::Cpu => self.cpu.as_ref(),
            Controller::Pids => self.pids.as_ref(),
        }
    }

    pub(super) fn holds(&self, controller: Controller) -> Result<String, (String, String)> {
        match self.of(controller) {
            Some(_) => Ok(format!("cgroup v1 {} controller, read back", controller.name())),
            None => Err((
                format!("no {} control group is delegated to this user", controller.name()),
                super::SETUP_FIX.to_owned(),
            )),
        }
    }

    /// The directories that hold the groups of runs.
    pub(super) fn parents(&self) -> Vec<PathBuf> {
        [&self.memory, &self.cpu, &self.pids].into_iter().flatten().cloned().collect()
    }

    pub(super) fn groups_of(&self, run: &str) -> Vec<PathBuf> {
        self.parents().iter().map(|parent| parent.join(run)).collect()
    }
}

#[derive(Debug)]
pub(super) struct GroupV1 {
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
    pids: Option<PathBuf>,
}

impl GroupV1 {
    /// A hierarchy in which this run has no limit gets no directory: attaching costs time.
    pub(super) fn make(
        hierarchies: &Hierarchies,
        run: &str,
        limits: &Limits,
    ) -> Result<Option<Self>, CgroupError> {
        let wanted = [
            (Controller::Memory, limits.memory.is_some()),
            (Controller::Cpu, limits.millicpus.is_some()),
            (Controller::Pids, limits.pids.is_some()),
        ];
        // Before anything is made that would have to be removed again.
        let is_missing = |controller| hierarchies.of(controller).is_none();
        if let Some((controller, _)) =
            wanted.iter().find(|(controller, wanted)| *wanted && is_missing(*controller))
        {
            return Err(CgroupError::Missing { controller: controller.name() });
        }
        let directory = |parent: &Option<PathBuf>, wanted: bool| match parent {
            Some(parent) if wanted => {
                let directory = parent.join(run);
                if let Err(first) = make_directory(&directory) {
                    // The parent is missing the first time.
                    make_directory(parent).map_err(|_| first)?;
                    make_directory(&directory)?;
                }
                Ok(Some(directory))
            }
            _ => Ok(None),
        };
        let group = Self {
            memory: directory(&hierarchies.memory, limits.memory.is_some())?,
            cpu: directory(&hierarchies.cpu, limits.millicpus.is_some())?,
            pids: directory(&hierarchies.pids, limits.pids.is_some())?,
        };
        if group.directories().is_empty() {
            return Ok(None);
        }
        if let Err(error) = group.set(limits) {
            for directory in group.directories() {
                let _ = std::fs::remove_dir(directory); // the error that matters is the first one
            }
            return Err(error);
        }
        Ok(Some(group))
    }

    fn set(&self, limits: &Limits) -> Result<(), CgroupError> {
        if let (Some(directory), Some(bytes)) = (&self.memory, limits.memory) {
            let bytes = bytes.to_string();
            set_and_verify(&directory.join("memory.limit_in_bytes"), &bytes)?;
            let with_swap = directory.join("memory.memsw.limit_in_bytes");
            if with_swap.exists() {
                set_and_verify(&with_swap, &bytes)?;
            } else {
                // Without swap accounting, at least this group is not the one to be swapped.
                set_and_verify(&directory.join("memory.swappiness"), "0")?;
            }
        }
        if let (Some(directory), Some(millicpus)) = (&self.cpu, limits.millicpus) {
            set_and_verify(&directory.join("cpu.cfs_period_us"), "100000")?;
            let quota = (u64::from(millicpus) * 100).max(1000);
            set_and_verify(&directory.join("cpu.cfs_quota_us"), &quota.to_string())?;
        }
        if let (Some(directory), Some(pids)) = (&self.pids, limits.pids) {
            set_and_verify(&directory.join("pids.max"), &pids.to_string())?;
        }
        Ok(())
    }

    pub(super) fn directories(&self) -> Vec<PathBuf> {
        [&self.memory, &self.cpu, &self.pids].into_iter().flatten().cloned().collect()
    }

    pub(super) fn pids_directory(&self) -> Option<&Path> {
        self.pids.as_deref()
    }

    pub(super) fn oom_kills(&self) -> u64 {
        let Some(directory) = &self.memory else { return 0 };
        read_keyed(&directory.join("memory.oom_control"), "oom_kill").unwrap_or(0)
    }

    pub(super) fn usage(&self, usage: &mut Usage) {
        if let Some(directory) = &self.memory {
            usage.memory_peak_bytes = read_number(&directory.join("memory.max_usage_in_bytes"));
        }
        if let Some(directory) = &self.cpu {
            // Where the two controllers share a hierarchy, as they do on most systems.
            let nanos = read_number(&directory.join("cpuacct.usage"));
            usage.cpu_ms = nanos.map(|nanos| nanos / 1_000_000);
        }
        if let Some(directory) = &self.pids {
            usage.pids_peak = read_number(&directory.join("pids.peak"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn limits(memory: Option<u64>, pids: Option<u32>) -> Limits {
        Limits {
            memory,
            millicpus: None,
            pids,
            time: None,
            idle: None,
            output: 0,
            disk: None,
            stop_timeout: Duration::ZERO,
        }
    }

    /// The posture has promised a group by then.
    #[test]
    fn a_limit_without_its_hierarchy_is_an_error_and_leaves_nothing() {
        let parent = std::env::temp_dir().join(format!("belljar-v1-{}", std::process::id()));
        let hierarchies = Hierarchies { memory: Some(parent.clone()), cpu: None, pids: None };
        let missing = GroupV1::make(&hierarchies, "r", &limits(Some(1 << 20), Some(8)));
        assert!(matches!(missing, Err(CgroupError::Missing { controller: "pids" })), "{missing:?}");
        assert!(!parent.exists());
        // The control: a controller without a limit need not exist.
        assert!(matches!(GroupV1::make(&hierarchies, "r", &limits(None, None)), Ok(None)));
    }
}

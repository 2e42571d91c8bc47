//! Reads control groups that another program made for a process, and never changes them.

use std::path::{Path, PathBuf};

use belljar_spec::{Limits, Usage};
use belljar_sys::cgroup_files::{self, read_keyed, read_number};
use belljar_sys::mountinfo::MountTable;
use rustix::process::Pid;

use super::init_process::LimitNotHeld;

/// One directory for each controller; the same one for all on cgroup v2.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
    cpuacct: Option<PathBuf>,
    pids: Option<PathBuf>,
    is_v2: bool,
}

/// The groups of a process. Empty where they cannot be seen.
pub(super) fn of(pid: Pid) -> Observed {
    let path = format!("/proc/{}/cgroup", pid.as_raw_nonzero());
    let (Ok(text), Ok(table)) = (std::fs::read_to_string(path), MountTable::read()) else {
        return Observed::default();
    };
    find(&text, &table)
}

fn find(text: &str, table: &MountTable) -> Observed {
    let v1 = |controller: &str| {
        let named = |list: &str| list.split(',').any(|name| name == controller);
        let mount = table.of_type("cgroup").find(|line| named(&line.super_options))?;
        let group = text.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            named(fields.next()?).then(|| fields.next())?
        })?;
        existing(&mount.mount_point, group)
    };
    let found = Observed {
        memory: v1("memory"),
        cpu: v1("cpu"),
        cpuacct: v1("cpuacct"),
        pids: v1("pids"),
        is_v2: false,
    };
    if !found.is_empty() {
        return found;
    }
    let unified = table.of_type("cgroup2").next().and_then(|mount| {
        let group = text.lines().find_map(|line| line.strip_prefix("0::"))?;
        existing(&mount.mount_point, group)
    });
    Observed {
        memory: unified.clone(),
        cpu: unified.clone(),
        cpuacct: None,
        pids: unified.clone(),
        is_v2: unified.is_some(),
    }
}

fn existing(mount: &Path, group: &str) -> Option<PathBuf> {
    let directory = mount.join(group.trim_start_matches('/'));
    // A path that leads out of the mount is of another cgroup namespace.
    (directory.is_dir() && !group.contains("/..")).then_some(directory)
}

impl Observed {
    pub(super) fn is_empty(&self) -> bool {
        self.memory.is_none() && self.cpu.is_none() && self.pids.is_none()
    }

    /// A runtime without control groups leaves its container in another program's group.
    pub(super) fn of_container(self, id: &str) -> Self {
        let of_container = |directory: Option<PathBuf>| {
            directory.filter(|path| !id.is_empty() && path.to_string_lossy().contains(id))
        };
        Self {
            memory: of_container(self.memory),
            cpu: of_container(self.cpu),
            cpuacct: of_container(self.cpuacct),
            pids: of_container(self.pids),
            is_v2: self.is_v2,
        }
    }

    pub(super) fn check(&self, limits: &Limits) -> Result<(), LimitNotHeld> {
        if let Some(wanted) = limits.memory {
            let directory = self.memory.as_ref().ok_or(LimitNotHeld::no_group("memory", wanted))?;
            let file = if self.is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
            at_most(&directory.join(file), wanted)?;
            // Swap on top would be more memory. Where no group counts it there is no swap to limit.
            let (swap, limit) = match self.is_v2 {
                true => (directory.join("memory.swap.max"), 0),
                false => (directory.join("memory.memsw.limit_in_bytes"), wanted),
            };
            if swap.exists() {
                at_most(&swap, limit)?;
            }
        }
        if let Some(wanted) = limits.pids {
            let directory = self.pids.as_ref().ok_or(LimitNotHeld::no_group("pids", wanted))?;
            at_most(&directory.join("pids.max"), u64::from(wanted))?;
        }
        if let Some(millicpus) = limits.millicpus {
            let directory = self.cpu.as_ref().ok_or(LimitNotHeld::no_group("cpu", millicpus))?;
            self.check_cpu(directory, millicpus)?;
        }
        Ok(())
    }

    fn check_cpu(&self, directory: &Path, millicpus: u32) -> Result<(), LimitNotHeld> {
        let (path, numbers) = if self.is_v2 {
            let path = directory.join("cpu.max");
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let mut fields = text.split_whitespace().map(str::parse::<u64>);
            let numbers = (fields.next(), fields.next());
            (path, (numbers.0.and_then(Result::ok), numbers.1.and_then(Result::ok)))
        } else {
            let path = directory.join("cpu.cfs_quota_us");
            let period = read_number(&directory.join("cpu.cfs_period_us"));
            (path.clone(), (read_number(&path), period))
        };
        match numbers {
            (Some(quota), Some(period @ 1..)) if quota * 1000 <= u64::from(millicpus) * period => {
                Ok(())
            }
            found => Err(LimitNotHeld::at(
                &path,
                format!("{millicpus}/1000"),
                Some(format!("{found:?}")),
            )),
        }
    }

    pub(super) fn oom_kills(&self) -> u64 {
        match &self.memory {
            Some(directory) if self.is_v2 => cgroup_files::oom_kills(directory),
            Some(directory) => {
                read_keyed(&directory.join("memory.oom_control"), "oom_kill").unwrap_or(0)
            }
            None => 0,
        }
    }

    pub(super) fn processes(&self) -> Option<u64> {
        read_number(&self.pids.as_ref()?.join("pids.current"))
    }

    pub(super) fn usage(&self, usage: &mut Usage) {
        if self.is_v2 {
            if let Some(directory) = &self.memory {
                cgroup_files::usage(directory, usage);
            }
            return;
        }
        if let Some(directory) = &self.memory {
            usage.memory_peak_bytes = read_number(&directory.join("memory.max_usage_in_bytes"));
        }
        if let Some(directory) = self.cpuacct.as_ref().or(self.cpu.as_ref()) {
            let nanos = read_number(&directory.join("cpuacct.usage"));
            usage.cpu_ms = nanos.map(|nanos| nanos / 1_000_000);
        }
    }
}

/// A limit of the kernel is a number, or a string that means none. Memory counts in pages.
fn at_most(path: &Path, wanted: u64) -> Result<(), LimitNotHeld> {
    match read_number(path) {
        Some(found) if found <= wanted => Ok(()),
        _ => {
            let found = std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
            Err(LimitNotHeld::at(path, wanted, found))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_of_another_namespace_is_none_of_ours() {
        assert_eq!(existing(Path::new("/"), "/../tmp"), None);
        assert_eq!(existing(Path::new("/"), "/tmp"), Some(PathBuf::from("/tmp")));
        assert_eq!(existing(Path::new("/"), "/there is no such thing"), None);
    }
}

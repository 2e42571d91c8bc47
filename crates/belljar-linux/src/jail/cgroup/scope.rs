//! Makes a transient scope of the systemd user manager: how an ordinary user gets limits on the whole tree
//! where nothing is delegated to it directly. The manager sets the limits; they are read back here.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use belljar_spec::{Limits, Usage};
use belljar_sys::cgroup_files;
use belljar_sys::mountinfo::MountTable;
use rustix::process::Pid;

use super::{CgroupError, Controller, v2};

/// Where the user manager keeps its groups, if there is one that can be asked.
pub(super) fn detect(table: &MountTable) -> Option<PathBuf> {
    let runtime = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    if !runtime.join("systemd/private").exists() || !runtime.join("bus").exists() {
        return None;
    }
    find_busctl()?;
    let uid = rustix::process::getuid().as_raw();
    let mount = table.of_type("cgroup2").next()?;
    let manager = mount.mount_point.join(format!("user.slice/user-{uid}.slice/user@{uid}.service"));
    manager.is_dir().then_some(manager)
}

pub(super) fn holds(manager: &Path, controller: Controller) -> Result<String, (String, String)> {
    v2::holds(manager, controller).map(|_| {
        format!("{} limit of a scope of the systemd user manager, read back", controller.name())
    })
}

fn find_busctl() -> Option<PathBuf> {
    ["/usr/bin/busctl", "/bin/busctl"].iter().map(PathBuf::from).find(|path| path.is_file())
}

#[derive(Debug)]
pub(super) struct ScopeGroup {
    name: String,
    limits: Limits,
    directory: Option<PathBuf>,
}

impl ScopeGroup {
    pub(super) fn new(run: &str, limits: &Limits) -> Self {
        Self { name: format!("belljar-{run}.scope"), limits: limits.clone(), directory: None }
    }

    /// Asks the manager to take the process into a new scope, then sees what it did.
    pub(super) fn take(&mut self, pid: Pid) -> Result<(), CgroupError> {
        let failed = |why: String| CgroupError::Manager { why };
        let busctl = find_busctl().ok_or_else(|| failed("busctl is not there".to_owned()))?;
        let asked = Command::new(busctl)
            .args(arguments(&self.name, pid, &self.limits))
            .stdin(Stdio::null())
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if !asked.status.success() {
            return Err(failed(String::from_utf8_lossy(&asked.stderr).trim().to_owned()));
        }
        // The manager answers before it has done it.
        for _ in 0..200 {
            if let Some(directory) = directory_of(pid, &self.name) {
                v2::verify(&directory, &self.limits)?;
                self.directory = Some(directory);
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Err(failed(format!("the process did not appear in {}", self.name)))
    }

    pub(super) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    pub(super) fn oom_kills(&self) -> u64 {
        self.directory().map_or(0, cgroup_files::oom_kills)
    }

    pub(super) fn usage(&self, usage: &mut Usage) {
        if let Some(directory) = self.directory() {
            cgroup_files::usage(directory, usage);
        }
    }
}

fn directory_of(pid: Pid, scope: &str) -> Option<PathBuf> {
    let groups =
        belljar_sys::kernel_file::read_text(format!("/proc/{}/cgroup", pid.as_raw_nonzero()))
            .ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let table = MountTable::read().ok()?;
    let mount = table.of_type("cgroup2").next()?.mount_point.clone();
    path.ends_with(scope).then(|| mount.join(path.trim_start_matches('/')))
}

/// `StartTransientUnit(name, mode, properties, auxiliary units)`.
fn arguments(name: &str, pid: Pid, limits: &Limits) -> Vec<String> {
    let mut properties: Vec<[String; 3]> = Vec::new();
    let mut set = |name: &str, kind: &str, value: String| {
        properties.push([name.to_owned(), kind.to_owned(), value]);
    };
    if let Some(bytes) = limits.memory {
        set("MemoryMax", "t", bytes.to_string());
        set("MemorySwapMax", "t", "0".to_owned());
    }
    if let Some(pids) = limits.pids {
        set("TasksMax", "t", pids.to_string());
    }
    if let Some(millicpus) = limits.millicpus {
        set("CPUQuotaPerSecUSec", "t", (u64::from(millicpus) * 1000).to_string());
    }
    let mut arguments: Vec<String> = [
        "--user",
        "call",
        "org.freedesktop.systemd1",
        "/org/freedesktop/systemd1",
        "org.freedesktop.systemd1.Manager",
        "StartTransientUnit",
        "ssa(sv)a(sa(sv))",
        name,
        "fail",
    ]
    .map(str::to_owned)
    .to_vec();
    arguments.push((properties.len() + 1).to_string());
    let pid = pid.as_raw_nonzero().to_string();
    arguments.extend(["PIDs".to_owned(), "au".to_owned(), "1".to_owned(), pid]);
    arguments.extend(properties.into_iter().flatten());
    arguments.push("0".to_owned());
    arguments
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_request_names_every_limit_once() {
        let limits = Limits {
            memory: Some(1 << 30),
            millicpus: Some(1500),
            pids: Some(64),
            time: None,
            idle: None,
            output: 0,
            disk: None,
            stop_timeout: Duration::ZERO,
        };
        let pid = Pid::from_raw(42).unwrap();
        let line = arguments("belljar-x.scope", pid, &limits).join(" ");
        assert!(line.contains(
            "belljar-x.scope fail 5 PIDs au 1 42 MemoryMax t 1073741824 MemorySwapMax t 0 TasksMax t 64 \
             CPUQuotaPerSecUSec t 1500000 0"
        ), "{line}");
    }
}

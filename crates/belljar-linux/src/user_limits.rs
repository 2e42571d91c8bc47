//! Limits what a run may use of counters that the kernel keeps for a whole user.
//!
//! The kernel charges most of what a user namespace holds to the user who made it, too: inotify watches, pending
//! signals and timers, bytes in message queues. Without a limit one run could take all of them, and programs
//! of that user on the host would fail. A run gets a part: half of what the user has, and never more than programs need.
//!
//! There are two kinds. `/proc/sys/user/*` holds a limit for each user namespace, and is written in the sandbox's.
//! Resource limits are a namespace's maximum as they were for the process that made it, so they are set before the
//! sandbox's namespace is made; every process inside inherits them, and none has the right to raise them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_spec::Rlimit as PlannedLimit;
use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// For a counter that only processes outside a sandbox need.
const NONE: u64 = 0;

/// The name in `/proc/sys/user`, and the maximum that a run needs of it. The filter also refuses calls for fanotify
/// and for namespaces.
const COUNTERS: &[(&str, u64)] = &[
    // Watchers of large projects (bundlers, editors' servers) take one for each directory or file.
    ("max_inotify_watches", 65_536),
    ("max_inotify_instances", 32),
    ("max_fanotify_groups", NONE),
    ("max_fanotify_marks", NONE),
    ("max_user_namespaces", NONE),
    ("max_pid_namespaces", NONE),
    ("max_uts_namespaces", NONE),
    ("max_ipc_namespaces", NONE),
    ("max_net_namespaces", NONE),
    ("max_mnt_namespaces", NONE),
    ("max_cgroup_namespaces", NONE),
    ("max_time_namespaces", NONE),
];

/// Resource limits that the kernel counts for a user: the name, and the maximum that a run needs.
const RESOURCES: &[(&str, u64)] = &[
    // Each timer of `timer_create` counts as one, too.
    ("sigpending", 16_384),
    ("msgqueue", 4 << 20),
    ("memlock", 64 << 20),
];

/// Before the name of a counter, in an attestation.
const PREFIX: &str = "user.";

/// What one run gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UserLimits {
    counters: Vec<(&'static str, u64)>,
    resources: Vec<(&'static str, u64)>,
}

impl UserLimits {
    /// A part of the caller's limits. Where the kernel lacks a counter, nothing can be used up.
    pub(crate) fn of_caller(planned: &[PlannedLimit]) -> Self {
        let directory = counter_directory();
        let counters = COUNTERS.iter().filter_map(|(name, maximum)| {
            let callers = read_counter(directory.as_ref()?, name)?;
            Some((*name, (callers / 2).min(*maximum)))
        });
        let is_planned = |name: &str| planned.iter().any(|limit| limit.name == name);
        let mut resources: Vec<(&'static str, u64)> = Vec::new();
        for (name, maximum) in RESOURCES.iter().filter(|(name, _)| !is_planned(name)) {
            let Some(resource) = resource(name) else { continue };
            let callers = getrlimit(resource).maximum.unwrap_or(u64::MAX);
            resources.push((name, (callers / 2).min(*maximum)));
        }
        // Root may have any number of processes; for all other users those of a run count.
        let is_root = rustix::process::geteuid().is_root();
        if let (false, false, Some(callers)) =
            (is_root, is_planned("nproc"), getrlimit(Resource::Nproc).maximum)
        {
            resources.push(("nproc", callers / 2));
        }
        Self { counters: counters.collect(), resources }
    }

    /// By the names that [`read_back`] gives them.
    pub(crate) fn expected(&self) -> impl Iterator<Item = (String, u64)> {
        let counters =
            self.counters.iter().map(|(name, value)| (format!("{PREFIX}{name}"), *value));
        counters.chain(self.resources.iter().map(|(name, value)| ((*name).to_owned(), *value)))
    }

    /// For this process and all that it starts; and the maximum of the user namespaces that it makes.
    pub(crate) fn set_resources(&self) -> Result<(), Errno> {
        for (name, value) in &self.resources {
            let Some(resource) = resource(name) else { continue };
            setrlimit(resource, Rlimit { current: Some(*value), maximum: Some(*value) })?;
        }
        Ok(())
    }

    /// For the user namespace of this process. `directory`: `sys/user` of a procfs.
    pub(crate) fn write_counters(&self, directory: BorrowedFd<'_>) -> Result<(), Errno> {
        for (name, value) in &self.counters {
            let file = openat(directory, *name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            rustix::io::write(&file, value.to_string().as_bytes())?;
        }
        Ok(())
    }
}

/// What holds for this process and its user namespace.
pub(crate) fn read_back() -> BTreeMap<String, u64> {
    let directory = counter_directory();
    let counters = COUNTERS.iter().filter_map(|(name, _)| {
        Some((format!("{PREFIX}{name}"), read_counter(directory.as_ref()?, name)?))
    });
    let resources = RESOURCES.iter().map(|(name, _)| *name).chain(["nproc"]);
    let resources = resources.filter_map(|name| {
        // Only a hard limit holds.
        Some((name.to_owned(), getrlimit(resource(name)?).maximum.unwrap_or(u64::MAX)))
    });
    counters.chain(resources).collect()
}

fn counter_directory() -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open("/proc/sys/user", flags, Mode::empty()).ok()
}

fn read_counter(directory: &OwnedFd, name: &str) -> Option<u64> {
    belljar_sys::kernel_file::read_number(directory.as_fd(), name).ok()
}

/// The limits a plan can name.
pub(crate) fn resource(name: &str) -> Option<Resource> {
    Some(match name {
        "core" => Resource::Core,
        "nofile" => Resource::Nofile,
        "nproc" => Resource::Nproc,
        "memlock" => Resource::Memlock,
        "data" => Resource::Data,
        "sigpending" => Resource::Sigpending,
        "msgqueue" => Resource::Msgqueue,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_gets_at_most_half_of_what_its_user_has() {
        let limits = UserLimits::of_caller(&[]);
        assert!(limits.counters.len() >= 10, "{limits:?}");
        let directory = counter_directory().unwrap();
        for (name, value) in &limits.counters {
            let callers = read_counter(&directory, name).unwrap();
            assert!(*value <= callers / 2, "{name}: {value} of {callers}");
        }
        for (name, value) in &limits.resources {
            let callers = getrlimit(resource(name).unwrap()).maximum.unwrap_or(u64::MAX);
            assert!(*value <= callers / 2, "{name}: {value} of {callers}");
        }
    }

    #[test]
    fn every_counter_that_this_kernel_has_per_user_namespace_is_limited() {
        for entry in std::fs::read_dir("/proc/sys/user").unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(COUNTERS.iter().any(|(known, _)| *known == name), "{name}");
        }
    }

    #[test]
    fn what_the_plan_limits_is_left_to_the_plan() {
        let planned = [PlannedLimit { name: "sigpending".to_owned(), value: 7 }];
        let limits = UserLimits::of_caller(&planned);
        assert!(limits.resources.iter().all(|(name, _)| *name != "sigpending"), "{limits:?}");
        assert!(limits.resources.iter().any(|(name, _)| *name == "msgqueue"), "the control");
    }
}

//! Limits a whole tree of processes, on cgroup v2 and on v1 hierarchies.
//!
//! Only what a run needs: memory, processor time, number of processes. Every value is read back
//! after it was set; a value that does not read back is not held.

mod orphans;
mod scope;
mod v1;
mod v2;

pub use orphans::{may_have_orphans, remove_orphaned_groups};

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use belljar_spec::{CgroupUse, Limits, Usage};
use rustix::process::Pid;

use belljar_sys::cgroup_files;
use belljar_sys::mountinfo::{MountLine, MountTable};

/// What an ordinary user without a control group is told.
const SETUP_FIX: &str = "sudo belljar setup, which gives your user a control group";

/// The directory below which root keeps the groups of runs.
const TOP: &str = "belljar";

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("cannot make the control group {}", .path.display())]
    Make {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("cannot set {} to {value}", .path.display())]
    Set {
        path: PathBuf,
        value: String,
        #[source]
        error: io::Error,
    },
    #[error("{} was set to {value}, but reads {found}", .path.display())]
    NotHeld { path: PathBuf, value: String, found: String },
    #[error("the systemd user manager did not make a scope: {why}")]
    Manager { why: String },
    #[error("cannot make a {controller} control group for this run any more")]
    Missing { controller: &'static str },
    #[error("cannot open {}", .path.display())]
    Open {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("the control group {} is still busy", .path.display())]
    Busy { path: PathBuf },
}

/// Where groups can be made, found out by looking at what is mounted and who may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Available {
    V2 {
        parent: PathBuf,
    },
    /// A scope that the systemd user manager makes on request.
    Manager {
        manager: PathBuf,
    },
    V1(v1::Hierarchies),
    None {
        why: String,
        fix: String,
    },
}

impl Available {
    pub fn used(&self) -> CgroupUse {
        match self {
            Self::V2 { .. } | Self::Manager { .. } => CgroupUse::V2,
            Self::V1(_) => CgroupUse::V1,
            Self::None { .. } => CgroupUse::None,
        }
    }

    /// `None`: this host cannot hold that limit by a group, and why.
    pub fn holds(&self, controller: Controller) -> Result<String, (String, String)> {
        match self {
            Self::V2 { parent } => v2::holds(parent, controller),
            Self::Manager { manager } => scope::holds(manager, controller),
            Self::V1(hierarchies) => hierarchies.holds(controller),
            Self::None { why, fix } => Err((why.clone(), fix.clone())),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    Memory,
    Cpu,
    Pids,
}

impl Controller {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
        }
    }
}

/// Looks for a place to make groups in.
pub fn detect() -> Available {
    let Ok(table) = MountTable::read() else {
        return nothing("the mount table cannot be read");
    };
    let current = belljar_sys::kernel_file::read_text("/proc/self/cgroup").unwrap_or_default();
    let is_root = rustix::process::geteuid().is_root();
    if !all_read_only(&table)
        && let Some(hierarchies) = v1::detect(&table, &current, is_root)
    {
        return Available::V1(hierarchies);
    }
    if let Some(parent) = v2::detect(&table, &current, is_root) {
        return Available::V2 { parent };
    }
    match scope::detect(&table) {
        Some(manager) if !is_root => Available::Manager { manager },
        _ if all_read_only(&table) => Available::None {
            why: "the control groups are read-only here, as in a container".to_owned(),
            fix: "limit the container itself: docker run --memory 4g --cpus 2 …".to_owned(),
        },
        _ => nothing("no control group is delegated to this user"),
    }
}

fn nothing(why: &str) -> Available {
    Available::None { why: why.to_owned(), fix: SETUP_FIX.to_owned() }
}

fn is_read_only(mount: &MountLine) -> bool {
    mount.options.split(',').any(|option| option == "ro")
}

/// Whether nothing that holds limits can be written. Where version 1 has the controllers, a version 2 beside it has none.
fn all_read_only(table: &MountTable) -> bool {
    let v1: Vec<&MountLine> =
        table.of_type("cgroup").filter(|line| v1::holds_limits(line)).collect();
    let limiting = if v1.is_empty() { table.of_type("cgroup2").collect() } else { v1 };
    !limiting.is_empty() && limiting.into_iter().all(is_read_only)
}

/// A run's group or groups. Dropping it removes nothing: see [`Group::remove`].
#[derive(Debug)]
pub struct Group {
    kind: GroupKind,
}

/// How the first process of a run gets into its group.
#[derive(Debug)]
pub(crate) enum Entrance {
    /// Version 1: it writes itself into each of these files. A launcher that moves another process waits some
    /// milliseconds for all processors; a process with one thread that moves itself does not. The opener's rights count.
    Files(Vec<OwnedFd>),
    /// Version 2: it is created in this directory.
    Directory(OwnedFd),
    /// The manager of the group moves it, once it exists.
    Moved,
}

#[derive(Debug)]
enum GroupKind {
    V1(v1::GroupV1),
    V2(v2::GroupV2),
    Scope(scope::ScopeGroup),
}

impl Group {
    /// Makes the group and sets the limits; `None` where none is set. A limit that no group can enforce is an
    /// error: the caller has promised that a group does.
    pub fn make(
        available: &Available,
        run: &str,
        limits: &Limits,
    ) -> Result<Option<Self>, CgroupError> {
        match available {
            Available::None { .. } => match first_set(limits) {
                None => Ok(None),
                Some(controller) => Err(CgroupError::Missing { controller: controller.name() }),
            },
            Available::V1(hierarchies) => Ok(v1::GroupV1::make(hierarchies, run, limits)?
                .map(|group| Self { kind: GroupKind::V1(group) })),
            Available::V2 { parent } => {
                let group = v2::GroupV2::make(parent, run, limits)?;
                Ok(Some(Self { kind: GroupKind::V2(group) }))
            }
            Available::Manager { .. } => {
                Ok(Some(Self { kind: GroupKind::Scope(scope::ScopeGroup::new(run, limits)) }))
            }
        }
    }

    /// For the first process.
    pub(crate) fn entrance(&self) -> Result<Entrance, CgroupError> {
        match &self.kind {
            GroupKind::Scope(_) => Ok(Entrance::Moved),
            GroupKind::V1(group) => {
                let files = group.directories();
                let files = files.iter().map(|directory| open_tasks(directory));
                Ok(Entrance::Files(files.collect::<Result<_, _>>()?))
            }
            GroupKind::V2(group) => open_directory(group.directory()).map(Entrance::Directory),
        }
    }

    /// The first process exists. A scope comes into being with it; the other kinds have it already.
    pub fn begin(&mut self, pid: Pid) -> Result<(), CgroupError> {
        match &mut self.kind {
            GroupKind::Scope(scope) => scope.take(pid),
            GroupKind::V1(_) | GroupKind::V2(_) => Ok(()),
        }
    }

    /// Nothing but these is in the group.
    pub fn holds_exactly(&self, pids: &[Pid]) -> Result<(), CgroupError> {
        let mut wanted: Vec<i32> = pids.iter().map(|pid| pid.as_raw_nonzero().get()).collect();
        wanted.sort_unstable();
        let directories = self.directories();
        if directories.is_empty() {
            // A scope that no process was given to.
            let (path, value) = (PathBuf::from("cgroup.procs"), format!("{wanted:?}"));
            return Err(CgroupError::NotHeld { path, value, found: "no control group".to_owned() });
        }
        for directory in directories {
            let path = directory.join("cgroup.procs");
            let list = belljar_sys::kernel_file::read_text(&path).unwrap_or_default();
            let mut found: Vec<i32> = list.lines().filter_map(|pid| pid.parse().ok()).collect();
            found.sort_unstable();
            if found != wanted {
                let (value, found) = (format!("{wanted:?}"), format!("{found:?}"));
                return Err(CgroupError::NotHeld { path, value, found });
            }
        }
        Ok(())
    }

    /// How often the kernel ended a process of this run because its memory was used up.
    pub fn oom_kills(&self) -> u64 {
        match &self.kind {
            GroupKind::V1(group) => group.oom_kills(),
            GroupKind::V2(group) => cgroup_files::oom_kills(group.directory()),
            GroupKind::Scope(scope) => scope.oom_kills(),
        }
    }

    pub fn usage(&self, usage: &mut Usage) {
        match &self.kind {
            GroupKind::V1(group) => group.usage(usage),
            GroupKind::V2(group) => cgroup_files::usage(group.directory(), usage),
            GroupKind::Scope(scope) => scope.usage(usage),
        }
    }

    /// How many there are now; `None` where no group counts them.
    pub fn processes(&self) -> Option<u64> {
        let directory = match &self.kind {
            GroupKind::V1(group) => group.pids_directory(),
            GroupKind::V2(group) => Some(group.directory()),
            GroupKind::Scope(scope) => scope.directory(),
        };
        cgroup_files::read_number(&directory?.join("pids.current"))
    }

    pub fn directories(&self) -> Vec<PathBuf> {
        match &self.kind {
            GroupKind::V1(group) => group.directories(),
            GroupKind::V2(group) => vec![group.directory().to_owned()],
            GroupKind::Scope(scope) => scope.directory().map(Path::to_owned).into_iter().collect(),
        }
    }

    /// Takes the groups away; the processes must be gone or going.
    pub fn remove(&self) -> Result<(), CgroupError> {
        if matches!(self.kind, GroupKind::Scope(_)) {
            return Ok(()); // the manager removes a scope that is empty
        }
        self.directories().iter().try_for_each(|directory| remove_directory(directory))
    }
}

fn open_tasks(directory: &Path) -> Result<OwnedFd, CgroupError> {
    let path = directory.join("tasks");
    let file = std::fs::File::options().write(true).open(&path);
    file.map(OwnedFd::from).map_err(|error| CgroupError::Open { path, error })
}

fn open_directory(path: &Path) -> Result<OwnedFd, CgroupError> {
    let directory = std::fs::File::open(path);
    directory.map(OwnedFd::from).map_err(|error| CgroupError::Open { path: path.to_owned(), error })
}

fn first_set(limits: &Limits) -> Option<Controller> {
    let set = [
        (limits.memory.is_some(), Controller::Memory),
        (limits.millicpus.is_some(), Controller::Cpu),
        (limits.pids.is_some(), Controller::Pids),
    ];
    set.into_iter().find_map(|(is_set, controller)| is_set.then_some(controller))
}

/// Removes an empty group. The last process leaves a moment after it was reaped, so this waits a
/// little. A group that is gone is a success.
pub fn remove_directory(directory: &Path) -> Result<(), CgroupError> {
    for attempt in 0..200_u32 {
        match std::fs::remove_dir(directory) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(_) => {
                std::thread::sleep(std::time::Duration::from_millis(u64::from(attempt.min(10))))
            }
        }
    }
    Err(CgroupError::Busy { path: directory.to_owned() })
}

/// The group of a run that is not ours to hold any more, wherever it could be. For cleaning up.
pub fn leftovers(available: &Available, run: &str) -> Vec<PathBuf> {
    let candidates = match available {
        Available::V1(hierarchies) => hierarchies.groups_of(run),
        Available::V2 { parent } => vec![v2::directory_of(parent, run)],
        Available::Manager { .. } | Available::None { .. } => Vec::new(),
    };
    candidates.into_iter().filter(|directory| directory.is_dir()).collect()
}

fn make_directory(path: &Path) -> Result<(), CgroupError> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(CgroupError::Make { path: path.to_owned(), error })
        }
        _ => Ok(()),
    }
}

fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    std::fs::write(path, value).map_err(|error| CgroupError::Set {
        path: path.to_owned(),
        value: value.to_owned(),
        error,
    })
}

/// Sets a value and reads it back.
fn set_and_verify(path: &Path, value: &str) -> Result<(), CgroupError> {
    write(path, value)?;
    verify_value(path, value)
}

/// Memory is counted in pages, so less by a page is the same.
fn verify_value(path: &Path, value: &str) -> Result<(), CgroupError> {
    let found = belljar_sys::kernel_file::read_text(path).unwrap_or_default();
    let found = found.trim();
    let counts_pages =
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"memory."));
    let same_pages = match (value.parse::<u64>(), found.parse::<u64>()) {
        (Ok(wanted), Ok(found)) => counts_pages && wanted.abs_diff(found) < 65536,
        _ => false,
    };
    if found == value || same_pages {
        return Ok(());
    }
    Err(CgroupError::NotHeld {
        path: path.to_owned(),
        value: value.to_owned(),
        found: found.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writable_v2_beside_read_only_hierarchies_of_v1_holds_no_limits() {
        let read_only = |text: &str| all_read_only(&MountTable::parse(text.as_bytes()));
        let memory =
            |mode: &str| format!("31 1 0:29 / /c/memory {mode} - cgroup cgroup rw,memory\n");
        let unified = "35 1 0:33 / /c/unified rw - cgroup2 cgroup2 rw\n";
        let systemd = "36 1 0:34 / /c/systemd rw - cgroup cgroup rw,name=systemd\n";
        assert!(read_only(&(memory("ro") + unified + systemd)));
        assert!(!read_only(&(memory("rw") + unified + systemd)));
        assert!(!read_only(unified));
        assert!(read_only(&unified.replace(" rw -", " ro -")));
        assert!(!read_only(""), "nothing is mounted");
    }
}

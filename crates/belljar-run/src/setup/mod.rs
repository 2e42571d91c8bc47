//! Prepares a machine for an ordinary user, and undoes that: user namespaces, AppArmor, subordinate ids, a control group.
//!
//! Each step is a row of [`STEPS`]. A step only looks at the machine and says which changes it needs; a change is data
//! ([`Change`]), which can be printed as commands, made, and undone. What was made is recorded in [`Journal`], so that
//! nothing else is ever removed.

mod account;
mod apparmor;
mod change;
mod control_group;
mod files;
mod journal;
mod subordinate_ids;
mod user_namespaces;

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use belljar_sys::mountinfo::MountTable;
use serde::Serialize;

pub use account::{Account, AccountError};
pub use apparmor::profile as apparmor_profile;
/// The list of system calls for a container in which belljar runs.
pub use belljar_backend::engine::CONTAINER_PROFILE as SECCOMP_PROFILE;
pub use change::{Change, IdRange};
pub use journal::{Journal, Left, Undo, UndoReport};

/// The name of the step that `doctor` asks about.
pub const SUBORDINATE_IDS: &str = "subordinate-ids";

/// The rows, in the order in which they are made. They are undone in the opposite order.
pub const STEPS: &[Step] = &[
    Step {
        name: "user-namespaces",
        why: "the jail of an ordinary user is made of them",
        check: user_namespaces::check,
    },
    Step {
        name: "apparmor-profile",
        why: "Ubuntu 23.10 and later give user namespaces only to programs with a profile",
        check: apparmor::check,
    },
    Step {
        name: SUBORDINATE_IDS,
        why: "rootless Podman gives them to its containers; the jail does without",
        check: subordinate_ids::check,
    },
    Step {
        name: "control-group",
        why: "limits of memory and processor time for the whole run are held by one",
        check: control_group::check,
    },
];

/// One row.
#[derive(Debug)]
pub struct Step {
    pub name: &'static str,
    pub why: &'static str,
    check: fn(&Machine) -> Result<Finding, SetupError>,
}

/// What a step found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It is so already.
    Ready(String),
    /// This machine does without.
    NotNeeded(String),
    Needed(Needed),
    /// Somebody has to do something else first.
    Blocked(String),
}

/// What is missing, and the changes that help.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needed {
    pub what: String,
    pub changes: Vec<Change>,
    /// What has to be known about the changes.
    pub note: Option<String>,
}

/// Where a step is after it was looked at, made or tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepState {
    Ready,
    NotNeeded,
    Needed,
    Blocked,
    Made,
    Failed,
}

/// One step, for a reader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepReport {
    pub name: &'static str,
    pub why: &'static str,
    pub state: StepState,
    pub what: String,
    /// What does it by hand, as root.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("cannot read {}", .path.display())]
    Read {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("cannot write {}", .path.display())]
    Write {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{} is locked by process {holder}; try again when it is done", .path.display())]
    Locked { path: PathBuf, holder: String },
    #[error(
        "another belljar setup is changing this machine ({} is locked); try again when it is done",
        .path.display()
    )]
    Busy { path: PathBuf },
    #[error("{} was made by somebody else meanwhile; look at it, and start again", .path.display())]
    Exists { path: PathBuf },
    #[error("the ids {range} were given to somebody else meanwhile in {}; start again", .path.display())]
    Taken { path: PathBuf, range: String },
    #[error("cannot start {program}")]
    Start {
        program: String,
        #[source]
        error: io::Error,
    },
    #[error("{command} failed: {stderr}")]
    Command { command: String, stderr: String },
    #[error("{} is not a list of changes that this belljar knows", .path.display())]
    Journal {
        path: PathBuf,
        #[source]
        error: serde_json::Error,
    },
}

/// The machine to look at and to change.
#[derive(Debug)]
pub struct Machine {
    root: PathBuf,
    account: Account,
    executable: PathBuf,
    mounts: MountTable,
    journal: Journal,
}

impl Machine {
    /// This machine, for one of its users.
    pub fn here(account: Account, executable: PathBuf) -> Result<Self, SetupError> {
        let path = PathBuf::from("/proc/self/mountinfo");
        let mounts = MountTable::read().map_err(|error| SetupError::Read { path, error })?;
        Self::at(PathBuf::from("/"), account, executable, mounts)
    }

    /// The machine whose files lie below `root`. Programs are started only where that is `/`.
    fn at(
        root: PathBuf,
        account: Account,
        executable: PathBuf,
        mounts: MountTable,
    ) -> Result<Self, SetupError> {
        let journal = Journal::read(&root)?;
        Ok(Self { root, account, executable, mounts, journal })
    }

    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Where a path of the machine is for this process.
    fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        files::below(&self.root, path.as_ref())
    }

    /// The content of a file; `None` where there is none.
    fn read(&self, path: impl AsRef<Path>) -> Result<Option<String>, SetupError> {
        files::read(&self.path(path))
    }

    /// The value of a kernel setting; `None` where the kernel does not have it.
    fn setting(&self, path: &str) -> Option<String> {
        self.read(path).ok().flatten().map(|text| text.trim().to_owned())
    }

    /// The first of these programs that is there.
    fn program(&self, places: &[&str]) -> Option<PathBuf> {
        places.iter().map(PathBuf::from).find(|place| self.path(place).is_file())
    }

    /// What every step finds. Changes nothing.
    pub fn examine(&self) -> Vec<StepReport> {
        STEPS.iter().map(|step| step.report((step.check)(self))).collect()
    }

    /// Makes what is needed. A step that fails does not keep the others from being made.
    pub fn set_up(&mut self) -> Result<Vec<StepReport>, SetupError> {
        let _lock = files::SetupLock::take(&self.root)?;
        // What another one has made since this machine was looked at is listed too.
        self.journal = Journal::read(&self.root)?;
        let mut reports = Vec::new();
        for step in STEPS {
            reports.push(match (step.check)(self) {
                Ok(Finding::Needed(needed)) => {
                    let made = self.make(step, &needed);
                    step.after(needed, made)
                }
                found => step.report(found),
            });
        }
        Ok(reports)
    }

    fn make(&mut self, step: &Step, needed: &Needed) -> Result<(), SetupError> {
        for change in &needed.changes {
            // First: a change that is recorded and was not made is nothing to undo.
            self.journal.add(&self.root, step.name, &self.account.name, change)?;
            change.make(&self.root)?;
        }
        Ok(())
    }
}

impl Step {
    fn report(&self, found: Result<Finding, SetupError>) -> StepReport {
        let (state, what, changes, note) = match found {
            Ok(Finding::Ready(what)) => (StepState::Ready, what, Vec::new(), None),
            Ok(Finding::NotNeeded(what)) => (StepState::NotNeeded, what, Vec::new(), None),
            Ok(Finding::Blocked(what)) => (StepState::Blocked, what, Vec::new(), None),
            Ok(Finding::Needed(Needed { what, changes, note })) => {
                (StepState::Needed, what, changes, note)
            }
            Err(error) => {
                (StepState::Failed, belljar_spec::text::error_chain(&error), Vec::new(), None)
            }
        };
        let commands = changes.iter().filter_map(Change::command).collect();
        StepReport { name: self.name, why: self.why, state, what, commands, note }
    }

    fn after(&self, needed: Needed, made: Result<(), SetupError>) -> StepReport {
        let (state, what) = match made {
            Ok(()) => {
                let changes: Vec<String> =
                    needed.changes.iter().filter_map(Change::describe).collect();
                (StepState::Made, changes.join("; "))
            }
            Err(error) => (StepState::Failed, belljar_spec::text::error_chain(&error)),
        };
        let (name, why, note) = (self.name, self.why, needed.note);
        StepReport { name, why, state, what, commands: Vec::new(), note }
    }
}

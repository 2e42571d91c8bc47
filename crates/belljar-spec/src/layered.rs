//! Trees that a run can change while the real ones stay as they are, and the report of changes.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::autorun::Class;
use crate::git_worktrees::GitPart;
use crate::text::OsText;

/// One layered tree of a run. Its changes are in `upper/<number>/data` of the run's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayeredTree {
    pub number: u32,
    /// The real tree, as it was resolved when the run was bound.
    pub source: OsText,
    pub device: u64,
    pub inode: u64,
    /// Where it appears inside.
    pub target: OsText,
    pub backing: Backing,
    /// Before the run could change anything, by the clock of file times: what changed in the real tree
    /// at that time or afterwards was not changed by the run.
    pub since: Moment,
    /// Names in it that the run was not shown. What it put there itself never replaces them.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub hidden: Vec<OsText>,
    /// Where the tree is a repository that other worktrees have too: which part is the run's. The rest is withheld by
    /// `apply`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub git_part: Option<GitPart>,
    #[serde(skip_serializing_if = "ApplyMoment::is_default", default)]
    pub apply: ApplyMoment,
}

/// Who brings the changes to a layered tree into the real one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum ApplyMoment {
    /// The operator, with `belljar apply`.
    #[default]
    OnRequest,
    /// The run itself when it ends: the tree is `rw`, and was sent because it cannot be mounted.
    AtEnd,
}

impl ApplyMoment {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A tree of the host that is sent into the sandbox over the channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentTree {
    /// Where it appears inside.
    pub target: OsText,
    /// What is read on the host: for a tree that is brought back, the copy in the run's `upper/`.
    pub from: PathBuf,
    /// Device and inode of that directory, as it was checked.
    pub identity: (u64, u64),
    /// Relative paths in it that are not sent.
    pub left_out: Vec<PathBuf>,
    pub after: AfterRun,
    /// The most bytes of file content that are brought back.
    pub max_bytes: u64,
}

/// What becomes of a sent tree when the run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterRun {
    /// It comes back, and is merged into the copy that was sent.
    BringBack,
    /// It was read-only to the run's owner: what the run changed in it is dropped.
    Drop,
}

/// What holds the changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Backing {
    /// overlayfs: `data` holds what differs. A device 0:0 marks a removed entry.
    Overlay { attributes: Attributes },
    /// `data` is a whole copy, made before the run began and finished at `copied`. A file whose inode changed since
    /// then was changed by the run.
    Copy { copied: Moment },
}

/// Which extended attributes of a layer the kernel wrote. Those of the other kind are the run's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attributes {
    /// Mounted by root. A directory can be renamed without being copied.
    Trusted,
    /// Mounted by an ordinary user, with `userxattr`.
    User,
}

impl Attributes {
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Trusted => "trusted.overlay.",
            Self::User => "user.overlay.",
        }
    }
}

/// Seconds and nanoseconds since 1970, as inodes carry them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment {
    pub secs: i64,
    pub nanos: u32,
}

impl From<SystemTime> for Moment {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self {
            secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanos: since.subsec_nanos(),
        }
    }
}

/// What a run changed in its trees, reported when it ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceReport {
    /// Counted in layered trees only.
    pub created: u64,
    pub modified: u64,
    pub deleted: u64,
    pub renamed: u64,
    /// Bytes of the files that were created or changed.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub bytes: u64,
    /// Files that execute on the host, made or changed by this run; the first of them.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub autorun: Vec<AutorunFile>,
    /// How many more such files there are.
    #[serde(default)]
    pub autorun_more: u64,
    /// Control files in trees that the run could write itself, which were not there before it; the first of them.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub new_control_files: Vec<NewControlFile>,
    /// How many more of those there are.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub new_control_files_more: u64,
    /// The tree was too large to check all of it.
    #[serde(default)]
    pub cut: bool,
    /// Why the changes are not known, where that is so.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failed: Option<String>,
    /// What became of the changes to `rw` trees that were sent. Nothing where there are none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub applied: Option<AppliedReport>,
}

/// What was applied to the real trees when the run ended: everything that is not held back, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedReport {
    /// Paths in the real trees that were changed.
    pub changes: u64,
    /// Changes that are applied only if they are named, such as those to control files, or never.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub held_back: u64,
    /// Paths that somebody else changed too, while the run lasted. Then nothing was applied.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub conflicts: u64,
    /// Why nothing was applied, if it is not because of conflicts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failed: Option<String>,
}

impl AppliedReport {
    /// Whether there is something left to decide: nothing was applied, or not all of it.
    pub fn is_incomplete(&self) -> bool {
        self.conflicts > 0 || self.held_back > 0 || self.failed.is_some()
    }
}

impl WorkspaceReport {
    pub const MAX_LISTED: usize = 100;
    /// A longer path is counted and not named: a record's line has an end.
    const MAX_PATH: usize = 1024;
    const MAX_WHY: usize = 1000;

    pub fn changes(&self) -> u64 {
        self.created + self.modified + self.deleted + self.renamed
    }

    /// Adds a file, or counts it where the list is full.
    pub fn add_autorun(&mut self, file: AutorunFile) {
        let is_short = file.path.as_bytes().len() <= Self::MAX_PATH;
        if is_short && self.autorun.len() < Self::MAX_LISTED {
            self.autorun.push(file);
        } else {
            self.autorun_more += 1;
        }
    }

    /// The same for a control file that was not there before.
    pub fn add_new_control_file(&mut self, file: NewControlFile) {
        let is_short = file.path.as_bytes().len() <= Self::MAX_PATH;
        if is_short && self.new_control_files.len() < Self::MAX_LISTED {
            self.new_control_files.push(file);
        } else {
            self.new_control_files_more += 1;
        }
    }

    /// Numbers alone, for the last event of a record, which must fit on a full disk.
    pub fn brief(&self) -> Self {
        let why = |why: &String| why.chars().take(Self::MAX_WHY).collect::<String>();
        let applied = |applied: &AppliedReport| AppliedReport {
            failed: applied.failed.as_ref().map(why),
            ..applied.clone()
        };
        Self {
            autorun: Vec::new(),
            autorun_more: self.autorun_more + self.autorun.len() as u64,
            new_control_files: Vec::new(),
            new_control_files_more: self.new_control_files_more
                + self.new_control_files.len() as u64,
            failed: self.failed.as_ref().map(why),
            applied: self.applied.as_ref().map(applied),
            ..*self
        }
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A control file that did not exist when the run began: the run made it, or another process did meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewControlFile {
    /// The tree on the host, and where it appeared inside.
    pub tree: OsText,
    pub target: OsText,
    /// In the tree.
    pub path: OsText,
    /// Which file it was at the end of the run, and when it last changed: a write since then is not the run's.
    pub inode: u64,
    pub changed: Moment,
}

/// A file that executes on the host without an explicit request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutorunFile {
    /// The tree's place inside, and the path in it.
    pub target: OsText,
    pub path: OsText,
    pub class: Class,
    /// When it runs.
    pub why: String,
    pub change: AutorunChange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AutorunChange {
    Created,
    Modified,
    Deleted,
}

//! What the process that will become the command read back about itself, after the whole lock-down
//! and before it was let go.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::text::OsText;

/// One line of the sandbox's mount table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenMount {
    pub target: OsText,
    pub fstype: String,
    pub device: u64,
    pub inode: u64,
    pub read_only: bool,
    pub nosuid: bool,
    pub nodev: bool,
    /// A mount that is made elsewhere may appear here.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub propagates: bool,
    /// How much fits in, of a file system in memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub size: Option<u64>,
    /// Its path leads elsewhere: another mount is over it, or over a directory above it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub covered: bool,
}

/// The five capability sets, as the kernel prints them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapabilitySets {
    pub inheritable: u64,
    pub permitted: u64,
    pub effective: u64,
    pub bounding: u64,
    pub ambient: u64,
}

impl CapabilitySets {
    pub fn are_empty(self) -> bool {
        self == Self::default()
    }
}

/// What a forbidden call answered. `Succeeded` is the end of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptResult {
    Errno(i32),
    Succeeded,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    pub call: String,
    pub answer: AttemptResult,
}

/// An open descriptor, and what it refers to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenDescriptor {
    pub number: u32,
    pub refers_to: OsText,
}

/// The three user ids and the three group ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    pub real: u32,
    pub effective: u32,
    pub saved: u32,
}

/// What process 1 read back about itself; it holds for all commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitState {
    /// No terminal of the launcher's controls it.
    pub own_session: bool,
    /// All that it has or can get, as the kernel prints them.
    pub capabilities: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attestation {
    pub pid: u32,
    pub parent: u32,
    /// Release and version of the kernel that answers inside.
    #[serde(default)]
    pub kernel: String,
    pub uids: Ids,
    pub gids: Ids,
    pub groups: Vec<u32>,
    pub uid_map: String,
    pub gid_map: String,
    pub capabilities: CapabilitySets,
    pub no_new_privileges: bool,
    pub seccomp_mode: u32,
    pub seccomp_filters: u32,
    /// The Landlock version that is in force, found out by adding to it; 0 where none is.
    pub landlock: u32,
    /// By the kernel's name for each, as in `/proc/self/ns`.
    #[serde(default)]
    pub namespaces: BTreeMap<String, String>,
    /// Process 1 has asked the kernel to end it with its parent.
    #[serde(default)]
    pub dies_with_launcher: bool,
    #[serde(default)]
    pub init: InitState,
    #[serde(default)]
    pub hostname: String,
    pub mounts: Vec<SeenMount>,
    pub interfaces: Vec<String>,
    /// What the command will have open.
    pub descriptors: Vec<SeenDescriptor>,
    pub rlimits: BTreeMap<String, u64>,
    /// Names only.
    pub environment: Vec<OsText>,
    /// A file could be made and removed here.
    pub wrote: Vec<OsText>,
    pub attempts: Vec<Attempt>,
}

/// The brief form, for each further command of a sandbox whose first process attested everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BriefAttestation {
    pub uids: Ids,
    pub gids: Ids,
    pub groups: Vec<u32>,
    pub capabilities: CapabilitySets,
    pub no_new_privileges: bool,
    pub seccomp_mode: u32,
    pub seccomp_filters: u32,
    /// What the command will have open.
    pub descriptors: Vec<SeenDescriptor>,
    pub rlimits: BTreeMap<String, u64>,
    /// Names only.
    pub environment: Vec<OsText>,
}

//! A run, completely resolved: what the layers and flags result in. Frozen and hashed; no further step
//! re-reads a file that a run could have written.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::agent::{AgentSpec, AgentWork, SetupSpec};
use crate::backends::{BackendChoice, BackendName};
use crate::clause::Clause;
use crate::commands::CommandPolicy;
use crate::denied_call::{COMMAND_FILTER, TRACED_FILTER};
use crate::egress::EgressSpec;
use crate::git_identity::GitIdentity;
use crate::git_worktrees::GitPart;
use crate::layered::LayeredTree;
use crate::manifest::Pull;
use crate::posture::Waiver;
use crate::text::OsText;

/// Version of the stored form.
pub const RUN_SPEC_VERSION: u32 = 1;

/// How a tree of the host appears inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MountMode {
    Ro,
    Rw,
    /// Writable inside, unchanged outside.
    Overlay,
}

impl MountMode {
    pub const ALL: &'static [MountMode] = &[Self::Ro, Self::Rw, Self::Overlay];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ro => "ro",
            Self::Rw => "rw",
            Self::Overlay => "overlay",
        }
    }
}

impl FromStr for MountMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ro" | "readonly" => Ok(Self::Ro),
            "rw" => Ok(Self::Rw),
            "overlay" => Ok(Self::Overlay),
            _ => Err(format!(
                "there is no mount mode \"{}\"; use ro, rw or overlay",
                crate::text::escape(text.as_bytes())
            )),
        }
    }
}

/// A tree or file of the host, and where it appears. Both paths are absolute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub source: OsText,
    pub target: OsText,
    pub mode: MountMode,
}

/// The repository of a workspace whose `.git` is a file that names a directory elsewhere. It is one of the mounts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitDirectory {
    /// The `.git` file, without links.
    pub link: OsText,
    /// Of its content and of the path that it led to, as the list of trusted files has it.
    pub link_hash: String,
    /// Where objects and references are, without links.
    pub path: OsText,
    /// Which of it is the workspace's. What belongs to other worktrees the run may read, and nothing it does there
    /// counts.
    pub part: GitPart,
}

impl GitDirectory {
    /// Tells the tree of the repository what in it is the workspace's.
    pub fn mark_part(&self, trees: &mut [LayeredTree]) {
        for tree in trees.iter_mut().filter(|tree| tree.source == self.path) {
            tree.git_part = Some(self.part.clone());
        }
    }
}

/// A file system in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tmpfs {
    pub target: OsText,
    pub size: u64,
}

/// What the root directory inside is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Rootfs {
    /// The host's programs and libraries, read-only, with an `/etc` made for the run.
    Host,
    /// A directory that holds a whole root file system; read-only.
    Directory { path: OsText },
    /// The layers of the run's image; read-only.
    Image,
}

/// Who decides about something that an image can say about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecidedBy {
    /// The run: a setting or a flag, or Belljar's default.
    #[default]
    Run,
    /// The image, as far as it says something; else the run.
    Image,
}

/// What a run takes over from its image's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageDefaults {
    /// The operator's in place of the image's; an empty one is none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub entrypoint: Option<Vec<OsText>>,
    /// By the image where there is no command.
    #[serde(default)]
    pub command: DecidedBy,
    #[serde(default)]
    pub workdir: DecidedBy,
    #[serde(default)]
    pub user: DecidedBy,
}

impl ImageDefaults {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Numeric, inside the sandbox. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

impl Default for User {
    fn default() -> Self {
        Self { uid: 1000, gid: 1000 }
    }
}

/// `None` means no limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes, swap included.
    pub memory: Option<u64>,
    /// Thousandths of a processor.
    pub millicpus: Option<u32>,
    pub pids: Option<u32>,
    #[serde(with = "millis")]
    pub time: Option<Duration>,
    #[serde(with = "millis")]
    pub idle: Option<Duration>,
    /// Bytes of each output stream that the record keeps.
    pub output: u64,
    /// Bytes on disk.
    pub disk: Option<u64>,
    /// Between the request to stop and the end of everything.
    #[serde(with = "millis_exact")]
    pub stop_timeout: Duration,
}

/// How much of stopped runs with the same name is retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// How many sandboxes, with all files left in them.
    pub sandboxes: u32,
    /// How many records. At least 1.
    pub runs: u32,
}

impl Default for Retention {
    fn default() -> Self {
        Self { sandboxes: 5, runs: 200 }
    }
}

/// Where standard input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    Null,
    Passed,
}

/// Whether the command gets a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Terminal {
    None,
    Pty,
}

/// What becomes of system calls that the filter refuses, beside their error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeniedCalls {
    #[default]
    NotRecorded,
    /// They are counted in the record, by name.
    Recorded,
}

impl DeniedCalls {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The filter that a plan names for this.
    pub fn filter(self) -> &'static str {
        match self {
            Self::NotRecorded => COMMAND_FILTER,
            Self::Recorded => TRACED_FILTER,
        }
    }
}

/// The whole of what a run is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSpec {
    pub v: u32,
    pub backend: BackendChoice,
    pub command: Vec<OsText>,
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// Always the first of the user's mounts; `None` where the run works on nothing of the host.
    pub workspace: Option<Mount>,
    pub workdir: OsText,
    pub rootfs: Rootfs,
    pub image: String,
    /// Install prefixes, read-only at the same path as outside, their `bin` on `PATH`.
    pub tools: Vec<OsText>,
    pub mounts: Vec<Mount>,
    pub tmpfs: Vec<Tmpfs>,
    /// Names in the workspace that are not there inside.
    pub hide: Vec<OsText>,
    /// Sensitive sources that the operator named, and so allowed.
    pub allow_source: Vec<OsText>,
    /// Control files of an `rw` workspace that the run may write to.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub allow_control: Vec<OsText>,
    /// The manifest this came from, when it is in the workspace: read-only inside.
    pub manifest: Option<OsText>,
    pub env: BTreeMap<String, OsText>,
    pub user: User,
    /// `host[:port]` rules; empty means nothing is allowed.
    pub network_allow: Vec<String>,
    pub limits: Limits,
    pub stdin: Stdin,
    pub terminal: Terminal,
    pub required: BTreeSet<Clause>,
    pub waivers: Vec<Waiver>,
    /// Not in specs of older versions, like all that follows.
    #[serde(default)]
    pub retention: Retention,
    /// Backends to try in this order when `backend` cannot be had.
    #[serde(default)]
    pub fallback: Vec<BackendName>,
    #[serde(default)]
    pub pull: Pull,
    /// The engine's default where it is `None`.
    #[serde(default)]
    pub oci_runtime: Option<String>,
    /// The network beyond the list of rules: credentials, routes, budgets, ports for the host.
    #[serde(default)]
    pub egress: EgressSpec,
    /// The agent to run, where there is no command.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub agent: Option<Box<AgentWork>>,
    /// The agent whose own terminal interface is the command.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub terminal_agent: Option<Box<AgentSpec>>,
    /// The operator's choice of a shell for the user inside; bash, where there is one, if nothing was chosen.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub shell: Option<String>,
    /// The author of commits made inside.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub git_identity: Option<GitIdentity>,
    /// The repository of the workspace, where that is a linked worktree or a submodule.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub git_directory: Option<Box<GitDirectory>>,
    /// Rules on commands that are started in the running sandbox.
    #[serde(skip_serializing_if = "CommandPolicy::is_default", default)]
    pub commands: CommandPolicy,
    /// The tree of an untrusted manifest: no link in it is followed to a source.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub untrusted_tree: Option<OsText>,
    #[serde(skip_serializing_if = "DeniedCalls::is_default", default)]
    pub denied_calls: DeniedCalls,
    #[serde(skip_serializing_if = "ImageDefaults::is_default", default)]
    pub image_defaults: ImageDefaults,
}

impl RunSpec {
    /// Whether anything gets out at all.
    pub fn has_network_access(&self) -> bool {
        self.has_network_access_after_setup() || !self.setup_network().is_empty()
    }

    /// The same, without what only the set-up reaches.
    pub fn has_network_access_after_setup(&self) -> bool {
        let EgressSpec { reach, allow_private, routes, .. } = &self.egress;
        let learns = *reach == crate::egress::Reach::Learn;
        learns || !self.network_allow.is_empty() || !allow_private.is_empty() || !routes.is_empty()
    }

    /// Whether the proxy opens TLS, so that the run needs an authority to trust.
    pub fn intercepts(&self) -> bool {
        let routed =
            |env: &str| self.egress.routes.iter().any(|route| route.secret.as_deref() == Some(env));
        let by_secret = self.egress.secrets.iter().any(|secret| !routed(&secret.env));
        self.has_network_access() && (by_secret || !self.egress.intercept.is_empty())
    }

    /// What is open until the set-up has ended.
    pub fn setup_network(&self) -> &[String] {
        self.setup().map_or(&[], |setup| &setup.network)
    }

    /// The agent of the run, whether it is driven or has the terminal.
    pub fn agent_spec(&self) -> Option<&AgentSpec> {
        self.agent.as_ref().map(|work| &work.agent).or(self.terminal_agent.as_deref())
    }

    /// What comes before the agent.
    pub fn setup(&self) -> Option<&SetupSpec> {
        self.agent.as_ref()?.setup.as_ref()
    }

    /// BLAKE3 of the stored form. Maps are sorted, so equal specs have equal hashes.
    pub fn hash(&self) -> String {
        crate::hash_of(self)
    }
}

/// Durations are stored as whole milliseconds.
pub(crate) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        span: &Option<Duration>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        span.map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX)).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(d)?.map(Duration::from_millis))
    }
}

pub(crate) mod millis_exact {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(span: &Duration, s: S) -> Result<S::Ok, S::Error> {
        u64::try_from(span.as_millis()).unwrap_or(u64::MAX).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        u64::deserialize(d).map(Duration::from_millis)
    }
}

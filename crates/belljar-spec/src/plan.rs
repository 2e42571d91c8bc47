//! What a backend will do, as data: printed by `--dry-run`, hashed into the record, compared in
//! tests. Symbolic: it names no descriptor, no host uid, no run directory.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::backends::BackendName;
use crate::clause::Clause;
use crate::posture::{Enforcement, Posture};
use crate::runspec::{ImageDefaults, Limits, RunSpec, Stdin, Terminal, User};
use crate::text::OsText;

pub const PLAN_VERSION: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Namespace {
    User,
    Network,
    Mount,
    Pid,
    Ipc,
    Uts,
    Cgroup,
}

impl Namespace {
    /// Its name in `/proc/self/ns`.
    pub fn file(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Network => "net",
            Self::Mount => "mnt",
            Self::Pid => "pid",
            Self::Ipc => "ipc",
            Self::Uts => "uts",
            Self::Cgroup => "cgroup",
        }
    }
}

/// Which uid of the host the command has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostUid {
    /// An unused one for each live run; PID 1 has another one.
    PerRun,
    /// The same, in a block of unused ones that holds all owners of an image's files.
    BlockPerRun,
    /// The caller's uid: an ordinary user has no other.
    Caller,
    /// The uid that it has inside, on an engine's machine.
    AsInside,
}

/// What of a source's host appears at a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Source {
    Path {
        path: OsText,
    },
    /// `home/` in the run's directory.
    RunHome,
    /// `trust/` in the run's directory: the authority that the proxy made for this run.
    RunTrust,
    /// `trust/bundle.pem` there: the host's authorities and that one. With [`Presence::IfPresent`] only where
    /// the host has a file at the target.
    RunTrustBundle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    ReadOnly,
    Writable,
    /// Writable inside, unchanged outside: the changes are stored in the run's `upper/`.
    Layered,
}

/// What a missing source means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    Required,
    IfPresent,
}

/// Whose tree it is; this decides which checks and which kind of mount it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tree {
    /// The host's system directories: root's, bound as they are.
    System,
    /// A tree that people write to: sockets in it must not answer, its files keep their owner.
    User,
    /// An install prefix: like `User`, with its credentials left out.
    Tool,
    /// The run's directory.
    Own,
}

/// One thing in the sandbox's file system. Applied in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMount {
    pub target: OsText,
    pub what: MountKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum MountKind {
    Bind {
        source: Source,
        access: Access,
        presence: Presence,
        tree: Tree,
    },
    /// A directory that holds a whole root: each of its entries, read-only, except the places that the
    /// sandbox provides itself. A link among them stays a link.
    RootDirectory {
        source: OsText,
    },
    /// The layers of an image of Belljar's own store as the root, read-only.
    RootImage {
        /// Digest of the image's manifest.
        manifest: String,
        /// Digests of the layers' content, bottom first.
        layers: Vec<String>,
    },
    Tmpfs {
        size: u64,
        mode: u32,
    },
    /// A file system in memory, into which a tree of the host is sent over the channel before the command starts.
    Sent {
        source: OsText,
        /// [`Access::Layered`]: it is brought back at the end, and the differences are stored in the run's `upper/`.
        /// [`Access::ReadOnly`]: it is not brought back.
        access: Access,
        size: u64,
    },
    /// A small file of the host, copied when the run starts.
    Copy {
        source: OsText,
    },
    /// A file made for the run.
    File {
        content: String,
    },
    /// A file that names the run's user to programs inside.
    Accounts {
        file: AccountsFile,
    },
    Symlink {
        to: OsText,
    },
    /// `/proc` of the sandbox's pid namespace.
    Proc {
        read_only: Vec<String>,
        masked: Vec<String>,
    },
    /// A minimal `/dev`, with these device nodes.
    Dev {
        nodes: Vec<String>,
        shm_size: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccountsFile {
    Passwd,
    Group,
}

impl AccountsFile {
    /// Says that the run's user is called `agent`, and has this shell.
    pub fn content(self, user: User, shell: &str) -> String {
        let User { uid, gid } = user;
        match self {
            Self::Passwd => format!(
                "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n\
                 agent:x:{uid}:{gid}:agent:/home/agent:{shell}\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
            ),
            Self::Group => format!("root:x:0:\nagent:x:{gid}:\nnogroup:x:65534:\n"),
        }
    }
}

/// The image that the sandbox starts from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedImage {
    /// As the operator named it.
    pub name: String,
    /// What the engine calls this very image, or the digest of its manifest in Belljar's own store; nothing else is
    /// started.
    pub id: String,
    /// The registry's name for the content, where it came from one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub digest: Option<String>,
    /// All names of the image's variables: PID 1 gets none of them.
    pub env: Vec<String>,
    /// Places that it wants writable. They are memory, with the mode that the image gives them.
    #[serde(default)]
    pub volumes: Vec<String>,
    /// Digests of the layers' content, bottom first, where Belljar has them.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub layers: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub inside: User,
    pub host: HostUid,
}

/// A limit of the kernel on each process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    pub name: String,
    pub value: u64,
}

/// How the limits on the whole tree are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CgroupUse {
    V1,
    V2,
    /// Nothing delegated to us: only rlimits.
    None,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandPlan {
    pub argv: Vec<OsText>,
    pub env: BTreeMap<String, OsText>,
    pub workdir: OsText,
    pub stdin: Stdin,
    pub terminal: Terminal,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub v: u32,
    pub backend: BackendName,
    pub hostname: String,
    /// The run's pod: the namespaces its sandboxes share.
    pub pod: Vec<Namespace>,
    pub sandbox: Vec<Namespace>,
    pub identity: Identity,
    pub mounts: Vec<PlannedMount>,
    /// Sources that the operator allowed by name.
    pub allow_source: Vec<OsText>,
    /// Files of the host that stay read-only where a writable tree holds them.
    pub shielded: Vec<OsText>,
    /// Paths of the host that are hidden inside, in whichever mount they are.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub hidden: Vec<OsText>,
    /// Files that execute on the host and may be written to all the same, in a writable tree.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub allow_control: Vec<OsText>,
    pub limits: Limits,
    pub cgroup: CgroupUse,
    pub rlimits: Vec<Rlimit>,
    /// Name of the system call filter the command runs under.
    pub filter: String,
    pub command: CommandPlan,
    /// The shell of the user inside. `None` as long as nobody has looked which one there is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub shell: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub image: Option<PlannedImage>,
    /// Only for engines.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub oci_runtime: Option<String>,
    /// Ports on the sandbox's loopback on which connections to the proxy are taken. None: there is no proxy.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub listen: Vec<u16>,
    pub posture: Posture,
}

/// The variable with the user's shell, and the shell that every system has.
pub const SHELL_VARIABLE: &str = "SHELL";
pub const PLAIN_SHELL: &str = "/bin/sh";

impl Plan {
    /// Sets the shell of the user inside, and the variable that names it, unless the operator set that.
    pub fn set_shell(&mut self, shell: String, spec: &RunSpec) {
        if !spec.env.contains_key(SHELL_VARIABLE) {
            self.command.env.insert(SHELL_VARIABLE.to_owned(), shell.as_str().into());
        }
        self.shell = Some(shell);
    }

    pub fn shell_or_plain(&self) -> &str {
        self.shell.as_deref().unwrap_or(PLAIN_SHELL)
    }

    /// The spec with what the image decided written out, and with the very image that was planned with: made again
    /// from it, the run is the same whatever the image's name means by then.
    pub fn settle(&self, spec: &RunSpec) -> RunSpec {
        let mut settled = spec.clone();
        let Some(image) = &self.image else { return settled };
        settled.command.clone_from(&self.command.argv);
        settled.workdir.clone_from(&self.command.workdir);
        settled.user = self.identity.inside;
        settled.image_defaults =
            ImageDefaults { entrypoint: Some(Vec::new()), ..ImageDefaults::default() };
        if let (false, Some(digest)) = (image.layers.is_empty(), &image.digest) {
            settled.image.clone_from(digest);
        }
        settled
    }

    /// The limits that control groups enforce: all that the posture does not call absent and that are not resource
    /// limits of a process. These are read back from the groups, the others by the attestation.
    pub fn limits_of_groups(&self) -> Limits {
        let of_a_group = |clause: Clause, rlimit: &str| {
            let is_claimed = !matches!(self.posture.get(clause), Enforcement::Absent { .. });
            is_claimed && self.rlimits.iter().all(|limit| limit.name != rlimit)
        };
        let limits = &self.limits;
        Limits {
            memory: limits.memory.filter(|_| of_a_group(Clause::LimitMemory, "data")),
            millicpus: limits.millicpus.filter(|_| of_a_group(Clause::LimitCpu, "")),
            pids: limits.pids.filter(|_| of_a_group(Clause::LimitPids, "nproc")),
            ..limits.clone()
        }
    }

    /// Of the launcher's namespaces, those that the run does not share.
    pub fn unshared_namespaces(
        &self,
        launchers: &BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        let planned: Vec<&str> =
            self.pod.iter().chain(&self.sandbox).map(|kind| kind.file()).collect();
        let mut unshared = launchers.clone();
        unshared.retain(|name, _| planned.contains(&name.as_str()));
        unshared
    }

    /// Whether trees that the run may write get its changes only when it ends.
    pub fn applies_at_end(&self) -> bool {
        let at_end =
            |what: &MountKind| matches!(what, MountKind::Sent { access: Access::Writable, .. });
        self.mounts.iter().any(|mount| at_end(&mount.what))
    }

    /// The file systems in memory, with the size that each must not pass.
    pub fn sizes(&self) -> Vec<(OsText, u64)> {
        let sized = self.mounts.iter().filter_map(|mount| match &mount.what {
            MountKind::Tmpfs { size, .. } | MountKind::Sent { size, .. } => {
                Some((mount.target.clone(), *size))
            }
            MountKind::Dev { shm_size, .. } => {
                Some((OsText::from(mount.target.as_path().join("shm")), *shm_size))
            }
            _ => None,
        });
        sized.collect()
    }

    pub fn hash(&self) -> String {
        crate::hash_of(self)
    }
}

/// gVisor's runtime, by the names it is registered under.
pub fn is_gvisor(runtime: &str) -> bool {
    runtime.contains("runsc") || runtime.contains("gvisor")
}

//! The promises a sandbox can make. A backend answers each one with an [`Enforcement`](crate::Enforcement).

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When a clause is required by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Required {
    Always,
    /// Required everywhere but where the workspace is mounted `rw`.
    UnlessWritableWorkspace,
    /// Required when the operator set the limit it is about.
    IfSet,
    /// Enforced where the launcher has the right to; never stops a launch by itself.
    WherePossible,
    OnRequest,
}

macro_rules! clauses {
    ($($variant:ident = $name:literal, $required:ident, $promise:literal;)*) => {
        /// One promise. The names are a contract: they are used in manifests, flags and records.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        pub enum Clause {
            $(#[doc = $promise] #[serde(rename = $name)] $variant,)*
        }

        impl Clause {
            pub const ALL: &'static [Clause] = &[$(Clause::$variant,)*];

            pub fn name(self) -> &'static str {
                match self { $(Clause::$variant => $name,)* }
            }

            /// The promise, as documentation and `doctor` show it.
            pub fn promise(self) -> &'static str {
                match self { $(Clause::$variant => $promise,)* }
            }

            pub fn required(self) -> Required {
                match self { $(Clause::$variant => Required::$required,)* }
            }
        }
    };
}

clauses! {
    FsMounts = "fs.mounts", Always,
        "nothing of the host is visible but the plan's mounts; other runs are not there";
    FsReadonly = "fs.readonly", Always,
        "a read-only mount cannot be made writable from inside, submounts included";
    FsNosuid = "fs.nosuid", Always,
        "no file with setuid, setgid or a file capability can come into being in a tree of the host";
    FsSockets = "fs.sockets", UnlessWritableWorkspace,
        "no socket file of the host answers from inside";
    FsQuota = "fs.quota", IfSet,
        "what the run writes to disk cannot outgrow limits.disk";
    NetSealed = "net.sealed", Always,
        "no interface but loopback; no AF_VSOCK, raw, packet or odd families";
    ProcHidden = "proc.hidden", Always,
        "no process of the host or of another run can be seen, signalled or traced";
    ProcUnprivileged = "proc.unprivileged", Always,
        "not uid 0 on the host, no capabilities, no-new-privileges, no new user namespaces";
    ProcSyscalls = "proc.syscalls", Always,
        "the system call allow-list is in force";
    IdUnique = "id.unique", WherePossible,
        "no two live runs share a host uid";
    LimitMemory = "limit.memory", IfSet,
        "memory is held to the limit for the whole tree";
    LimitCpu = "limit.cpu", IfSet,
        "processor time is held to the limit for the whole tree";
    LimitPids = "limit.pids", IfSet,
        "the number of processes is held to the limit for the whole tree";
    LimitTime = "limit.time", Always,
        "the deadline holds for the whole tree";
    LimitOutput = "limit.output", Always,
        "output past the limit is counted and not kept";
    EnvClean = "env.clean", Always,
        "only named variables; no inherited descriptor; no secret value";
    LifeBound = "life.bound", Always,
        "when the launcher dies or the run ends, no process, mount or namespace of it survives";
    AuditOutside = "audit.outside", Always,
        "the record and the channel cannot be reached, forged or truncated from inside";
    KernelSeparate = "kernel.separate", OnRequest,
        "the run has a kernel of its own or an application kernel";
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no clause \"{given}\"; did you mean \"{nearest}\"?")]
pub struct UnknownClause {
    pub given: String,
    pub nearest: Clause,
}

impl FromStr for Clause {
    type Err = UnknownClause;

    fn from_str(text: &str) -> Result<Self, UnknownClause> {
        if let Some(clause) = Clause::ALL.iter().find(|clause| clause.name() == text) {
            return Ok(*clause);
        }
        let distance = |clause: &Clause| strsim::damerau_levenshtein(clause.name(), text);
        let nearest = Clause::ALL.iter().copied().min_by_key(distance).unwrap_or(Clause::FsMounts);
        Err(UnknownClause { given: crate::text::escape(text.as_bytes()), nearest })
    }
}

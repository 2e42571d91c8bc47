//! The contract of Belljar: what a run is, what a sandbox promises, what is stored, and the protocols between its
//! processes.
//!
//! Data only. Nothing here opens a file, queries the system or knows a backend.

mod agent;
mod attest;
pub mod autorun;
mod backends;
mod ceiling;
mod choice;
mod clause;
mod commands;
mod cpus;
pub mod denied_call;
pub mod egress;
pub mod egress_env;
pub mod env;
pub mod env_file;
mod event;
mod expect;
mod git_identity;
pub mod git_worktrees;
pub mod hint;
pub mod host;
mod host_paths;
pub mod host_rule;
mod human_duration;
mod id;
pub mod init_process;
mod iteration;
mod layered;
pub mod layers;
pub mod login_settings;
pub mod manifest;
pub mod mount_arg;
pub mod network_list;
mod number;
mod outcome;
pub mod paths;
mod plan;
mod posture;
pub mod resolve;
mod runspec;
mod size;
mod state;
pub mod text;
pub mod trust;
mod user_cgroup;
pub mod wire;
mod writable;

pub use agent::{
    AgentSpec, AgentWork, CHECK_TIMEOUT, LoopSpec, MAX_BACKOFF, Money, SETUP_TIMEOUT, SetupSpec,
    Until,
};
pub use attest::{
    Attempt, AttemptResult, Attestation, BriefAttestation, CapabilitySets, Ids, InitState,
    SeenDescriptor, SeenMount,
};
pub use backends::{
    BackendChoice, BackendFeatures, BackendName, Boundary, HostIds, ImageUse, Leftovers, LinkKind,
    TreeAccess,
};
pub use ceiling::{BeyondCeiling, Ceiling, CeilingFile};
pub use choice::{SkippedBackend, candidates};
pub use clause::{Clause, Required, UnknownClause};
pub use commands::{CommandPolicy, RuleSpec};
pub use cpus::{Cpus, CpusError};
pub use event::{Event, EventKind, OutputStream, RECORD_VERSION};
pub use expect::{Expectation, ExpectedKernel, ExpectedMount, MountReach, ToleratedMount};
pub use git_identity::GitIdentity;
pub use git_worktrees::GitPart;
pub use hint::Hint;
pub use host::{Host, NotAHost};
pub use host_paths::{HostPaths, ImageLayers};
pub use host_rule::HostRule;
pub use human_duration::{HumanDuration, HumanDurationError};
pub use id::{BadRunId, Lookup, MIN_QUERY, RunId, look_up, may_be_id};
pub use iteration::{
    AgentEvent, AgentReport, AgentResult, AgentTotals, Budget, CheckpointReport, Failure,
    IterationReport, MAX_COUNT, MAX_TEXT, ResumeKind, ResumeOrigin, Role, SessionTotals,
    SourceIdentity, TokenUsage, Unchanged, counted,
};
pub use layered::{
    AfterRun, AppliedReport, ApplyMoment, Attributes, AutorunChange, AutorunFile, Backing,
    LayeredTree, Moment, NewControlFile, SentTree, WorkspaceReport,
};
pub use layers::{Layer, Origin, Settings};
pub use manifest::{Manifest, ManifestError, Pull};
pub use outcome::{
    EXIT_DEADLINE, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_NOT_STARTED, EXIT_SIGNAL_BASE,
    EXIT_USAGE, ExecFailure, Exit, ExitSource, ExitStatus, NotFoundCause, StopReason, Usage,
};
pub use plan::{
    Access, AccountsFile, CgroupUse, CommandPlan, HostUid, Identity, MountKind, Namespace,
    PLAIN_SHELL, PLAN_VERSION, Plan, PlannedImage, PlannedMount, Presence, Rlimit, SHELL_VARIABLE,
    Source, Tree, is_gvisor,
};
pub use posture::{Enforcement, Posture, Unmet, Waiver};
pub use resolve::{
    FoundAgent, FoundGitDirectory, HostFacts, LinkForm, MainCommand, Request, ResolveError, Screen,
    resolve,
};
pub use runspec::{
    DecidedBy, DeniedCalls, GitDirectory, ImageDefaults, Limits, Mount, MountMode,
    RUN_SPEC_VERSION, Retention, Rootfs, RunSpec, Stdin, Terminal, Tmpfs, User,
};
pub use size::{Size, SizeError};
pub use state::RunState;
pub use text::OsText;
pub use trust::{Baseline, Located, Purpose, Widening, widenings};
pub use user_cgroup::user_cgroup;
pub use writable::{DirectoryIdentity, WritableTree};

/// Which build of the contract this is. A program and the belljar it starts must have the same.
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), "-", env!("BELLJAR_CONTRACT"));

/// BLAKE3 over the JSON form, in hexadecimal.
fn hash_of(value: &impl serde::Serialize) -> String {
    // Every type hashed here is made of strings, numbers, lists and string-keyed maps, which JSON
    // can always hold.
    let mut hasher = blake3::Hasher::new();
    match serde_json::to_writer(&mut hasher, value) {
        Ok(()) => hasher.finalize().to_hex().to_string(),
        Err(error) => unreachable!("a contract type has no JSON form: {error}"),
    }
}

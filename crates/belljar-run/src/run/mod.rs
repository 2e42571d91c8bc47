//! A run, from a decided specification to its outcome.

mod agent;
mod agent_home;
mod bypass_requires_boundary;
mod housekeeping;
mod launch;
mod log;
mod network_bridge;
mod nofollow;
mod outcome;
pub(crate) mod reconcile;
mod refusal;
mod resume;
mod resume_check;
mod run_dir;
mod run_record;
mod select_backend;
mod supervisor_main;
pub mod timings;

use std::os::fd::OwnedFd;

use belljar_backend::{BindError, DestroyError, PlanError, StartError, Unavailable};
pub use belljar_backend::{Fetch, ImageError, Images, PullProgress, Unwatched};
use belljar_spec::egress::Published;
use belljar_spec::wire::control::LaunchRefusal;
use belljar_spec::{
    AgentWork, BackendName, GitIdentity, OsText, Plan, Posture, RunId, SkippedBackend, Unmet,
};
use serde::Serialize;

pub use launch::{Close, OtherWorktreesError, launch};
pub use reconcile::{ReconcileError, Reconciled, reconcile};
pub use resume::{Ask, Extend, ResumeError, ResumeLock, Resumed, prepare_resume};
pub use resume_check::ResumeMismatch;
pub use select_backend::{Prepared, prepare, prepare_on};

pub use crate::exec_rules::run_rule_checker_if_requested;
use crate::supervise::SuperviseError;
pub use crate::supervise::{EgressError, PublishError, connect, run_proxy_if_requested};
use belljar_record::{KeyError, RecordError};
pub use belljar_workspace::checkpoint::CheckpointError;
pub(crate) use run_dir::LivenessLock;
pub use supervisor_main::run_supervisor_if_requested;

/// Where the command's streams go.
#[derive(Debug)]
pub enum Output {
    /// To descriptors of the caller, byte by byte as they come.
    Passed { stdout: OwnedFd, stderr: OwnedFd },
    /// Kept, as far as `limits.output` goes.
    Captured,
}

/// The caller's side of a run's streams.
#[derive(Debug)]
pub struct Streams {
    /// Read only if the spec passes standard input.
    pub stdin: Option<OwnedFd>,
    pub output: Output,
    /// The caller's terminal, where the command gets one of its own.
    pub terminal: Option<OwnedFd>,
}

/// Called when the sandbox is attested and the command is released.
pub trait Observer {
    fn started(&mut self, run: &RunId, backend: BackendName, posture: &Posture);

    /// Ports of the host that lead inside, if there are any; called before [`Observer::started`].
    fn published(&mut self, _ports: &[Published]) {}

    /// Something that the operator should know before it is too late; called before [`Observer::started`].
    fn warned(&mut self, _warning: &str) {}

    /// A backend failed to start the sandbox, or was passed over after that; the next is tried.
    fn skipped_backends(&mut self, _step: &SkippedBackend) {}

    /// What dead runs had left was looked for.
    fn reconciled(&mut self, _found: &Result<Reconciled, ReconcileError>) {}
}

/// Why nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("the {backend} backend cannot be used here")]
    Unavailable {
        backend: BackendName,
        #[source]
        reason: Unavailable,
    },
    #[error("the {backend} backend has no image to start from")]
    Image {
        backend: BackendName,
        #[source]
        reason: ImageError,
    },
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("{} required {} not hold on the {backend} backend", missing.len(), if missing.len() == 1 { "clause does" } else { "clauses do" })]
    NotGuaranteed { backend: BackendName, missing: Vec<Unmet> },
    #[error("this run cannot start on any available backend")]
    NoneLeft {
        tried: Vec<SkippedBackend>,
        /// What was wrong with the first of them.
        first: Option<Box<LaunchRefusal>>,
    },
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    OtherWorktrees(#[from] OtherWorktreesError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("start failed, and so did the cleanup: {cleanup}")]
    AndCleanup {
        #[source]
        start: Box<LaunchError>,
        cleanup: DestroyError,
    },
    #[error("the sandbox is not what was planned, so nothing was started")]
    NotAsPlanned { differences: Vec<String> },
    #[error(transparent)]
    Supervise(#[from] SuperviseError),
    #[error("cannot make {} in the home of the run", .path.display())]
    HomePlace {
        path: std::path::PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("cannot write the record {}", .path.display())]
    Record {
        path: std::path::PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("run {run} is over, and its end could not be recorded")]
    EndNotRecorded {
        run: RunId,
        #[source]
        error: Box<LaunchError>,
    },
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Log(#[from] RecordError),
    #[error(
        "the value of the secret {secret} stands in the variable {variable}, which goes inside; drop one of them"
    )]
    SecretInside { secret: String, variable: String },
    #[error(transparent)]
    SecretVisible(#[from] crate::config::SecretError),
    #[error("there is no command to run")]
    NoCommand,
    #[error(
        "{0} changed since the first start: {how}; to accept that: --allow {0}",
        what.name()
    )]
    Differs { what: ResumeMismatch, how: String },
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Egress(#[from] EgressError),
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error("there is no value for the secret {env}")]
    NoValue { env: String },
    #[error("{option} needs {needs}")]
    Needs { option: String, needs: String },
    #[error("{option} cannot be used with {other}: {why}")]
    Conflict { option: String, other: String, why: String },
}

/// Notes that a file or tree was copied out of a run: nothing in it decides about a run before it is trusted.
pub fn note_copied_out(home: &belljar_record::Home, path: &std::path::Path) -> std::io::Result<()> {
    belljar_record::writable_trees::note(home, &[path.to_owned()])
}

/// The trees in which a run, a live one too, could have planted links.
pub fn run_writable_trees(
    home: &belljar_record::Home,
) -> std::io::Result<Vec<belljar_spec::WritableTree>> {
    belljar_record::writable_trees::known(home)
}

impl LaunchError {
    /// The liveness lock stays, so that the next command looks.
    fn may_have_left_something(&self) -> bool {
        match self {
            Self::AndCleanup { .. } => true,
            Self::Start(error) | Self::Supervise(SuperviseError::SetUp(error)) => {
                error.may_have_left_something()
            }
            _ => false,
        }
    }
}

/// A plan and what it means, without having started anything.
#[derive(Clone, Debug, Serialize)]
pub struct DryRun {
    pub spec_hash: String,
    pub plan_hash: String,
    pub plan: Plan,
    /// What it would do, where it is an agent's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Box<AgentWork>>,
    /// The author of commits made inside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git_identity: Option<GitIdentity>,
    /// Trees whose changes would be kept apart, by where they are inside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layered: Vec<OsText>,
    /// Backends that come before it in the operator's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped_backends: Vec<SkippedBackend>,
    pub missing: Vec<Unmet>,
}

//! A run, from a decided specification to its outcome.

mod agent;
mod bypass;
mod choose;
mod crossing;
mod foundation;
mod furnish;
mod housekeeping;
mod launch;
mod log;
mod place;
pub(crate) mod reconcile;
pub(crate) mod record;
mod refusal;
mod resume;
mod serve;
mod within;
pub(crate) mod writable;

use std::os::fd::OwnedFd;

use belljar_backend::{BindError, DestroyError, PlanError, StartError, Unavailable};
pub use belljar_backend::{Fetch, ImageError, PullProgress, Unwatched};
use belljar_spec::egress::Published;
use belljar_spec::wire::control::{LaunchRefusal, StopReport};
use belljar_spec::{
    AgentReport, AgentWork, Attestation, BackendName, EXIT_NOT_STARTED, ExecFailure, Exit,
    ExitSource, NotTaken, OsText, Plan, Posture, RunId, StopReason, Unmet, Usage, WorkspaceReport,
};
use serde::{Deserialize, Serialize};

pub use choose::{Prepared, prepare};
pub use foundation::Difference;
pub use launch::launch;
pub use reconcile::{ReconcileError, Reconciled, reconcile};
pub use resume::{Ask, Extend, Reborn, ResumeError, ResumeLock, reborn};

pub use crate::checkpoint::CheckpointError;
pub use crate::commands::judge_if_asked;
use crate::record::{KeyError, RecordError};
use crate::supervise::SuperviseError;
pub use crate::supervise::{EgressError, PublishError, egress_if_asked, knock};
pub(crate) use place::LiveSign;
pub use serve::supervise_if_asked;

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

/// Told when the sandbox has been attested and the command is let go.
pub trait Observer {
    fn started(&mut self, run: &RunId, backend: BackendName, posture: &Posture);

    /// Ports of the host that lead inside, if there are any; told before [`Observer::started`].
    fn published(&mut self, _ports: &[Published]) {}

    /// Something that the operator should know before it is too late; told before [`Observer::started`].
    fn warned(&mut self, _warning: &str) {}

    /// A backend failed to start the sandbox, or was passed over after that; the next is tried.
    fn not_taken(&mut self, _step: &NotTaken) {}

    /// What dead runs had left was looked for.
    fn reconciled(&mut self, _found: &Result<Reconciled, ReconcileError>) {}
}

/// Bytes of one stream: the first and the last of them if there were too many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    pub head: Vec<u8>,
    pub tail: Vec<u8>,
    /// Bytes between them that were not kept.
    pub lost: u64,
}

/// How a run ended, and what is known about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub id: RunId,
    pub backend: BackendName,
    pub reason: StopReason,
    pub exit: Exit,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failure: Option<ExecFailure>,
    pub posture: Posture,
    pub usage: Usage,
    #[serde(skip)]
    pub stdout: Captured,
    #[serde(skip)]
    pub stderr: Captured,
    #[serde(skip)]
    pub attestation: Option<Box<Attestation>>,
    /// Backends that were tried before it; the record has them beside this.
    #[serde(skip)]
    pub not_taken: Vec<NotTaken>,
    /// What went wrong, where belljar itself ended it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub detail: Option<String>,
    /// The log has its end, and the ledger does not know it yet.
    #[serde(skip)]
    pub unanchored: bool,
    /// Something of the run that could not be taken away.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub leak: Option<String>,
    /// What it changed, where it could change anything of the host's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub workspace: Option<WorkspaceReport>,
    /// What came of its agent, where it had one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub agent: Option<Box<AgentReport>>,
}

impl Outcome {
    /// As it stands in `run.stop`, and as whoever follows the run is told.
    pub fn report(&self) -> StopReport {
        StopReport {
            run: self.id,
            reason: self.reason,
            exit: self.exit,
            detail: self.detail.clone(),
            usage: self.usage,
            leak: self.leak.clone(),
            workspace: self.workspace.clone(),
            agent: self.agent.clone(),
        }
    }

    /// However it ended: what it said cannot be trusted to be on the disk.
    fn output_may_be_lost(&mut self, error: &RecordError) {
        self.reason = StopReason::Error;
        self.exit = Exit::of_belljar(EXIT_NOT_STARTED, ExitSource::Sandbox);
        self.detail.get_or_insert_with(|| belljar_linux::chain(error));
    }

    /// It was accepted, and never came to run.
    fn not_started(id: RunId, backend: BackendName, posture: Posture, error: &LaunchError) -> Self {
        let (reason, source) = match error {
            LaunchError::NotAsPlanned { .. } | LaunchError::NotGuaranteed { .. } => {
                (StopReason::Refused, ExitSource::Policy)
            }
            _ => (StopReason::Error, ExitSource::Sandbox),
        };
        let report = StopReport {
            run: id,
            reason,
            exit: Exit::of_belljar(EXIT_NOT_STARTED, source),
            detail: Some(belljar_linux::chain(error)),
            usage: Usage::default(),
            leak: None,
            workspace: None,
            agent: None,
        };
        Self::told(report, backend, posture)
    }

    /// From what the log has of an end.
    pub(crate) fn told(report: StopReport, backend: BackendName, posture: Posture) -> Self {
        Self {
            id: report.run,
            backend,
            reason: report.reason,
            exit: report.exit,
            failure: None,
            posture,
            usage: report.usage,
            stdout: Captured::default(),
            stderr: Captured::default(),
            attestation: None,
            not_taken: Vec::new(),
            detail: report.detail,
            unanchored: false,
            leak: report.leak,
            workspace: report.workspace,
            agent: report.agent,
        }
    }
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
    #[error("none of the backends that may be used can start this run")]
    NoneLeft {
        tried: Vec<NotTaken>,
        /// What was wrong with the first of them.
        first: Option<Box<LaunchRefusal>>,
    },
    #[error(transparent)]
    Bind(#[from] BindError),
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
    #[error("there is no command to run")]
    NoCommand,
    #[error(
        "{0}: not as at the first start: {how}; if that is meant, say --allow {0}",
        what.name()
    )]
    Differs { what: Difference, how: String },
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Egress(#[from] EgressError),
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error("there is no value for the secret {env}")]
    NoValue { env: String },
    #[error("{option} needs {needs}")]
    Conflict { option: String, needs: String },
}

/// Notes that a file or tree was copied out of a run: nothing in it decides about a run before it is trusted.
pub fn note_copied_out(home: &crate::home::Home, path: &std::path::Path) -> std::io::Result<()> {
    writable::note(home, &[path.to_owned()])
}

impl LaunchError {
    /// A file of the record could not be written for want of room.
    fn is_no_space(&self) -> bool {
        matches!(self, Self::Record { error, .. } if crate::ballast::is_no_space(error))
    }

    /// The sign of life stays, so that the next command looks.
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
    /// Trees whose changes would be kept apart, by where they are inside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layered: Vec<OsText>,
    /// Backends that come before it in the operator's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_taken: Vec<NotTaken>,
    pub missing: Vec<Unmet>,
}

/// Shown in messages: the command, quoted where a shell would need it.
pub fn shown(command: &[OsText]) -> String {
    let words = command.iter().map(|word| {
        let text = word.to_string();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:@%+,".contains(c);
        if !text.is_empty() && text.chars().all(plain) { text } else { format!("'{text}'") }
    });
    words.collect::<Vec<_>>().join(" ")
}

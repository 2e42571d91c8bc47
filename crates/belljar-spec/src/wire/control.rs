//! Messages on the control socket of a run's supervisor. The command line and the library send the same ones.
//!
//! The frames are the channel's; the client is [`super::Side::Client`], the supervisor [`super::Side::Server`].
//! The client's hello comes first, under the opening key, and carries the key for what follows. The supervisor's hello
//! states the version; the client sends nothing before it has read that. The kernel
//! decides who may connect: the socket is in the home, and the peer must be the home's owner.
//!
//! A *task* is one command that this connection follows. The client numbers them; 0 is the run's main
//! command. The numbers of a task's streams follow from the task's number.

use serde::{Deserialize, Serialize};

use super::frame::FrameVersion;
use super::message::Work;
use crate::backends::BackendName;
use crate::choice::{SkippedBackend, candidates};
use crate::egress::{Published, SecretValue};
use crate::id::RunId;
use crate::iteration::{AgentReport, CheckpointReport, ResumeOrigin};
use crate::layered::WorkspaceReport;
use crate::network_list::{NetworkChange, NetworkState};
use crate::outcome::{ExecFailure, Exit, StopReason, Usage};
use crate::plan::{PLAN_VERSION, Plan};
use crate::posture::{Posture, Unmet};
use crate::runspec::RunSpec;
use crate::state::RunState;
use crate::text::OsText;

/// The protocol versions that this build supports: the supervisor of a kept run can be older than its client.
pub const CONTROL_MIN: u32 = 1;
pub const CONTROL_MAX: u32 = 2;

/// The version of the frames that follow the supervisor's hello.
pub fn frame_version(control: u32) -> FrameVersion {
    if control < 2 { FrameVersion::V1 } else { FrameVersion::V2 }
}

/// Commands that one supervisor carries at once.
pub const MAX_TASKS: usize = 60;

/// The numbers of a task's streams on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskStreams {
    /// From the client; with a terminal, in both directions.
    pub stdin: u32,
    pub stdout: u32,
    pub stderr: u32,
}

impl TaskStreams {
    /// Of the run's main command, which is task 0.
    pub const MAIN_EXEC: Self = Self { stdin: 1, stdout: 2, stderr: 3 };

    /// Tasks past what a `u32` can number do not exist.
    pub fn of(task: u32) -> Option<Self> {
        let first = task.checked_mul(4)?.checked_add(1)?;
        Some(Self { stdin: first, stdout: first + 1, stderr: first + 2 })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    pub rows: u16,
    pub columns: u16,
}

/// What a task's streams are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Streams {
    /// Recorded only; nothing is sent to this connection.
    Unwatched,
    /// Two output streams, and no input.
    Output,
    /// Two output streams, and input.
    InputAndOutput,
    /// A terminal, on the stream for input.
    Terminal(WindowSize),
}

/// What the end of the connection means for what was started over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bond {
    /// It ends too.
    EndsWithConnection,
    LivesOn,
}

/// When a sandbox goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// With its command.
    WhileCommandRuns,
    /// Until a stop request, or until a limit is reached.
    UntilStopped,
}

/// The first message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientHello {
    pub min: u32,
    pub max: u32,
    /// The frame key, in hexadecimal.
    pub key: String,
    /// Only a supervisor of the same build is started; see [`ControlError::OtherBuild`].
    pub build: String,
}

/// A backend that was chosen for a spec, and its plan. The process that chose it hands it to the supervisor, which then
/// need not ask the backends again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChosenPlan {
    /// Of the spec that it was made for.
    pub spec_hash: String,
    pub keep: Keep,
    pub plan: Plan,
    /// Backends that come before this one and were skipped, in their order.
    pub skipped_backends: Vec<SkippedBackend>,
    /// Why the first of them was skipped.
    pub first: Option<Box<LaunchRefusal>>,
}

impl ChosenPlan {
    /// Whether it is the plan of this spec: the same spec, and the backend whose turn it is.
    pub fn fits(&self, spec: &RunSpec, keep: Keep) -> bool {
        let order = candidates(spec.backend, &spec.fallback);
        let tried =
            self.skipped_backends.iter().map(|skipped| skipped.backend).chain([self.plan.backend]);
        self.plan.v == PLAN_VERSION
            && self.keep == keep
            && self.spec_hash == spec.hash()
            && order.iter().copied().take(self.skipped_backends.len() + 1).eq(tried)
    }
}

/// A run to start. Only the connection that a supervisor was started with may request one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRequest {
    pub home: OsText,
    pub spec: RunSpec,
    pub keep: Keep,
    pub bond: Bond,
    /// How the client follows the run's main command, task 0.
    pub streams: Streams,
    /// The values of the spec's secrets: for the run's proxy alone.
    #[serde(default)]
    pub secrets: Vec<SecretValue>,
    /// What the client has prepared. Without it, or where it does not fit, the supervisor prepares the run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub chosen: Option<Box<ChosenPlan>>,
    /// Where it begins, if that is a checkpoint of another run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub resumed_from: Option<Box<ResumeOrigin>>,
    /// How long a kept sandbox lives unless it is renewed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ttl_ms: Option<u64>,
}

/// One more command in a sandbox that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRequest {
    /// Not 0, and not one that is still running on this connection.
    pub task: u32,
    pub work: Work,
    /// On top of the run's variables; `None` removes one.
    pub env: Vec<(String, Option<OsText>)>,
    /// Relative to the run's working directory, which is used where it is `None`.
    pub workdir: Option<OsText>,
    pub streams: Streams,
    pub timeout_ms: Option<u64>,
    pub bond: Bond,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum ToSupervisor {
    Hello(ClientHello),
    Launch(Box<LaunchRequest>),
    Exec(Box<TaskRequest>),
    /// Follow the run's main command as task 0, from now on.
    Attach {
        streams: Streams,
    },
    Signal {
        task: u32,
        signal: i32,
    },
    Resize {
        task: u32,
        size: WindowSize,
    },
    /// End this task and everything it started.
    Kill {
        task: u32,
    },
    /// End the run: send TERM to all processes, and kill what is left after the grace period. The run's grace
    /// period where it is `None`.
    Stop {
        grace_ms: Option<u64>,
    },
    Status,
    /// A kept sandbox lives this long from now on; without a number, until it is stopped. The answer is the status.
    Renew {
        ttl_ms: Option<u64>,
    },
    /// What the run may reach, after this change if there is one. The answer is [`FromSupervisor::Network`].
    Network {
        #[serde(skip_serializing_if = "Option::is_none", default)]
        change: Option<NetworkChange>,
    },
    /// Keep the present state of the run's trees and home. Only while no command runs.
    Checkpoint {
        #[serde(skip_serializing_if = "Option::is_none", default)]
        note: Option<String>,
    },
}

/// A checkpoint that is on disk and in the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenCheckpoint {
    /// Counted from 1 in each run.
    pub number: u32,
    /// Paths in overlay trees that differ from the checkpoint before.
    pub changed: u64,
    pub report: CheckpointReport,
}

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ControlError {
    #[error("this run's supervisor supports protocol versions {min} to {max}")]
    Protocol { min: u32, max: u32 },
    #[error("the belljar executable is a different build ({theirs}, not {ours})")]
    OtherBuild { ours: String, theirs: String },
    #[error("cannot start a command: the run is {state}")]
    NotRunning { state: RunState },
    #[error("{most} commands are already running in this sandbox")]
    TooMany { most: usize },
    #[error("task {task} is invalid: {why}")]
    BadTask { task: u32, why: String },
    #[error("another client is already attached to the run's command")]
    AlreadyAttached,
    #[error("the run has no command to attach to")]
    NoCommand,
    #[error("this backend has no process inside the sandbox that could do this")]
    NoInit,
    #[error(
        "\"{piece}\" is denied by the run's command rule \"{rule}\": {why}; add it to commands.allow for the \
         next run, and commands.mode = \"warn\" only reports it"
    )]
    Denied { rule: String, why: String, piece: String },
    #[error("the record cannot be written: {why}")]
    Record { why: String },
    #[error(
        "{running} commands are running in this sandbox; a checkpoint waits for none, so let them end first"
    )]
    Busy { running: usize },
    #[error("a checkpoint is being taken; try again when it is done")]
    CheckpointPending,
    #[error("no checkpoint was taken: {why}")]
    NoCheckpoint { why: String },
    #[error("the network access was not changed: {why}")]
    NetworkUnchanged { why: String },
    #[error("the new list did not take effect, and the run has no network access any more: {why}")]
    NetworkLost { why: String },
    #[error("{why}")]
    OutOfTurn { why: String },
}

/// Why a run was not started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRefusal {
    pub kind: RefusalKind,
    /// What, then why, then why that.
    pub causes: Vec<String>,
    /// Clauses that do not hold.
    pub missing: Vec<Unmet>,
    /// What to do next, where there is something.
    pub fix: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The backend cannot be used here.
    Unavailable,
    /// A required clause does not hold, or the sandbox is not what was planned.
    Refused,
    /// It was tried and failed.
    Start,
    /// The home or the record.
    Io,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopReport {
    pub run: RunId,
    pub reason: StopReason,
    pub exit: Exit,
    /// What went wrong, where belljar itself ended it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub detail: Option<String>,
    pub usage: Usage,
    /// Something of the run that could not be taken away.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub leak: Option<String>,
    /// What it changed, where it could change anything of the host's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub workspace: Option<WorkspaceReport>,
    /// The result of its agent, where it had one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub agent: Option<Box<AgentReport>>,
}

/// The status of a run, as its supervisor reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStatus {
    pub run: RunId,
    pub state: RunState,
    pub backend: BackendName,
    pub keep: Keep,
    /// Commands that run now, including the main command.
    pub tasks: u32,
    pub usage: Usage,
    /// Ports of the host that lead inside.
    #[serde(default)]
    pub ports: Vec<Published>,
    /// What is left of the time that a kept sandbox was given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ttl_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum FromSupervisor {
    Hello {
        version: u32,
        build: String,
        /// `None` until a run was launched over this connection.
        run: Option<RunId>,
    },
    /// The sandbox is up and attested, and its command was started.
    Launched {
        run: RunId,
        backend: BackendName,
        posture: Box<Posture>,
        /// Backends that came before it, and why they were not taken.
        #[serde(default)]
        skipped_backends: Vec<SkippedBackend>,
        /// Ports of the host that lead inside.
        #[serde(default)]
        ports: Vec<Published>,
    },
    LaunchRefused(Box<LaunchRefusal>),
    /// `exec` is the number under which the record has it.
    TaskStarted {
        task: u32,
        exec: u32,
    },
    /// It never began.
    TaskFailed {
        task: u32,
        failure: ExecFailure,
    },
    TaskRefused {
        task: u32,
        error: ControlError,
    },
    /// After the last byte of its streams was sent.
    TaskEnded {
        task: u32,
        exit: Exit,
    },
    Status(Box<RunStatus>),
    CheckpointTaken(TakenCheckpoint),
    CheckpointRefused(ControlError),
    Network(Box<NetworkState>),
    NetworkRefused(ControlError),
    /// A request that is not about a task was not carried out.
    Refused(ControlError),
    /// The record has its end. The connection closes after this.
    Stopped(Box<StopReport>),
}

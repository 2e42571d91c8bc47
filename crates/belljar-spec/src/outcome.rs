//! How a run ended, and the exit code that reports it.

use serde::{Deserialize, Serialize};

use crate::OsText;

/// The command's deadline passed.
pub const EXIT_DEADLINE: i32 = 124;
/// Belljar could not, or would not, start the command.
pub const EXIT_NOT_STARTED: i32 = 125;
/// The command was found and could not be executed.
pub const EXIT_NOT_EXECUTABLE: i32 = 126;
/// The command was not found.
pub const EXIT_NOT_FOUND: i32 = 127;
/// Added to a signal's number.
pub const EXIT_SIGNAL_BASE: i32 = 128;
/// The command line was wrong.
pub const EXIT_USAGE: i32 = 2;

/// The one named reason why a run stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The command ended by itself.
    Exited,
    /// The command was ended by a signal that Belljar did not send.
    Signal,
    /// The wall clock limit passed.
    Deadline,
    /// Nothing happened for as long as `idle` allows.
    Idle,
    /// The time that a kept sandbox was given (`--ttl`) passed without being renewed.
    Expired,
    /// The kernel ended it because memory ran out.
    Oom,
    /// Another limit was reached.
    Limit,
    /// The operator stopped it.
    Stopped,
    /// A required clause did not hold.
    Refused,
    /// The channel carried something that the init process did not send.
    Tampered,
    /// The supervisor or the engine went away.
    Lost,
    /// Belljar itself failed.
    Error,
    /// The loop's `until` holds.
    Done,
    MaxIterations,
    MaxTime,
    MaxCost,
    MaxTurns,
    MaxTokens,
    /// So many iterations in a row changed nothing.
    Unchanged,
    /// So many iterations in a row failed.
    Failures,
    /// What comes before the agent failed.
    SetupFailed,
    /// The agent's login expired, and could not be refreshed.
    LoginExpired,
}

impl StopReason {
    pub fn name(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Signal => "signal",
            Self::Deadline => "deadline",
            Self::Idle => "idle",
            Self::Expired => "expired",
            Self::Oom => "oom",
            Self::Limit => "limit",
            Self::Stopped => "stopped",
            Self::Refused => "refused",
            Self::Tampered => "tampered",
            Self::Lost => "lost",
            Self::Error => "error",
            Self::Done => "done",
            Self::MaxIterations => "max_iterations",
            Self::MaxTime => "max_time",
            Self::MaxCost => "max_cost",
            Self::MaxTurns => "max_turns",
            Self::MaxTokens => "max_tokens",
            Self::Unchanged => "unchanged",
            Self::Failures => "failures",
            Self::SetupFailed => "setup_failed",
            Self::LoginExpired => "login_expired",
        }
    }
}

/// The source of an exit code: 124 to 127 can be the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitSource {
    Command,
    Sandbox,
    Deadline,
    Policy,
    Oom,
}

/// A program's end, as the kernel reported it to its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    Code(u8),
    Signal(u8),
}

impl ExitStatus {
    pub fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => i32::from(code),
            Self::Signal(signal) => EXIT_SIGNAL_BASE + i32::from(signal),
        }
    }
}

/// Why the command never began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ExecFailure {
    #[error("not found inside the sandbox{}", .cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default())]
    NotFound {
        /// Why the kernel did not find it although a file of that name is there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<NotFoundCause>,
    },
    #[error("{why}")]
    NotExecutable { why: String },
    #[error("{why}")]
    Other { why: String },
}

/// Why a program was not found although a file of its name is inside. The paths are those inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum NotFoundCause {
    #[error("{link} is a link to {to}, which does not exist inside")]
    Link { link: OsText, to: OsText },
    #[error("{file} needs the interpreter {interpreter}, which does not exist inside")]
    Interpreter { file: OsText, interpreter: OsText },
}

impl ExecFailure {
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::NotFound { .. } => EXIT_NOT_FOUND,
            Self::NotExecutable { .. } => EXIT_NOT_EXECUTABLE,
            Self::Other { .. } => EXIT_NOT_STARTED,
        }
    }
}

/// What `exit` holds in the outcome: a code or a signal, and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub signal: Option<u8>,
    pub source: ExitSource,
}

impl Exit {
    pub fn of_command(status: ExitStatus) -> Self {
        match status {
            ExitStatus::Code(code) => {
                Self { code: Some(i32::from(code)), signal: None, source: ExitSource::Command }
            }
            ExitStatus::Signal(signal) => {
                Self { code: None, signal: Some(signal), source: ExitSource::Command }
            }
        }
    }

    /// Belljar's exit code: the command did not choose it.
    pub fn of_belljar(code: i32, source: ExitSource) -> Self {
        Self { code: Some(code), signal: None, source }
    }

    /// What the belljar process itself exits with.
    pub fn process_code(self) -> i32 {
        match (self.code, self.signal) {
            (Some(code), _) => code,
            (None, Some(signal)) => EXIT_SIGNAL_BASE + i32::from(signal),
            (None, None) => EXIT_NOT_STARTED,
        }
    }
}

/// What a run used. Absent where nothing on this host counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub wall_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpu_ms: Option<u64>,
    // The ledger of home format 2 has the other names.
    #[serde(alias = "memory_peak", skip_serializing_if = "Option::is_none", default)]
    pub memory_peak_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pids_peak: Option<u64>,
    /// Bytes that were handed to a disk.
    #[serde(alias = "written", skip_serializing_if = "Option::is_none", default)]
    pub written_bytes: Option<u64>,
}

//! One line of a run's record, and the kinds of events.

use serde::{Deserialize, Serialize};

/// Version of the record's format; part of the first event.
pub const RECORD_VERSION: u32 = 3;

/// What happened. Dotted names: they are a contract with readers of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EventKind {
    #[serde(rename = "run.start")]
    RunStart,
    #[serde(rename = "sandbox.planned")]
    SandboxPlanned,
    #[serde(rename = "sandbox.started")]
    SandboxStarted,
    #[serde(rename = "sandbox.attested")]
    SandboxAttested,
    #[serde(rename = "exec.start")]
    ExecStart,
    #[serde(rename = "output")]
    Output,
    /// The agent is about to be run once more.
    #[serde(rename = "iteration.start")]
    IterationStart,
    #[serde(rename = "agent.message")]
    AgentMessage,
    #[serde(rename = "agent.tool_call")]
    AgentToolCall,
    #[serde(rename = "agent.tool_result")]
    AgentToolResult,
    #[serde(rename = "agent.usage")]
    AgentUsage,
    #[serde(rename = "agent.session")]
    AgentSession,
    #[serde(rename = "agent.result")]
    AgentResult,
    #[serde(rename = "agent.error")]
    AgentError,
    /// A connection was decided on, and is about to be made.
    #[serde(rename = "egress.opened")]
    EgressOpened,
    /// It is over, with what it carried.
    #[serde(rename = "egress.allowed")]
    EgressAllowed,
    #[serde(rename = "egress.denied")]
    EgressDenied,
    /// The proxy is gone, and with it all network access.
    #[serde(rename = "egress.lost")]
    EgressLost,
    /// What only the set-up could reach is out of reach from here on.
    #[serde(rename = "egress.narrowed")]
    EgressNarrowed,
    /// The operator changed what the run may reach. On disk before it takes effect.
    #[serde(rename = "network.changed")]
    NetworkChanged,
    /// The operator gave a kept sandbox another time to live.
    #[serde(rename = "run.renewed")]
    RunRenewed,
    /// A port inside that the host can reach.
    #[serde(rename = "port.published")]
    PortPublished,
    /// A tree was sent into the sandbox, because its backend cannot mount it.
    #[serde(rename = "workspace.sent")]
    WorkspaceSent,
    /// Such a tree came back, and what differs was stored as the run's changes.
    #[serde(rename = "workspace.returned")]
    WorkspaceReturned,
    /// Such a tree did not come back: what the run changed in it is lost.
    #[serde(rename = "workspace.lost")]
    WorkspaceLost,
    /// What the run changed in its trees, and which of these files execute on the host.
    #[serde(rename = "workspace.changed")]
    WorkspaceChanged,
    /// A command that was asked for is against a rule, and was not started.
    #[serde(rename = "command.denied")]
    CommandDenied,
    /// The same, and it was started all the same.
    #[serde(rename = "command.warned")]
    CommandWarned,
    /// The agent's login has a new access token, from its service or from the host's own agent.
    #[serde(rename = "login.refreshed")]
    LoginRefreshed,
    /// The agent's login could not be refreshed.
    #[serde(rename = "login.failed")]
    LoginFailed,
    #[serde(rename = "limit.hit")]
    LimitHit,
    /// System calls that the filter refused, in a run that is traced.
    #[serde(rename = "syscall.denied")]
    SyscallDenied,
    /// Values that look secret stood in the output and were covered.
    #[serde(rename = "secret.masked")]
    SecretMasked,
    /// An iteration is complete, and can be resumed from.
    #[serde(rename = "checkpoint")]
    Checkpoint,
    #[serde(rename = "exec.exit")]
    ExecExit,
    #[serde(rename = "sandbox.destroyed")]
    SandboxDestroyed,
    /// Something of the run could not be taken away.
    #[serde(rename = "sandbox.leak")]
    SandboxLeak,
    #[serde(rename = "run.stop")]
    RunStop,
}

/// One of a command's output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    Stdout,
    Stderr,
}

impl OutputStream {
    pub fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// One event. `hash` covers the exact bytes of the stored line before it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub seq: u64,
    /// Wall clock, RFC 3339 in UTC.
    pub time: String,
    /// Monotonic clock: durations come from here.
    pub mono_ns: u64,
    pub kind: EventKind,
    pub data: serde_json::Value,
    pub prev: String,
    pub hash: String,
}

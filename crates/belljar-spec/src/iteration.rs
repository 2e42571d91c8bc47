//! Events that an agent reports, and the result of each iteration.

use serde::{Deserialize, Serialize};

use crate::agent::Money;
use crate::event::EventKind;
use crate::id::RunId;
use crate::layered::Moment;
use crate::outcome::Exit;
use crate::text::OsText;

/// One event of an agent, whatever its format: the data of an `agent.*` event. Texts are the agent's output,
/// shortened to [`MAX_TEXT`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AgentEvent {
    Message {
        role: Role,
        text: String,
    },
    ToolCall {
        /// The agent's id of this call; the result has the same.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        id: Option<String>,
        tool: String,
        /// What a person would want to see: the command, the path; else the input as JSON.
        input: String,
    },
    ToolResult {
        #[serde(skip_serializing_if = "Option::is_none", default)]
        id: Option<String>,
        is_error: bool,
        text: String,
    },
    /// What was added since the last one, never a sum.
    Usage(TokenUsage),
    Session {
        id: String,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        model: Option<String>,
    },
    /// The agent's result for this iteration.
    Result(AgentResult),
    Error {
        message: String,
    },
}

impl AgentEvent {
    pub fn kind(&self) -> EventKind {
        match self {
            Self::Message { .. } => EventKind::AgentMessage,
            Self::ToolCall { .. } => EventKind::AgentToolCall,
            Self::ToolResult { .. } => EventKind::AgentToolResult,
            Self::Usage(_) => EventKind::AgentUsage,
            Self::Session { .. } => EventKind::AgentSession,
            Self::Result(_) => EventKind::AgentResult,
            Self::Error { .. } => EventKind::AgentError,
        }
    }
}

impl AgentEvent {
    /// Every text in it, all of them written by the agent.
    pub fn texts_mut(&mut self) -> Vec<&mut String> {
        match self {
            Self::Message { text, .. } => vec![text],
            Self::ToolCall { id, tool, input } => id.iter_mut().chain([tool, input]).collect(),
            Self::ToolResult { id, text, .. } => id.iter_mut().chain([text]).collect(),
            Self::Usage(_) => Vec::new(),
            Self::Session { id, model } => model.iter_mut().chain([id]).collect(),
            Self::Result(result) => result.code.iter_mut().chain(&mut result.text).collect(),
            Self::Error { message } => vec![message],
        }
    }
}

/// Bytes of one text in an `agent.*` event. The whole of it is in the stored output.
pub const MAX_TEXT: usize = 8 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Assistant,
    /// What it thought, where the format reports it.
    Thinking,
    User,
    System,
}

/// Tokens and what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUsage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Of the input, what came from a cache.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub cached_tokens: u64,
    #[serde(skip_serializing_if = "Money::is_zero", default)]
    pub cost_usd: Money,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Money {
    fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }
}

/// The maximum of every count of an agent's, whatever it reports: every JSON reader can hold the sum of two.
pub const MAX_COUNT: u64 = 1 << 50;

/// A sum of counts, which come from inside.
pub fn counted(one: u64, more: u64) -> u64 {
    one.saturating_add(more).min(MAX_COUNT)
}

impl TokenUsage {
    pub fn tokens(&self) -> u64 {
        counted(self.input_tokens, self.output_tokens)
    }

    pub fn add(&mut self, more: &Self) {
        self.input_tokens = counted(self.input_tokens, more.input_tokens);
        self.output_tokens = counted(self.output_tokens, more.output_tokens);
        self.cached_tokens = counted(self.cached_tokens, more.cached_tokens);
        self.cost_usd = self.cost_usd.plus(more.cost_usd);
    }
}

/// What an agent last reported of a whole session: a continued session reports sums, of which only the differences count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionTotals {
    pub usage: TokenUsage,
    pub turns: u64,
}

impl SessionTotals {
    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// How the agent itself reports its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentResult {
    pub is_error: bool,
    /// The format's name for it, such as `error_max_turns`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub code: Option<String>,
    /// The final message, shortened.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub turns: Option<u64>,
}

/// What a run's agent has used, over all iterations and over every run that this one continues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentTotals {
    pub iterations: u32,
    pub turns: u64,
    pub usage: TokenUsage,
    /// Time in which the loop ran, pauses included.
    pub elapsed_ms: u64,
    pub failures_in_a_row: u32,
    pub unchanged_in_a_row: u32,
}

/// Why one iteration counts as failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Failure {
    /// The agent's own result.
    #[serde(alias = "said")]
    Reported { code: Option<String> },
    /// It ended without a verdict, or with another code than 0.
    Exit { exit: Exit },
    /// It produced no output for as long as `limits.idle` allows.
    Idle,
    /// It could not be started.
    NotStarted {
        message: String,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        exit: Option<Exit>,
    },
    /// A budget of one iteration was used up.
    Budget { what: Budget },
    /// The kernel ended something inside because memory ran out, and the agent ended without its own result.
    Oom { exit: Exit },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    Time,
    Turns,
    Cost,
    Tokens,
}

/// One completed iteration: the data of a `checkpoint` event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IterationReport {
    /// Counted from 1, over every run that this one continues.
    pub iteration: u32,
    /// The number of the agent's command in the record.
    pub exec: u32,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failure: Option<Failure>,
    pub wall_ms: u64,
    pub turns: u64,
    pub usage: TokenUsage,
    /// Paths that differ from the checkpoint before.
    pub changed: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub session: Option<String>,
    /// What the agent reports of that session as a whole.
    #[serde(skip_serializing_if = "SessionTotals::is_nothing", default)]
    pub session_totals: SessionTotals,
    /// The agent's last message, shortened.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<String>,
    /// The result of `until` after it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub done: Option<bool>,
    /// Lines of its output that its format does not know.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub unparsed: u64,
    /// Events that were not recorded, since there were too many.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub dropped: u64,
    pub checkpoint: CheckpointReport,
    /// All of it so far, this one included.
    pub totals: AgentTotals,
}

/// What a checkpoint holds and took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointReport {
    pub files: u64,
    pub bytes: u64,
    /// Of those, what was not in the checkpoint before.
    pub new_files: u64,
    pub new_bytes: u64,
    /// Entries that are missing or may be torn, since something wrote to them all the while.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub left_out: u64,
    pub took_ms: u64,
}

/// Where a run comes from that does not begin at the beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeOrigin {
    pub kind: ResumeKind,
    /// The run that holds the checkpoint it begins with.
    pub from: RunId,
    /// The newest run of the line that it continues: the one that holds the checkpoint, or a further one that did
    /// not reach a checkpoint.
    pub continues: RunId,
    /// 0: from before the first iteration.
    pub iteration: u32,
    /// The last hash of that run's log, so that its record is part of this one's.
    pub head: String,
    /// What was used before. Nothing, for a fork.
    pub totals: AgentTotals,
    /// The agent's session at that checkpoint.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub session: Option<String>,
    #[serde(skip_serializing_if = "SessionTotals::is_nothing", default)]
    pub session_totals: SessionTotals,
    /// What was changed in the frozen spec, by name: budgets that were extended, differences that were allowed.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub changes: Vec<String>,
    #[serde(default)]
    pub unchanged: Unchanged,
}

/// What a run that begins with a checkpoint must find as it was. `None`, or nothing: it may differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unchanged {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub policy_hash: Option<String>,
    /// The image's id; empty for a sandbox without one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub image: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub sources: Vec<SourceIdentity>,
}

/// A tree of the host that a run was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceIdentity {
    pub path: OsText,
    pub device: u64,
    pub inode: u64,
    /// When the inode was created, where the file system reports it: inode numbers are reused.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub created: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResumeKind {
    /// Goes on with the same work and the same budgets.
    Resume,
    /// Begins anew from there.
    Fork,
}

/// The result of an agent's run, reported when it ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentReport {
    pub totals: AgentTotals,
    /// Iterations of this run alone.
    pub run_iterations: u32,
    /// The iteration that was interrupted by the end of the run. What it used is part of the totals.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unfinished_iteration: Option<u32>,
    /// One line on why it ended.
    pub why: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<String>,
}

//! Adapters for agents: the command line of each one, and a parser for its output.
//!
//! An adapter is pure: it starts no process and reads no file. An agent's output comes from inside the sandbox, so
//! every line is hostile: a line that does not parse is counted and is never fatal, and its text is only ever used as
//! text.

mod bounded_json;
mod claude;
mod codex;
mod command;
pub(crate) mod find_program;
mod gemini;
mod json;
mod output_parser;
#[doc(hidden)]
pub mod replay;
mod stored_output;
#[cfg(test)]
mod tests;
mod usage_meter;
pub(crate) mod writable_trees;

use std::collections::BTreeMap;

use belljar_spec::manifest::{AgentKind, OutputFormat, Secret};
use belljar_spec::{AgentEvent, AgentSpec, Budget, Money, OsText};

use belljar_spec::SessionTotals;
pub(crate) use output_parser::{OutputParser, Summary};
pub use stored_output::{OutputCounts, count_output};

/// What an agent needs from the host, besides its program.
#[derive(Clone, Debug, Default)]
pub struct Preset {
    /// `host[:port]` rules.
    pub hosts: Vec<String>,
    /// Credentials; the first one that is set on the host is used.
    pub secrets: Vec<Secret>,
    pub env: BTreeMap<String, String>,
    /// Directories in the sandbox's home, relative to it, that must exist before the agent starts.
    pub directories: Vec<&'static str>,
    /// Login files on the host, relative to the user's home. Only for `auth = "files"`, like the next two fields.
    pub login_files: Vec<&'static str>,
    pub login_hosts: Vec<String>,
    pub login_env: BTreeMap<String, String>,
    /// A file of the sandbox's home, relative to it, with its content: without it the agent's terminal interface asks
    /// for a login although it has a secret.
    pub terminal_login: Option<(&'static str, &'static str)>,
    /// The same, whatever it logs in with: without it the terminal interface does not start.
    pub terminal_settings: Option<(&'static str, &'static str)>,
    /// Decides which budgets can be enforced.
    pub usage_reporting: UsageReporting,
}

/// What an agent reports about its own usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageReporting {
    /// Nothing: only time and iterations can be limited.
    #[default]
    None,
    /// Tokens, at exit.
    Tokens,
    /// Tokens while it runs, and the cost at exit.
    TokensAndCost,
}

/// Which session an iteration works in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SessionUse {
    /// A new session; agents that accept an id get this one (a UUID).
    New {
        id: String,
    },
    Continue {
        id: String,
    },
    /// A new session with the history of that one.
    Fork {
        id: String,
    },
}

/// What one iteration may still use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remaining {
    pub(crate) turns: Option<u64>,
    pub(crate) cost: Option<Money>,
}

impl Remaining {
    /// Whether the agent was given this limit.
    pub(crate) fn has(&self, budget: Budget) -> bool {
        match budget {
            Budget::Turns => self.turns.is_some(),
            Budget::Cost => self.cost.is_some(),
            Budget::Time | Budget::Tokens => false,
        }
    }
}

/// A process to start in the sandbox, without a shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentCommand {
    pub(crate) argv: Vec<OsText>,
    pub(crate) stdin: Vec<u8>,
}

/// Whether a line was in the agent's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Understood {
    Yes,
    No,
}

/// The command line and the output format of one agent.
pub(crate) trait Adapter: Send + Sync {
    fn preset(&self) -> Preset;
    fn invocation(
        &self,
        spec: &AgentSpec,
        session: &SessionUse,
        remaining: Remaining,
    ) -> AgentCommand;

    /// The agent's own interface on a terminal, with the same permissions; `None` if it has none.
    fn terminal_command(&self, _spec: &AgentSpec) -> Option<Vec<OsText>> {
        None
    }

    /// Parses the output of a new session.
    fn reader(&self) -> Box<dyn Reader> {
        self.reader_after(SessionTotals::default())
    }

    /// Parses the output of a session that is continued or forked. `before` is what [`OutputParser::totals`] returned
    /// for it last time, so that totals of the whole session are not counted twice.
    fn reader_after(&self, before: SessionTotals) -> Box<dyn Reader>;

    /// The budget that a result of this code has used up, where belljar passed that budget on.
    fn budget_of(&self, _code: &str) -> Option<Budget> {
        None
    }
}

/// Turns lines of standard output into events. Keeps the state that it needs to turn totals into differences.
pub(crate) trait Reader: Send + std::fmt::Debug {
    /// Without its newline; never longer than [`output_parser::MAX_LINE_BYTES`].
    fn line(&mut self, line: &[u8], events: &mut Vec<AgentEvent>) -> Understood;

    /// Called after the last line: emits events that were held back.
    fn end(&mut self, _news: &mut Vec<AgentEvent>) {}

    /// Whether an agent that exits with code 0 but without a result has failed.
    fn needs_result(&self) -> bool;

    /// Responses of the model so far. Never decreases.
    fn turns(&self) -> u64;

    /// The session's totals as the agent reported them, for the next run in this session.
    fn totals(&self) -> SessionTotals {
        SessionTotals::default()
    }
}

pub(crate) fn adapter(kind: AgentKind) -> &'static dyn Adapter {
    match kind {
        AgentKind::Claude => &claude::Claude,
        AgentKind::Codex => &codex::Codex,
        AgentKind::Gemini => &gemini::Gemini,
        AgentKind::Command => &command::PlainCommand { format: None },
    }
}

/// The adapter for a kind of agent with the output format of another one.
pub(crate) fn adapter_for(kind: AgentKind, format: Option<OutputFormat>) -> &'static dyn Adapter {
    use command::PlainCommand;
    match (kind, format) {
        (AgentKind::Command, Some(OutputFormat::Claude)) => {
            &PlainCommand { format: Some(AgentKind::Claude) }
        }
        (AgentKind::Command, Some(OutputFormat::Codex)) => {
            &PlainCommand { format: Some(AgentKind::Codex) }
        }
        (AgentKind::Command, Some(OutputFormat::Gemini)) => {
            &PlainCommand { format: Some(AgentKind::Gemini) }
        }
        (kind, _) => adapter(kind),
    }
}

/// An argument vector.
#[derive(Debug)]
struct Argv(Vec<OsText>);

impl Argv {
    fn of(program: &[OsText]) -> Self {
        Self(program.to_vec())
    }

    fn add(mut self, arguments: &[&str]) -> Self {
        self.0.extend(arguments.iter().map(|argument| OsText::from(*argument)));
        self
    }

    fn option(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.add(&[name, value]),
            None => self,
        }
    }

    fn with_prompt(self, prompt: &str) -> AgentCommand {
        AgentCommand { argv: self.0, stdin: prompt.as_bytes().to_vec() }
    }
}

/// The event for the session id that an agent reports.
fn session(id: &str, model: Option<String>) -> AgentEvent {
    match is_session_name(id) {
        true => AgentEvent::Session { id: id.to_owned(), model },
        false => AgentEvent::Error {
            message: "the agent reported a session id that cannot be used".to_owned(),
        },
    }
}

/// A session id comes from the sandbox and becomes an argument, so it must not look like an option.
fn is_session_name(id: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=128).contains(&id.len()) && !id.starts_with('-') && id.bytes().all(plain)
}

//! Agents: how each is called, and what its output means.
//!
//! An adapter is pure: it starts nothing and reads no file. What an agent prints comes from inside, so every line is
//! hostile: one that makes no sense is counted and never fatal, and no text of it is taken for anything but text.

mod bounded;
mod claude;
mod codex;
mod command;
pub(crate) mod find;
mod gemini;
mod json;
mod listen;
#[doc(hidden)]
pub mod rehearsal;
mod stored;
#[cfg(test)]
mod tests;
mod totals;
pub(crate) mod written;

use std::collections::BTreeMap;

use belljar_spec::manifest::{AgentKind, Secret};
use belljar_spec::{AgentNews, AgentSpec, Money, OsText};

use belljar_spec::SessionTotals;
pub(crate) use listen::{Listener, Summary};
pub use stored::{Parsed, parsed};

/// What an agent needs from outside, besides its program.
#[derive(Clone, Debug, Default)]
pub struct Preset {
    /// `host[:port]` rules.
    pub hosts: Vec<String>,
    /// Ways to log in; the first one whose value the host has is used.
    pub secrets: Vec<Secret>,
    pub env: BTreeMap<String, String>,
    /// Directories of the run's own home, by their path in it, that must be there before the agent is.
    pub directories: Vec<&'static str>,
    /// Files of the login on the host, relative to the user's home: for `auth = "files"` alone, like the two below.
    pub login_files: Vec<&'static str>,
    pub login_hosts: Vec<String>,
    pub login_env: BTreeMap<String, String>,
    /// Which budgets can be held by what the agent tells.
    pub tells: Tells,
}

/// What an agent tells of its own use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tells {
    /// Nothing: only time and iterations can be limited.
    #[default]
    Nothing,
    /// Tokens, when it ends.
    Tokens,
    /// Tokens while it runs, and the cost when it ends.
    TokensAndCost,
}

/// Which session an iteration works in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SessionUse {
    /// A new one, by this name where the agent can be told one (a UUID).
    New {
        id: String,
    },
    Continue {
        id: String,
    },
    /// A new one that knows what that one knew.
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

/// A process to start inside. Nothing of it goes through a shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Invocation {
    pub(crate) argv: Vec<OsText>,
    pub(crate) stdin: Vec<u8>,
}

/// Whether a line was one of the format's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Understood {
    Yes,
    No,
}

/// One agent's way to be called and to speak.
pub(crate) trait Adapter: Send + Sync {
    fn preset(&self) -> Preset;
    fn invocation(
        &self,
        spec: &AgentSpec,
        session: &SessionUse,
        remaining: Remaining,
    ) -> Invocation;

    /// For a session that begins with this run of the agent.
    fn reader(&self) -> Box<dyn Reader> {
        self.reader_after(SessionTotals::default())
    }

    /// For a session that goes on, or was forked: what [`Listener::totals`] said of it the last time, so that sums
    /// over the whole session are not counted again.
    fn reader_after(&self, before: SessionTotals) -> Box<dyn Reader>;
}

/// Turns lines of standard output into news. Keeps what it needs to tell differences from sums.
pub(crate) trait Reader: Send + std::fmt::Debug {
    /// Without its newline; never longer than [`listen::LONGEST_LINE`].
    fn line(&mut self, line: &[u8], news: &mut Vec<AgentNews>) -> Understood;

    /// There are no more lines: what was held back comes now.
    fn end(&mut self, _news: &mut Vec<AgentNews>) {}

    /// Whether an agent of this format that ended with code 0 and without a result has failed.
    fn needs_result(&self) -> bool;

    /// Answers of the model so far. Never goes down.
    fn turns(&self) -> u64;

    /// What the agent said of its session, for the next run in it.
    fn totals(&self) -> SessionTotals {
        SessionTotals::default()
    }
}

pub(crate) fn adapter(kind: AgentKind) -> &'static dyn Adapter {
    match kind {
        AgentKind::Claude => &claude::Claude,
        AgentKind::Codex => &codex::Codex,
        AgentKind::Gemini => &gemini::Gemini,
        AgentKind::Command => &command::Command,
    }
}

/// Arguments, one after the other, without a shell in between.
#[derive(Debug)]
struct Argv(Vec<OsText>);

impl Argv {
    fn of(program: &[OsText]) -> Self {
        Self(program.to_vec())
    }

    fn add(mut self, words: &[&str]) -> Self {
        self.0.extend(words.iter().map(|word| OsText::from(*word)));
        self
    }

    fn option(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.add(&[name, value]),
            None => self,
        }
    }

    fn told(self, prompt: &str) -> Invocation {
        Invocation { argv: self.0, stdin: prompt.as_bytes().to_vec() }
    }
}

/// The session that an agent says it is in.
fn session(id: &str, model: Option<String>) -> AgentNews {
    match is_session_name(id) {
        true => AgentNews::Session { id: id.to_owned(), model },
        false => AgentNews::Error { message: "the agent's session has no usable name".to_owned() },
    }
}

/// A session's name comes from inside and becomes an argument: nothing that could be taken for an option.
fn is_session_name(id: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=128).contains(&id.len()) && !id.starts_with('-') && id.bytes().all(plain)
}

//! The answers to the questions of `init`, and their validation.

use belljar_spec::manifest::{AgentKind, Usd, WorkspaceMode};
use belljar_spec::text::escape;
use belljar_spec::{BackendChoice, BackendName, HostRule, HumanDuration, Size, paths};

/// Everything that `init` asks for. The default is what `--yes` takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    pub backend: BackendChoice,
    /// Tried in this order when `backend` is not available.
    pub fallback: Vec<BackendName>,
    pub mode: WorkspaceMode,
    /// Host rules; empty means no network.
    pub allow_hosts: Vec<String>,
    pub memory: Option<Size>,
    pub time: Option<HumanDuration>,
    pub agent: Option<AgentAnswer>,
    pub repeat: Option<RepeatAnswer>,
    /// A directory of the workspace that is read-only in the run.
    pub data: Option<String>,
    pub name: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentAnswer {
    pub kind: AgentKind,
    /// For the kind `command`: the program and its arguments.
    pub command: Vec<String>,
    pub prompt_file: Option<String>,
}

/// How often the agent runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RepeatAnswer {
    pub max_iterations: Option<u32>,
    pub until: Option<UntilAnswer>,
    pub max_cost: Option<Usd>,
    pub max_time: Option<HumanDuration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UntilAnswer {
    File(String),
    Says(String),
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            backend: BackendChoice::Auto,
            fallback: Vec::new(),
            mode: WorkspaceMode::Overlay,
            allow_hosts: Vec::new(),
            memory: None,
            time: None,
            agent: None,
            repeat: None,
            data: None,
            name: None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error(
        "the host backend isolates nothing, so init writes no manifest for it; set backend = \"host\" and its waivers by hand"
    )]
    Host,
    #[error("\"{}\" is not a host rule: {why}", escape(.rule.as_bytes()))]
    Rule { rule: String, why: String },
    #[error("a loop needs an agent; choose one with --agent")]
    LoopWithoutAgent,
    #[error(
        "the agent \"command\" needs a program: belljar init --agent command -- PROGRAM ARGUMENTS"
    )]
    NoCommand,
    #[error("--agent {0} takes no command; only --agent command does")]
    CommandOfAnother(&'static str),
    #[error("the agent {0} needs a prompt; name a file with --prompt-file")]
    NoPrompt(&'static str),
    #[error("the file \"{}\" must be in the workspace: use a relative path without \"..\"", escape(.0.as_bytes()))]
    UntilOutside(String),
    #[error("{what} is empty")]
    Empty { what: &'static str },
    #[error("{what} is 0, so no run could start; use a larger value")]
    Nothing { what: &'static str },
    #[error("workspace mode \"none\" shows the run no files of the workspace; use another mode")]
    NoWorkspace,
}

impl Answers {
    pub(super) fn check(&self) -> Result<(), AnswerError> {
        if self.backend == BackendChoice::Host || self.fallback.contains(&BackendName::Host) {
            return Err(AnswerError::Host);
        }
        for rule in &self.allow_hosts {
            HostRule::parse(rule).map_err(|why| AnswerError::Rule { rule: rule.clone(), why })?;
        }
        if self.memory == Some(Size(0)) {
            return Err(AnswerError::Nothing { what: "the memory" });
        }
        if self.time.is_some_and(HumanDuration::is_zero) {
            return Err(AnswerError::Nothing { what: "the time" });
        }
        if self.data.is_some() && self.mode == WorkspaceMode::None {
            return Err(AnswerError::NoWorkspace);
        }
        match (&self.agent, &self.repeat) {
            (Some(agent), repeat) => {
                agent.check()?;
                repeat.iter().try_for_each(RepeatAnswer::check)
            }
            (None, Some(_)) => Err(AnswerError::LoopWithoutAgent),
            (None, None) => Ok(()),
        }
    }
}

impl AgentAnswer {
    fn check(&self) -> Result<(), AnswerError> {
        if self.prompt_file.as_ref().is_some_and(String::is_empty) {
            return Err(AnswerError::Empty { what: "the name of the prompt file" });
        }
        let has_command = self.command.first().is_some_and(|program| !program.is_empty());
        match self.kind.has_preset() {
            false if !has_command => Err(AnswerError::NoCommand),
            true if !self.command.is_empty() => {
                Err(AnswerError::CommandOfAnother(self.kind.name()))
            }
            true if self.prompt_file.is_none() => Err(AnswerError::NoPrompt(self.kind.name())),
            true | false => Ok(()),
        }
    }
}

impl RepeatAnswer {
    fn check(&self) -> Result<(), AnswerError> {
        match &self.until {
            Some(UntilAnswer::File(file)) if paths::inner(file.as_ref()).is_none() => {
                Err(AnswerError::UntilOutside(file.clone()))
            }
            Some(UntilAnswer::Says(phrase)) if phrase.trim().is_empty() => {
                Err(AnswerError::Empty { what: "the phrase" })
            }
            _ => Ok(()),
        }
    }
}

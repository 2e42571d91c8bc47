//! Arguments of `init` and `new`.

use std::path::PathBuf;

use belljar::scaffold::{FolderName, Template};
use belljar::spec::manifest::{AgentKind, WorkspaceMode};
use belljar::spec::{BackendChoice, BackendName, HumanDuration, Size};
use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar init\n  \
        belljar init --yes\n  \
        belljar init --agent claude --prompt-file PROMPT.md --loop --max-cost-usd 25\n  \
        belljar init --agent command --yes -- ./agent.sh --fast",
    after_help = "Questions that a flag answers are not asked. Without a terminal, pass --yes to use the \
    defaults for the rest. An existing manifest is replaced only with --force; the old one becomes \
    belljar.toml.old (.old2, and so on, if that exists). The file is written completely or not at all, no link is \
    followed to it, and it is trusted as written, with the prompt file as it is then: after you have edited the \
    prompt, run belljar trust."
)]
pub(crate) struct InitArgs {
    /// The backend: auto, jail, docker, podman
    #[arg(long, value_name = "NAME", value_parser = backend, help_heading = "Boundary")]
    pub(crate) backend: Option<BackendChoice>,
    /// A backend to try if that one is not available; repeatable
    #[arg(long, value_name = "NAME", value_parser = backend_name, help_heading = "Boundary")]
    pub(crate) fallback: Vec<BackendName>,
    /// How this directory is mounted: overlay, ro, rw, none
    #[arg(long, value_name = "MODE", value_parser = mode, help_heading = "Boundary")]
    pub(crate) workspace_mode: Option<WorkspaceMode>,
    /// A host that the run may reach; repeatable
    #[arg(long = "allow-host", value_name = "HOST[:PORT]", help_heading = "Boundary")]
    pub(crate) allow_hosts: Vec<String>,
    /// Memory limit for the whole run (512m, 2g)
    #[arg(short, long, value_name = "SIZE", help_heading = "Boundary")]
    pub(crate) memory: Option<Size>,
    /// Stop a run after this time (90s, 4h)
    #[arg(long, value_name = "DURATION", help_heading = "Boundary")]
    pub(crate) time: Option<HumanDuration>,

    /// The agent that `run` starts: none, claude, codex, gemini, command
    #[arg(long, value_name = "KIND", value_parser = agent, help_heading = "Agent")]
    pub(crate) agent: Option<AgentFlag>,
    /// The prompt file; created from a template if missing [default: PROMPT.md]
    #[arg(long, value_name = "FILE", help_heading = "Agent")]
    pub(crate) prompt_file: Option<String>,
    /// The program of the agent "command", and its arguments
    #[arg(last = true, value_name = "COMMAND", help_heading = "Agent")]
    pub(crate) command: Vec<String>,

    /// Run the agent in a loop
    #[arg(long = "loop", help_heading = "Loop")]
    pub(crate) repeat: bool,
    /// Stop after N iterations [default: 20]
    #[arg(long, value_name = "N", help_heading = "Loop")]
    pub(crate) max_iterations: Option<u32>,
    /// Stop when this file exists in the workspace [default: DONE]
    #[arg(long, value_name = "FILE", conflicts_with = "until_says", help_heading = "Loop")]
    pub(crate) until_file: Option<String>,
    /// Stop when the agent's last message contains this phrase
    #[arg(long, value_name = "PHRASE", help_heading = "Loop")]
    pub(crate) until_says: Option<String>,
    /// Stop when the agent has cost this much
    #[arg(long, value_name = "USD", value_parser = dollars, help_heading = "Loop")]
    pub(crate) max_cost_usd: Option<f64>,

    /// Ask nothing; use defaults where no flag is given
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Replace an existing manifest; it becomes belljar.toml.old
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the manifest and write nothing
    #[arg(long, visible_alias = "print")]
    pub(crate) dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The value of `--agent`: a kind, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgentFlag {
    None,
    Kind(AgentKind),
}

pub(crate) fn agent(text: &str) -> Result<AgentFlag, String> {
    match text {
        "none" => Ok(AgentFlag::None),
        _ => text.parse().map(AgentFlag::Kind).map_err(|why: String| format!("{why}, none")),
    }
}

pub(crate) fn backend(text: &str) -> Result<BackendChoice, String> {
    text.parse()
}

pub(crate) fn backend_name(text: &str) -> Result<BackendName, String> {
    text.parse()
}

pub(crate) fn mode(text: &str) -> Result<WorkspaceMode, String> {
    text.parse()
}

pub(crate) fn dollars(text: &str) -> Result<f64, String> {
    let amount: f64 = text.parse().map_err(|_| "expected an amount, such as 25".to_owned())?;
    let good = belljar::spec::Money::from_dollars(amount).is_some();
    good.then_some(amount).ok_or_else(|| "the amount must be 0 or more".to_owned())
}

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar new fix-parser\n  \
        belljar new count --template command\n  \
        belljar new compare --template fleet --agent codex",
    after_help = "Creates NNN_NAME, where NNN is one more than the highest number there, and prints its path. In \
    it: a trusted belljar.toml, an empty data/ that runs can read and not change, NOTES.md, and PROMPT.md or \
    work.sh. All of it is created, or nothing. A loop runs the agent until the file DONE exists, at most 20 \
    times."
)]
pub(crate) struct NewArgs {
    /// The folder's name, after its number: letters, digits, ".", "-" and "_"
    #[arg(value_name = "NAME")]
    pub(crate) name: FolderName,
    /// What the folder is for
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub(crate) template: TemplateFlag,
    /// The agent of a loop or fleet: claude, codex, gemini
    #[arg(long, value_name = "KIND", value_parser = model_agent, default_value = "claude")]
    pub(crate) agent: AgentKind,
    /// The directory to create the folder in [default: the current one]
    #[arg(long, value_name = "DIR")]
    pub(crate) parent: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum TemplateFlag {
    /// An agent in a loop
    #[default]
    Loop,
    /// A script that runs once
    Command,
    /// Several runs of the same folder, side by side
    Fleet,
}

impl From<TemplateFlag> for Template {
    fn from(flag: TemplateFlag) -> Self {
        match flag {
            TemplateFlag::Loop => Self::Loop,
            TemplateFlag::Command => Self::Command,
            TemplateFlag::Fleet => Self::Fleet,
        }
    }
}

fn model_agent(text: &str) -> Result<AgentKind, String> {
    let kind: AgentKind = text.parse()?;
    match kind.has_preset() {
        true => Ok(kind),
        false => Err("for a command use --template command".to_owned()),
    }
}

//! What begins a project: `init` and `new`.

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
    after_help = "What a flag says is not asked. Without a terminal, --yes takes the defaults for the rest. A \
    manifest that is there stays unless --force is given; then it is kept as belljar.toml.old."
)]
pub(crate) struct InitArgs {
    /// What makes the boundary: auto, jail, docker, podman
    #[arg(long, value_name = "NAME", value_parser = backend, help_heading = "Boundary")]
    pub(crate) backend: Option<BackendChoice>,
    /// What may be tried when that cannot be had; can be given again
    #[arg(long, value_name = "NAME", value_parser = backend_name, help_heading = "Boundary")]
    pub(crate) fallback: Vec<BackendName>,
    /// How the files here appear inside: overlay, ro, rw, none
    #[arg(long, value_name = "MODE", value_parser = mode, help_heading = "Boundary")]
    pub(crate) workspace_mode: Option<WorkspaceMode>,
    /// A host that can be reached; can be given again
    #[arg(long = "allow-host", value_name = "HOST[:PORT]", help_heading = "Boundary")]
    pub(crate) allow_hosts: Vec<String>,
    /// Memory of everything together (512m, 2g)
    #[arg(short, long, value_name = "SIZE", help_heading = "Boundary")]
    pub(crate) memory: Option<Size>,
    /// After this a run is ended (90s, 4h)
    #[arg(long, value_name = "SPAN", help_heading = "Boundary")]
    pub(crate) time: Option<HumanDuration>,

    /// What runs without a command: none, claude, codex, gemini, command
    #[arg(long, value_name = "KIND", value_parser = agent, help_heading = "Agent")]
    pub(crate) agent: Option<AgentFlag>,
    /// What it is told; made with a text to begin with if it is missing [default: PROMPT.md]
    #[arg(long, value_name = "FILE", help_heading = "Agent")]
    pub(crate) prompt_file: Option<String>,
    /// The program of the agent "command", and its arguments
    #[arg(last = true, value_name = "COMMAND", help_heading = "Agent")]
    pub(crate) command: Vec<String>,

    /// Run it again and again
    #[arg(long = "loop", help_heading = "Loop")]
    pub(crate) repeat: bool,
    /// At most so often [default: 20]
    #[arg(long, value_name = "N", help_heading = "Loop")]
    pub(crate) max_iterations: Option<u32>,
    /// Until this file is in the workspace [default: DONE]
    #[arg(long, value_name = "FILE", conflicts_with = "until_says", help_heading = "Loop")]
    pub(crate) until_file: Option<String>,
    /// Until its last message has this in it
    #[arg(long, value_name = "PHRASE", help_heading = "Loop")]
    pub(crate) until_says: Option<String>,
    /// Until it has cost so much
    #[arg(long, value_name = "USD", value_parser = dollars, help_heading = "Loop")]
    pub(crate) max_cost_usd: Option<f64>,

    /// Ask nothing: defaults for all that no flag says
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Replace a manifest that is there; it is kept as belljar.toml.old
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the manifest, and write nothing
    #[arg(long, visible_alias = "print")]
    pub(crate) dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// An agent, or the word that there is none.
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
    let found = BackendChoice::ALL.iter().find(|choice| choice.name() == text);
    match found {
        Some(choice) => Ok(*choice),
        None => Err("there are auto, jail, docker, podman".to_owned()),
    }
}

pub(crate) fn backend_name(text: &str) -> Result<BackendName, String> {
    let found = BackendName::ALL.iter().find(|name| name.name() == text);
    found.copied().ok_or_else(|| "there are jail, docker, podman".to_owned())
}

pub(crate) fn mode(text: &str) -> Result<WorkspaceMode, String> {
    text.parse()
}

pub(crate) fn dollars(text: &str) -> Result<f64, String> {
    let amount: f64 = text.parse().map_err(|_| "write an amount, such as 25".to_owned())?;
    let good = belljar::spec::Money::from_dollars(amount).is_some();
    good.then_some(amount).ok_or_else(|| "an amount is 0 or more".to_owned())
}

#[derive(Debug, Args)]
#[command(before_help = "Examples:\n  \
    belljar new fix-parser\n  \
    belljar new count --template command\n  \
    belljar new compare --template fleet --agent codex")]
pub(crate) struct NewArgs {
    /// What comes after the number: letters, digits, - _ .
    #[arg(value_name = "NAME")]
    pub(crate) name: FolderName,
    /// What the folder is for
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub(crate) template: TemplateFlag,
    /// Of loop and fleet: claude, codex, gemini
    #[arg(long, value_name = "KIND", value_parser = model_agent, default_value = "claude")]
    pub(crate) agent: AgentKind,
    /// Where the folder is made [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) parent: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum TemplateFlag {
    /// An agent, again and again
    #[default]
    Loop,
    /// A script, once
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
    match text.parse()? {
        AgentKind::Command => Err("for a command use --template command".to_owned()),
        kind => Ok(kind),
    }
}

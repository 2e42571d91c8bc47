//! Arguments of `run`; a flag that docker has too is named and written as in docker.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use belljar::config::{ConfigFiles, FlagError, Invocation, ManifestSource, StartDirectory};
use belljar::spec::egress::Reach;
use belljar::spec::{HumanDuration, MainCommand, Screen, Stdin, Terminal};
use clap::Args;

use super::settings::SettingArgs;

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar run make test\n  \
        belljar run -v ~/data:/data --timeout 10m ./build.sh\n  \
        belljar run -d --name nightly ./long.sh\n  \
        belljar run --allow-host pypi.org --allow-host files.pythonhosted.org \\\n    \
          pip install -r requirements.txt\n  \
        belljar run --keep --name web\n  \
        belljar run --name web --reuse make test\n  \
        belljar run --agent claude --prompt-file PROMPT.md --max-cost-usd 5\n  \
        belljar run --agent claude -t",
    after_help = "The first word that is no flag starts the command; flags after it belong to the command. \
    Exit codes: the command's own; 124 timeout; 125 belljar could not or would \
    not start it; 126 not executable; 127 not found; 128+N signal N."
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    settings: SettingArgs,

    /// Allow every public host, and print the list of hosts that were used
    #[arg(long, help_heading = "Network")]
    pub(crate) learn: bool,

    /// Run in the background and print the run's id
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Keep the sandbox until it is stopped; use exec to run commands in it
    #[arg(long)]
    pub(crate) keep: bool,
    /// Stop a kept sandbox after this time, unless it is renewed: belljar renew
    #[arg(long, value_name = "DURATION")]
    pub(crate) ttl: Option<HumanDuration>,
    /// Use the kept sandbox with this --name; start and keep one if there is none
    #[arg(long)]
    pub(crate) reuse: bool,
    /// Pass standard input (the default, unless the run is detached)
    #[arg(short, long)]
    interactive: bool,
    /// Pass no standard input; for loops that read lines, which the command would read otherwise
    #[arg(short = 'n', long, conflicts_with_all = ["interactive", "tty"])]
    no_stdin: bool,
    /// Start an agent even if its prompt is the template, it has no login, or
    /// the file of loop.until exists
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Docker's flag, without effect: a sandbox is removed when its command exits
    #[arg(long = "rm", hide = true, conflicts_with_all = ["keep", "reuse"])]
    _rm: bool,
    /// Give the command a terminal (the default where stdin and stdout are terminals); without a command, open the
    /// agent in it
    #[arg(short, long, overrides_with = "no_tty")]
    pub(crate) tty: bool,
    /// Give the command no terminal
    #[arg(long, overrides_with = "tty")]
    no_tty: bool,

    /// Use and trust this manifest
    #[arg(long, value_name = "FILE", help_heading = "Settings")]
    manifest: Option<PathBuf>,
    /// Use no manifest and no configuration file
    #[arg(long, conflicts_with = "manifest", help_heading = "Settings")]
    no_config: bool,
    /// Set any manifest key
    #[arg(short = 'c', value_name = "KEY=VALUE", help_heading = "Settings")]
    assignments: Vec<String>,

    /// Print the plan and its posture without starting anything
    #[arg(long, help_heading = "Output")]
    pub(crate) dry_run: bool,
    /// Capture the output and print one JSON object
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Write that JSON object to a file; output is not captured
    #[arg(long, value_name = "FILE", conflicts_with = "json", help_heading = "Output")]
    pub(crate) result: Option<PathBuf>,
    /// Print where the time went to stderr after the run
    #[arg(long, conflicts_with = "dry_run", help_heading = "Output")]
    pub(crate) timings: bool,
    /// Print only the command's output
    #[arg(short, long, help_heading = "Output")]
    pub(crate) quiet: bool,

    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Whether standard input and output are terminals.
pub(crate) struct StdioKind {
    pub(crate) stdin_is_terminal: bool,
    pub(crate) stdout_is_terminal: bool,
}

impl RunArgs {
    pub(crate) fn terminal(&self, stdio: &StdioKind) -> Terminal {
        let both = stdio.stdin_is_terminal && stdio.stdout_is_terminal;
        let by_default = both && !self.no_tty && !self.no_stdin && !self.json;
        if self.tty || (by_default && !self.is_detached()) { Terminal::Pty } else { Terminal::None }
    }

    pub(crate) fn names_image(&self) -> bool {
        self.settings.0.is_given("--image")
    }

    /// Whether the sandbox outlives its command.
    pub(crate) fn keeps(&self) -> bool {
        self.keep || self.reuse
    }

    /// The time to live, in milliseconds.
    pub(crate) fn ttl(&self) -> Option<u64> {
        let ttl = self.ttl.map(HumanDuration::as_duration);
        ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
    }

    /// Whether this process exits before the run ends.
    pub(crate) fn is_detached(&self) -> bool {
        self.detach || (self.keeps() && self.command.is_empty())
    }

    /// What the command line asks for. `environment` is this process's.
    pub(crate) fn invocation(
        &self,
        stdio: &StdioKind,
        environment: BTreeMap<OsString, OsString>,
    ) -> Result<Invocation, FlagError> {
        let cwd = std::env::current_dir().unwrap_or_default();
        let mut invocation = Invocation::new(cwd, environment, self.main_command());
        invocation.start = StartDirectory::Current;
        invocation.reach = if self.learn { Reach::Learn } else { Reach::Listed };
        let mut given = self.settings.0.clone();
        given.assignments.clone_from(&self.assignments);
        invocation.overrides = given.parse(invocation.reach)?;
        invocation.terminal = self.terminal(stdio);
        // Neither a captured nor a detached run may wait for keyboard input.
        let no_keyboard = self.is_detached() || (self.json && stdio.stdin_is_terminal);
        invocation.stdin = if self.no_stdin || (no_keyboard && !self.interactive) {
            Stdin::Null
        } else {
            Stdin::Passed
        };
        invocation.screen =
            if stdio.stdout_is_terminal { Screen::Terminal } else { Screen::NotTerminal };
        if self.no_config {
            invocation.source = ManifestSource::None;
            invocation.config_files = ConfigFiles::Ignore;
        } else if let Some(file) = &self.manifest {
            invocation.source = ManifestSource::File(file.clone());
        }
        Ok(invocation)
    }

    fn main_command(&self) -> MainCommand {
        if !self.command.is_empty() {
            let argv = self.command.iter().map(|argument| argument.as_os_str().into());
            MainCommand::Argv(argv.collect())
        } else if self.keeps() {
            MainCommand::None
        } else if self.tty {
            MainCommand::AgentTerminal
        } else {
            MainCommand::Agent
        }
    }
}

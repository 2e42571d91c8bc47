//! Arguments of `run`; a flag that docker has too is named and written as in docker.

use std::ffi::OsString;
use std::path::PathBuf;

use belljar::config::Flags;
use belljar::spec::egress::Reach;
use belljar::spec::{Screen, Stdin, Terminal};
use clap::Args;

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar run -- make test\n  \
        belljar run -v ~/data:/data -m 2g --timeout 10m -- ./build.sh\n  \
        belljar run -d --name nightly -- ./long.sh\n  \
        belljar run --allow-host pypi.org --allow-host files.pythonhosted.org -- \\\n    \
          pip install -r requirements.txt\n  \
        belljar run --keep --name web\n  \
        belljar run --name web --reuse -- make test\n  \
        belljar run --agent claude --prompt-file PROMPT.md --max-cost-usd 5",
    after_help = "Exit codes: the command's own; 124 timeout; 125 belljar could not or would \
    not start it; 126 not executable; 127 not found; 128+N signal N."
)]
pub(crate) struct RunArgs {
    /// The backend: auto, jail, docker, podman, or host (no isolation)
    #[arg(long, value_name = "NAME", help_heading = "Boundary")]
    backend: Option<String>,
    /// The root file system: "host", or a directory
    #[arg(long, value_name = "DIR", help_heading = "Boundary")]
    rootfs: Option<OsString>,
    /// The image for an engine
    #[arg(long, value_name = "IMAGE", help_heading = "Boundary")]
    image: Option<String>,
    /// When the engine pulls the image: missing, always or never
    #[arg(long, value_name = "WHEN", help_heading = "Boundary")]
    pull: Option<String>,
    /// The engine's runtime, such as runsc (gVisor)
    #[arg(long, value_name = "NAME", help_heading = "Boundary")]
    oci_runtime: Option<String>,
    /// The uid[:gid] inside; not 0
    #[arg(long, value_name = "UID[:GID]", help_heading = "Boundary")]
    user: Option<String>,
    /// Refuse to start unless this clause is enforced
    #[arg(long, value_name = "CLAUSE", help_heading = "Boundary")]
    require: Vec<String>,
    /// Start even if this clause is not enforced; the reason is recorded
    #[arg(long, value_name = "CLAUSE=REASON", help_heading = "Boundary")]
    waive: Vec<String>,

    /// Run this agent instead of a command: claude, codex, gemini, or the manifest's "command"
    #[arg(long, value_name = "KIND", help_heading = "Agent", conflicts_with = "command")]
    agent: Option<String>,
    /// The agent's prompt
    #[arg(long, value_name = "TEXT", help_heading = "Agent")]
    prompt: Option<String>,
    /// A file with the agent's prompt
    #[arg(long, value_name = "FILE", conflicts_with = "prompt", help_heading = "Agent")]
    prompt_file: Option<OsString>,
    /// The agent's model
    #[arg(long, value_name = "NAME", help_heading = "Agent")]
    model: Option<String>,
    /// What the agent may do without asking: bypass, accept-edits or ask
    #[arg(long, value_name = "MODE", help_heading = "Agent")]
    permissions: Option<String>,
    /// Run the agent in a loop of at most N iterations; 0 only sets it up
    #[arg(long, value_name = "N", help_heading = "Agent")]
    max_iterations: Option<String>,
    /// Stop the agent after N turns in total
    #[arg(long, value_name = "N", help_heading = "Agent")]
    max_turns: Option<String>,
    /// Stop the agent when it has reported this total cost
    #[arg(long, value_name = "USD", help_heading = "Agent")]
    max_cost_usd: Option<String>,
    /// Stop the agent after N tokens in total, input and output
    #[arg(long, value_name = "N", help_heading = "Agent")]
    max_tokens: Option<String>,

    /// The directory to work in, or "none" [default: the current one, rw; overlay for an agent]
    #[arg(long, value_name = "DIR[:ro|rw]", help_heading = "Files")]
    workspace: Option<OsString>,
    /// Mount a file or directory, read-only unless :rw is given
    #[arg(short = 'v', long = "volume", value_name = "SRC:DST[:ro|rw]", help_heading = "Files")]
    volumes: Vec<OsString>,
    /// Mount in long form: type=bind,src=,dst=,rw or type=tmpfs,dst=,size=
    #[arg(long = "mount", value_name = "SPEC", help_heading = "Files")]
    mounts: Vec<OsString>,
    /// Mount a file system in memory
    #[arg(long, value_name = "DST[:size=N]", help_heading = "Files")]
    tmpfs: Vec<OsString>,
    /// Mount an install prefix read-only at the same path, and add its bin to PATH
    #[arg(long = "tool", value_name = "DIR", help_heading = "Files")]
    tools: Vec<OsString>,
    /// Allow a mount of this sensitive path
    #[arg(long = "allow-source", value_name = "PATH", help_heading = "Files")]
    allow_sources: Vec<OsString>,
    /// Hide this file of the workspace
    #[arg(long, value_name = "NAME", help_heading = "Files")]
    hide: Vec<OsString>,
    /// Let the run write this file even though the host executes it later (.git/config)
    #[arg(long = "allow-control", value_name = "NAME", help_heading = "Files")]
    allow_control: Vec<OsString>,
    /// The command's working directory
    #[arg(short = 'w', long, value_name = "DIR", help_heading = "Files")]
    workdir: Option<OsString>,

    /// Only "none", the default; use --allow-host to open one host
    #[arg(long, value_name = "NAME", help_heading = "Network")]
    network: Option<String>,
    /// Allow this host: a name, *.suffix or *; ports 80 and 443 unless a port is given
    #[arg(long = "allow-host", value_name = "HOST[:PORT]", help_heading = "Network")]
    allow_hosts: Vec<String>,
    /// Add a secret to requests to this host; the run sees only a placeholder
    #[arg(
        long = "secret",
        value_name = "env=NAME,host=HOST,header=NAME",
        help_heading = "Network"
    )]
    secrets: Vec<String>,
    /// Publish a port of the run, on the host's loopback unless an address is given
    #[arg(short = 'p', long, value_name = "[[ADDR:]PORT:]PORT", help_heading = "Network")]
    publish: Vec<String>,
    /// Allow every public host, and print the list of hosts that were used
    #[arg(long, help_heading = "Network")]
    pub(crate) learn: bool,

    /// Memory for the whole run, swap included (512m, 2g)
    #[arg(short, long, value_name = "SIZE", help_heading = "Limits")]
    memory: Option<String>,
    /// Processors (1.5)
    #[arg(long, value_name = "N", help_heading = "Limits")]
    cpus: Option<String>,
    /// Number of processes and threads
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pids_limit: Option<String>,
    /// Bytes that the run may write to disk
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    disk: Option<String>,
    /// Stop the run after this time (90s, 4h; a bare number is seconds)
    #[arg(long, value_name = "SPAN", help_heading = "Limits")]
    timeout: Option<String>,
    /// Stop the run after this long without output; an agent, without an event
    #[arg(long, value_name = "SPAN", help_heading = "Limits")]
    idle: Option<String>,
    /// Time between TERM and KILL when the run is stopped
    #[arg(long, value_name = "SPAN", help_heading = "Limits")]
    stop_timeout: Option<String>,

    /// Set a variable, or pass the host's value
    #[arg(short, long, value_name = "NAME[=VALUE]", help_heading = "Environment")]
    env: Vec<OsString>,
    /// Read variables from a file
    #[arg(long = "env-file", value_name = "FILE", help_heading = "Environment")]
    env_files: Vec<OsString>,
    /// Pass the host's variable
    #[arg(long, value_name = "NAME", help_heading = "Environment")]
    pass_env: Vec<OsString>,

    /// The run's name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Add a label to the run
    #[arg(short, long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// Run in the background and print the run's id
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Keep the sandbox until it is stopped; use exec to run commands in it
    #[arg(long)]
    pub(crate) keep: bool,
    /// Use the kept sandbox with this --name; start and keep one if there is none
    #[arg(long)]
    pub(crate) reuse: bool,
    /// Pass standard input (the default, unless the run is detached)
    #[arg(short, long)]
    interactive: bool,
    /// Give the command a terminal (the default where stdin and stdout are terminals)
    #[arg(short, long, overrides_with = "no_tty")]
    pub(crate) tty: bool,
    /// Give the command no terminal
    #[arg(long, overrides_with = "tty")]
    no_tty: bool,

    /// Use and trust this manifest
    #[arg(long, value_name = "FILE", help_heading = "Settings")]
    pub(crate) manifest: Option<PathBuf>,
    /// Use no manifest and no configuration file
    #[arg(long, conflicts_with = "manifest", help_heading = "Settings")]
    pub(crate) no_config: bool,
    /// Set any manifest key
    #[arg(short = 'c', value_name = "KEY=VALUE", help_heading = "Settings")]
    settings: Vec<String>,

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
    #[arg(last = true, value_name = "COMMAND")]
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
        if self.tty || (both && !self.no_tty && !self.json && !self.is_detached()) {
            Terminal::Pty
        } else {
            Terminal::None
        }
    }

    /// Whether the sandbox outlives its command.
    pub(crate) fn keeps(&self) -> bool {
        self.keep || self.reuse
    }

    /// Whether this process exits before the run ends.
    pub(crate) fn is_detached(&self) -> bool {
        self.detach || (self.keeps() && self.command.is_empty())
    }

    pub(crate) fn flags(&self, stdio: &StdioKind) -> Flags {
        let terminal = self.terminal(stdio);
        // Neither a captured nor a detached run may wait for keyboard input.
        let no_keyboard = self.is_detached() || (self.json && stdio.stdin_is_terminal);
        let stdin = if no_keyboard && !self.interactive { Stdin::Null } else { Stdin::Passed };
        Flags {
            backend: self.backend.clone(),
            image: self.image.clone(),
            pull: self.pull.clone(),
            oci_runtime: self.oci_runtime.clone(),
            rootfs: self.rootfs.clone(),
            volumes: self.volumes.clone(),
            mounts: self.mounts.clone(),
            tmpfs: self.tmpfs.clone(),
            tools: self.tools.clone(),
            workspace: self.workspace.clone(),
            workdir: self.workdir.clone(),
            allow_sources: self.allow_sources.clone(),
            hide: self.hide.clone(),
            allow_control: self.allow_control.clone(),
            user: self.user.clone(),
            network: self.network.clone(),
            allow_hosts: self.allow_hosts.clone(),
            secrets: self.secrets.clone(),
            publish: self.publish.clone(),
            reach: if self.learn { Reach::Learn } else { Reach::Listed },
            memory: self.memory.clone(),
            cpus: self.cpus.clone(),
            pids_limit: self.pids_limit.clone(),
            disk: self.disk.clone(),
            timeout: self.timeout.clone(),
            idle: self.idle.clone(),
            stop_timeout: self.stop_timeout.clone(),
            env: self.env.clone(),
            env_files: self.env_files.clone(),
            pass_env: self.pass_env.clone(),
            name: self.name.clone(),
            labels: self.labels.clone(),
            require: self.require.clone(),
            waive: self.waive.clone(),
            settings: self.settings.clone(),
            agent: self.agent.clone(),
            prompt: self.prompt.clone(),
            prompt_file: self.prompt_file.clone(),
            model: self.model.clone(),
            permissions: self.permissions.clone(),
            max_iterations: self.max_iterations.clone(),
            max_turns: self.max_turns.clone(),
            max_cost_usd: self.max_cost_usd.clone(),
            max_tokens: self.max_tokens.clone(),
            command: self.command.clone(),
            stdin,
            terminal,
            screen: if stdio.stdout_is_terminal { Screen::Terminal } else { Screen::NotTerminal },
            ..Flags::default()
        }
    }
}

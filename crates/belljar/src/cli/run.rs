//! `belljar run`: its flags follow docker's where docker has one.

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
    after_help = "Exit codes: the command's own; 124 deadline; 125 belljar could not or would \
    not start it; 126 not executable; 127 not found; 128+N signal N."
)]
pub(crate) struct RunArgs {
    /// What makes the boundary: auto, jail, docker, podman, or host (no isolation)
    #[arg(long, value_name = "NAME", help_heading = "Boundary")]
    backend: Option<String>,
    /// The root directory: "host", or a directory that holds one
    #[arg(long, value_name = "DIR", help_heading = "Boundary")]
    rootfs: Option<OsString>,
    /// The image that engines start from
    #[arg(long, value_name = "IMAGE", help_heading = "Boundary")]
    image: Option<String>,
    /// When an engine fetches the image: missing, always or never
    #[arg(long, value_name = "WHEN", help_heading = "Boundary")]
    pull: Option<String>,
    /// The engine's runtime, such as runsc (gVisor)
    #[arg(long, value_name = "NAME", help_heading = "Boundary")]
    oci_runtime: Option<String>,
    /// uid[:gid] inside, never 0
    #[arg(long, value_name = "UID[:GID]", help_heading = "Boundary")]
    user: Option<String>,
    /// Demand that a clause holds, or do not start
    #[arg(long, value_name = "CLAUSE", help_heading = "Boundary")]
    require: Vec<String>,
    /// Start although a clause does not hold, for a reason
    #[arg(long, value_name = "CLAUSE=REASON", help_heading = "Boundary")]
    waive: Vec<String>,

    /// Run this agent instead of a command: claude, codex, gemini, or the manifest's "command"
    #[arg(long, value_name = "KIND", help_heading = "Agent", conflicts_with = "command")]
    agent: Option<String>,
    /// What the agent is told
    #[arg(long, value_name = "TEXT", help_heading = "Agent")]
    prompt: Option<String>,
    /// A file with what the agent is told
    #[arg(long, value_name = "FILE", conflicts_with = "prompt", help_heading = "Agent")]
    prompt_file: Option<OsString>,
    /// The model that the agent uses
    #[arg(long, value_name = "NAME", help_heading = "Agent")]
    model: Option<String>,
    /// What the agent does without asking: bypass, accept-edits or ask
    #[arg(long, value_name = "MODE", help_heading = "Agent")]
    permissions: Option<String>,
    /// Run the agent again and again, at most so often; 0 for a dry start
    #[arg(long, value_name = "N", help_heading = "Agent")]
    max_iterations: Option<String>,
    /// Answers of the model in all
    #[arg(long, value_name = "N", help_heading = "Agent")]
    max_turns: Option<String>,
    /// What it may cost in all, as the agent tells it
    #[arg(long, value_name = "USD", help_heading = "Agent")]
    max_cost_usd: Option<String>,
    /// Tokens in all, read and written
    #[arg(long, value_name = "N", help_heading = "Agent")]
    max_tokens: Option<String>,

    /// The tree to work on [default: the current directory, rw; overlay for an agent]; "none" for none
    #[arg(long, value_name = "DIR[:ro|rw]", help_heading = "Files")]
    workspace: Option<OsString>,
    /// Mount a file or directory; read-only unless rw is said
    #[arg(short = 'v', long = "volume", value_name = "SRC:DST[:ro|rw]", help_heading = "Files")]
    volumes: Vec<OsString>,
    /// The same, spelled out: type=bind,src=,dst=,rw or type=tmpfs,dst=,size=
    #[arg(long = "mount", value_name = "SPEC", help_heading = "Files")]
    mounts: Vec<OsString>,
    /// A file system in memory
    #[arg(long, value_name = "DST[:size=N]", help_heading = "Files")]
    tmpfs: Vec<OsString>,
    /// An install prefix: read-only at its own path, its bin on PATH
    #[arg(long = "tool", value_name = "DIR", help_heading = "Files")]
    tools: Vec<OsString>,
    /// Allow this sensitive path as a source
    #[arg(long = "allow-source", value_name = "PATH", help_heading = "Files")]
    allow_sources: Vec<OsString>,
    /// Do not show this file of the workspace inside
    #[arg(long, value_name = "NAME", help_heading = "Files")]
    hide: Vec<OsString>,
    /// Let the run write this file although it executes on the host later (.git/config)
    #[arg(long = "allow-control", value_name = "NAME", help_heading = "Files")]
    allow_control: Vec<OsString>,
    /// Where the command starts
    #[arg(short = 'w', long, value_name = "DIR", help_heading = "Files")]
    workdir: Option<OsString>,

    /// The network inside: "none"
    #[arg(long, value_name = "NAME", help_heading = "Network")]
    network: Option<String>,
    /// Let the run reach this host: a name, *.suffix or *; ports 80 and 443 unless one is said
    #[arg(long = "allow-host", value_name = "HOST[:PORT]", help_heading = "Network")]
    allow_hosts: Vec<String>,
    /// Put a secret into requests to its host; inside there is a placeholder
    #[arg(
        long = "secret",
        value_name = "env=NAME,host=HOST,header=NAME",
        help_heading = "Network"
    )]
    secrets: Vec<String>,
    /// Let the host reach a port inside; on the host's loopback unless an address is said
    #[arg(short = 'p', long, value_name = "[[ADDR:]PORT:]PORT", help_heading = "Network")]
    publish: Vec<String>,
    /// Let every public name through, and print the list that would have served
    #[arg(long, help_heading = "Network")]
    pub(crate) learn: bool,

    /// Memory of the whole tree, swap included (512m, 2g)
    #[arg(short, long, value_name = "SIZE", help_heading = "Limits")]
    memory: Option<String>,
    /// Processors (1.5)
    #[arg(long, value_name = "N", help_heading = "Limits")]
    cpus: Option<String>,
    /// Processes and threads
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pids_limit: Option<String>,
    /// What may be written to disk
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    disk: Option<String>,
    /// Wall clock (90s, 4h; a bare number is seconds)
    #[arg(long, value_name = "SPAN", help_heading = "Limits")]
    timeout: Option<String>,
    /// End it when it says nothing for so long; an agent, when there is no news of it
    #[arg(long, value_name = "SPAN", help_heading = "Limits")]
    idle: Option<String>,
    /// Between the request to stop and the end
    #[arg(long, value_name = "SPAN", help_heading = "Limits")]
    stop_timeout: Option<String>,

    /// Set a variable, or pass the host's
    #[arg(short, long, value_name = "NAME[=VALUE]", help_heading = "Environment")]
    env: Vec<OsString>,
    /// Variables from a file
    #[arg(long = "env-file", value_name = "FILE", help_heading = "Environment")]
    env_files: Vec<OsString>,
    /// Pass the host's variable
    #[arg(long, value_name = "NAME", help_heading = "Environment")]
    pass_env: Vec<OsString>,

    /// A name for the run
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A label for the run
    #[arg(short, long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// Run it in the background, and print the run's id
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Keep the sandbox until it is stopped; commands can come later, with exec
    #[arg(long)]
    pub(crate) keep: bool,
    /// Run it in the sandbox of that name if one is kept; else start one, and keep it
    #[arg(long)]
    pub(crate) reuse: bool,
    /// Pass standard input on (the default, unless the run is detached)
    #[arg(short, long)]
    interactive: bool,
    /// Give the command a terminal (the default where stdin and stdout are terminals)
    #[arg(short, long, overrides_with = "no_tty")]
    pub(crate) tty: bool,
    /// Give it none
    #[arg(long, overrides_with = "tty")]
    no_tty: bool,

    /// Use this manifest, and trust it
    #[arg(long, value_name = "FILE", help_heading = "Settings")]
    pub(crate) manifest: Option<PathBuf>,
    /// Use no manifest and no configuration file
    #[arg(long, conflicts_with = "manifest", help_heading = "Settings")]
    pub(crate) no_config: bool,
    /// Set any manifest key
    #[arg(short = 'c', value_name = "KEY=VALUE", help_heading = "Settings")]
    settings: Vec<String>,

    /// Print the plan and its posture, and start nothing
    #[arg(long, help_heading = "Output")]
    pub(crate) dry_run: bool,
    /// Capture the output and print one JSON object
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Write that object to a file and leave the streams alone
    #[arg(long, value_name = "FILE", conflicts_with = "json", help_heading = "Output")]
    pub(crate) result: Option<PathBuf>,
    /// Print to stderr where the time went, once it is over
    #[arg(long, conflicts_with = "dry_run", help_heading = "Output")]
    pub(crate) timings: bool,
    /// Say nothing besides the command's own output
    #[arg(short, long, help_heading = "Output")]
    pub(crate) quiet: bool,

    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What standard input and output are.
pub(crate) struct StdioKind {
    pub(crate) stdin_is_terminal: bool,
    pub(crate) stdout_is_terminal: bool,
}

impl RunArgs {
    pub(crate) fn terminal(&self, around: &StdioKind) -> Terminal {
        let both = around.stdin_is_terminal && around.stdout_is_terminal;
        if self.tty || (both && !self.no_tty && !self.json && !self.leaves()) {
            Terminal::Pty
        } else {
            Terminal::None
        }
    }

    /// Whether the sandbox stays when its command is over.
    pub(crate) fn keeps(&self) -> bool {
        self.keep || self.reuse
    }

    /// Whether belljar ends before the run does.
    pub(crate) fn leaves(&self) -> bool {
        self.detach || (self.keeps() && self.command.is_empty())
    }

    pub(crate) fn flags(&self, around: &StdioKind) -> Flags {
        let terminal = self.terminal(around);
        // Neither a captured nor a detached run waits for somebody to type.
        let nobody_types = self.leaves() || (self.json && around.stdin_is_terminal);
        let stdin = if nobody_types && !self.interactive { Stdin::Null } else { Stdin::Passed };
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
            screen: if around.stdout_is_terminal { Screen::Terminal } else { Screen::NotTerminal },
            ..Flags::default()
        }
    }
}

//! Arguments of the verbs that act inside a live run: `exec`, `shell`, `attach`, `cp`.

use std::ffi::OsString;

use belljar::spec::HumanDuration;
use clap::Args;

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar exec web -- make test\n  \
        belljar exec -t web -- bash\n  \
        belljar exec --timeout 30s web -- curl localhost:8080",
    after_help = "Exit codes: the command's own; 124 timeout; 125 belljar could not start it; 126 not \
    executable; 127 not found; 128+N signal N."
)]
pub(crate) struct ExecArgs {
    /// Pass standard input (the default, unless stdin is a terminal and the command has none)
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Give the command a terminal (the default where stdin and stdout are terminals)
    #[arg(short, long, overrides_with = "no_tty")]
    pub(crate) tty: bool,
    /// Give the command no terminal
    #[arg(long, overrides_with = "tty")]
    pub(crate) no_tty: bool,
    /// Do not wait for the command; its output goes to the record
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    pub(crate) detach: bool,
    /// Set a variable, or pass the host's value
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<OsString>,
    /// The command's working directory
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<OsString>,
    /// Kill the command and its children after this time (90s, 4h; a bare number is seconds)
    #[arg(long, value_name = "SPAN")]
    pub(crate) timeout: Option<HumanDuration>,

    /// The run: its name, its id, or the start or end of its id
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct ShellArgs {
    /// The run [default: the only kept sandbox, or a new one for this directory]
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "On a terminal, ctrl-p ctrl-q detaches and leaves the command running. Exit code: \
    the command's own; 0 after detaching."
)]
pub(crate) struct AttachArgs {
    /// Do not pass standard input
    #[arg(long)]
    pub(crate) no_stdin: bool,
    /// The run: its name, its id, or the start or end of its id
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
}

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar cp web:/workspace/report.pdf .\n  \
        belljar cp ./data web:/home/agent/",
    after_help = "Links, devices and other entries that are unsafe to copy out are skipped and listed. Exit \
    codes: 0 everything was copied; 1 something was skipped or refused; 125 nothing could be copied."
)]
pub(crate) struct CopyArgs {
    /// Do not list what was skipped
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// RUN:/path, or a path on this host
    #[arg(value_name = "FROM")]
    pub(crate) from: OsString,
    /// RUN:/path, or a path on this host; an existing directory receives the copy
    #[arg(value_name = "TO")]
    pub(crate) to: OsString,
}

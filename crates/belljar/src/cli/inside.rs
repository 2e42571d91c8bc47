//! What enters a run that is alive: `exec`, `shell`, `attach`, `cp`.

use std::ffi::OsString;

use belljar::spec::HumanDuration;
use clap::Args;

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar exec web -- make test\n  \
        belljar exec -t web -- bash\n  \
        belljar exec --timeout 30s web -- curl localhost:8080",
    after_help = "Exit codes: the command's own; 124 its time was over; 125 it could not be \
    started; 126 not executable; 127 not found; 128+N signal N."
)]
pub(crate) struct ExecArgs {
    /// Pass standard input on (the default, unless it is a terminal and the command has none)
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Give the command a terminal (the default where stdin and stdout are terminals)
    #[arg(short, long, overrides_with = "no_tty")]
    pub(crate) tty: bool,
    /// Give it none
    #[arg(long, overrides_with = "tty")]
    pub(crate) no_tty: bool,
    /// Do not wait for it; what it prints is in the record
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    pub(crate) detach: bool,
    /// Set a variable, or pass the host's
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<OsString>,
    /// Where the command starts
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<OsString>,
    /// End it, with everything it started, after this (90s, 4h; a bare number is seconds)
    #[arg(long, value_name = "SPAN")]
    pub(crate) timeout: Option<HumanDuration>,

    /// The run: an id, a head or a tail of it, or a name
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct ShellArgs {
    /// The run; without it the only sandbox that is kept, or else a fresh one for this directory
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "With a terminal, ctrl-p ctrl-q lets go of the command, which runs on. Exit code: \
    the command's own; 0 when it was let go of."
)]
pub(crate) struct AttachArgs {
    /// Do not pass standard input on
    #[arg(long)]
    pub(crate) no_stdin: bool,
    /// The run: an id, a head or a tail of it, or a name
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
}

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar cp web:/workspace/report.pdf .\n  \
        belljar cp ./data web:/home/agent/",
    after_help = "Links, devices and the like that must not come out are left out and listed. Exit \
    codes: 0 all was copied; 1 something was left out or refused; 125 nothing could be done."
)]
pub(crate) struct CopyArgs {
    /// Say nothing of what was left out
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// RUN:/path, or a path here
    #[arg(value_name = "FROM")]
    pub(crate) from: OsString,
    /// RUN:/path, or a path here; a directory that exists gets the copy below it
    #[arg(value_name = "TO")]
    pub(crate) to: OsString,
}

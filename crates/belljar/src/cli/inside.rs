//! Arguments of the verbs that act inside a live run: `exec`, `shell`, `attach`, `cp`.

use std::ffi::OsString;
use std::path::PathBuf;

use belljar::spec::{HumanDuration, Size};
use clap::Args;

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar exec web make test\n  \
        belljar exec -t web bash\n  \
        belljar exec --timeout 30s web curl localhost:8080\n  \
        belljar exec --json --timeout 30s web make test",
    after_help = "The first word after RUN starts the command; flags after it belong to the command. Exit codes: the command's own; 124 timeout; 125 belljar could not start it; 126 not \
    executable; 127 not found; 128+N signal N. A command can exit with 124 to 127 too; \
    \"exit.source\" in the object of --json and --result tells them apart: command, deadline, \
    sandbox (not executed) or policy (not started).\n\n\
    The object: id, exec (the command's number in the record), outcome (succeeded, failed, \
    refused), reason, exit { code or signal, source }, stdout, stderr, stdout_lost, stderr_lost, \
    failure, error, wall_ms."
)]
pub(crate) struct ExecArgs {
    /// Pass standard input (the default, unless stdin is a terminal and the command has none)
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Pass no standard input; for loops that read lines, which the command would read otherwise
    #[arg(short = 'n', long, conflicts_with_all = ["interactive", "tty"])]
    pub(crate) no_stdin: bool,
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
    /// Set the variables in a file; -e wins over it
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Vec<PathBuf>,
    /// The command's working directory; a relative one is below the run's
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<OsString>,
    /// Kill the command and its children after this time (90s, 4h; a bare number is seconds)
    #[arg(long, value_name = "DURATION")]
    pub(crate) timeout: Option<HumanDuration>,
    /// Capture the output and print one JSON object
    #[arg(long, conflicts_with = "tty", help_heading = "Output")]
    pub(crate) json: bool,
    /// Write that JSON object to a file; output is not captured
    #[arg(long, value_name = "FILE", conflicts_with = "json", help_heading = "Output")]
    pub(crate) result: Option<PathBuf>,
    /// With --json: keep this much of each stream, half of it from its start and half from its end
    /// [default: the run's limits.output]
    #[arg(long, value_name = "SIZE", requires = "json", help_heading = "Output")]
    pub(crate) output_limit: Option<Size>,

    /// The run: its name, its id, or the start or end of its id
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
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
    after_help = "Follows the command from now on; logs has the earlier output. On a terminal, ctrl-p ctrl-q detaches and leaves the command running. Exit code: \
    the command's own; 0 after detaching."
)]
pub(crate) struct AttachArgs {
    /// Do not pass standard input
    #[arg(short = 'n', long)]
    pub(crate) no_stdin: bool,
    /// The run: its name, its id, or the start or end of its id [default: the newest live run]
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar cp web:/workspace/report.pdf .\n  \
        belljar cp ./data web:/home/agent/\n  \
        belljar cp web:/workspace/log.txt - | less\n  \
        date | belljar cp -p - web:/workspace/new/directory/now.txt",
    after_help = "As FROM, - is standard input and becomes one file; as TO, - is standard output and gets the \
    content of one file. There is no tar format; for a tree in one stream run tar inside: belljar exec web \
    tar -c DIR. An existing directory as TO receives the copy under its own name, on both sides. A file that \
    nobody may write is not replaced without -f.\n\n\
    Links, devices and other entries that are unsafe to copy out are skipped and listed. Exit \
    codes: 0 everything was copied; 1 something was skipped or refused; 125 nothing could be copied."
)]
pub(crate) struct CopyArgs {
    /// Do not list what was skipped
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Make missing directories above TO
    #[arg(short, long)]
    pub(crate) parents: bool,
    /// Replace read-only files
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Print JSON: the numbers of files and bytes, and what was skipped
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) json: bool,
    /// RUN:/path, a path on this host, or - for standard input
    #[arg(value_name = "FROM")]
    pub(crate) from: OsString,
    /// RUN:/path, a path on this host, or - for standard output; an existing
    /// directory receives the copy
    #[arg(value_name = "TO")]
    pub(crate) to: OsString,
}

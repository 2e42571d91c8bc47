//! Arguments of the verbs that read a run's record: `logs`, `events`, `verify`.

use clap::Args;

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar logs -f web\n  \
        belljar logs --tail 20 -t web\n  \
        belljar logs --since 10m --stderr web\n  \
        belljar logs --agent -f nightly",
    after_help = "The command's stdout goes to stdout and its stderr to stderr, byte for byte, in the order in \
    which they were recorded. On a terminal, control characters are escaped, except newlines and tabs. Bytes \
    that were not kept (limits.output) are reported as one line on stderr. The data of cp is left out."
)]
pub(crate) struct LogsArgs {
    /// Follow until the run ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Start at this time: 10m for ten minutes ago, or 2026-01-31T12:00:00Z (UTC
    /// without a zone)
    #[arg(long, value_name = "DURATION|TIME")]
    pub(crate) since: Option<String>,
    /// Only the last N lines
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) tail: Option<u64>,
    /// Begin each line with its time
    #[arg(short, long)]
    pub(crate) timestamps: bool,
    /// Only the output of one command; 0 is the run's main command, 1 the first exec
    #[arg(long, value_name = "N")]
    pub(crate) exec: Option<u32>,
    /// Only standard output
    #[arg(long, conflicts_with = "stderr")]
    pub(crate) stdout: bool,
    /// Only standard error
    #[arg(long)]
    pub(crate) stderr: bool,
    /// Do not escape control characters on a terminal
    #[arg(long)]
    pub(crate) raw: bool,
    /// Print the agent's messages and actions instead
    #[arg(long, conflicts_with_all = ["tail", "timestamps", "exec", "stdout", "stderr", "raw"])]
    pub(crate) agent: bool,
    /// With --agent: print its events, one JSON object per line
    #[arg(long, requires = "agent")]
    pub(crate) json: bool,
    /// The run: its name, its id, or the start or end of its id [default: the newest run]
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<String>,
}

#[derive(Debug, Args)]
#[command(before_help = "Examples:\n  \
    belljar events -f nightly\n  \
    belljar events --kind limit.hit nightly")]
pub(crate) struct EventsArgs {
    /// Follow until the run ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only events of this kind (exec.start, limit.hit); repeatable
    #[arg(long = "kind", value_name = "KIND")]
    pub(crate) kinds: Vec<String>,
    /// The run: its name, its id, or the start or end of its id [default: the newest run]
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A record is intact if it is what the run wrote, all of it, in its order. Exit codes: 0 every record is intact; 1 a record is not; 125 nothing was checked."
)]
pub(crate) struct VerifyArgs {
    /// Check every run
    #[arg(long, conflicts_with = "runs")]
    pub(crate) all: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The runs: names, ids, or the start or end of an id [default: the newest run]
    #[arg(value_name = "RUN")]
    pub(crate) runs: Vec<String>,
}

//! What reads a run's record.

use clap::Args;

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar logs -f web\n  \
        belljar logs --tail 20 -t web\n  \
        belljar logs --since 10m --stderr web\n  \
        belljar logs --agent -f nightly",
    after_help = "Output goes where it went: stdout to stdout, stderr to stderr, exact bytes. On a \
    terminal control characters are escaped."
)]
pub(crate) struct LogsArgs {
    /// Go on until the run is over
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// From this time on: 10m ago, or 2026-01-31T12:00:00Z
    #[arg(long, value_name = "SPAN|TIME")]
    pub(crate) since: Option<String>,
    /// Only the last N lines
    #[arg(long, value_name = "N")]
    pub(crate) tail: Option<u64>,
    /// Begin each line with its time
    #[arg(short, long)]
    pub(crate) timestamps: bool,
    /// Only of one command; 0 is the run's own
    #[arg(long, value_name = "N")]
    pub(crate) exec: Option<u32>,
    /// Only standard output
    #[arg(long, conflicts_with = "stderr")]
    pub(crate) stdout: bool,
    /// Only standard error
    #[arg(long)]
    pub(crate) stderr: bool,
    /// Send the bytes to a terminal as they are
    #[arg(long)]
    pub(crate) raw: bool,
    /// What the run's agent said and did, instead
    #[arg(long, conflicts_with_all = ["tail", "timestamps", "exec", "stdout", "stderr", "raw"])]
    pub(crate) agent: bool,
    /// With --agent: its events, one JSON object a line
    #[arg(long, requires = "agent")]
    pub(crate) json: bool,
    /// The run: an id, a head or a tail of it, or a name
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
}

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Go on until the run is over
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only events of this kind (exec.start, limit.hit); can be given again
    #[arg(long = "kind", value_name = "KIND")]
    pub(crate) kinds: Vec<String>,
    /// The run: an id, a head or a tail of it, or a name
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 every record is sound; 1 one is not; 125 nothing was checked."
)]
pub(crate) struct VerifyArgs {
    /// Every run there is
    #[arg(long, conflicts_with = "runs")]
    pub(crate) all: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The runs: ids, heads or tails of them, or names
    #[arg(required_unless_present = "all", value_name = "RUN")]
    pub(crate) runs: Vec<String>,
}

//! What lists, ends and removes runs.

use belljar::spec::HumanDuration;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// The runs: ids, heads or tails of them, or names
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "Everything inside gets TERM; what is left after the grace is killed.")]
pub(crate) struct StopArgs {
    /// The grace [default: the run's own stop_timeout]
    #[arg(short, long, value_name = "SECONDS")]
    pub(crate) timeout: Option<HumanDuration>,
    /// Print nothing
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The runs: ids, heads or tails of them, or names
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Stop it first, if it is alive; remove it with changes that were neither applied nor discarded
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Print nothing
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The runs: ids, heads or tails of them, or names
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<String>,
}

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar prune --keep 20 --older-than 7d --dry-run\n  \
        belljar prune --keep 0",
    after_help = "With both flags a run goes if both are against it. Without any, what [retention] \
    in the settings says is done for every name. Runs that are alive never go, nor do \
    those with changes that were neither applied nor discarded."
)]
pub(crate) struct PruneArgs {
    /// So many of the newest of each name stay
    #[arg(long, value_name = "N")]
    pub(crate) keep: Option<usize>,
    /// What stopped less long ago stays
    #[arg(long, value_name = "SPAN")]
    pub(crate) older_than: Option<HumanDuration>,
    /// Only tell
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print nothing
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Runs that are over, too
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Only ids, whole
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Only runs of exactly this name
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The run: an id, a head or a tail of it, or a name
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
}

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The run: an id, a head or a tail of it, or a name
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
}

#[derive(Debug, Args)]
pub(crate) struct PortArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The run: an id, a head or a tail of it, or a name
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Only the address that leads to this port inside
    #[arg(value_name = "PORT")]
    pub(crate) port: Option<u16>,
}

#[derive(Debug, Args)]
pub(crate) struct ReconcileArgs {
    /// Add what the ledger does not know from the records; a damaged ledger is set aside
    #[arg(long)]
    pub(crate) rebuild_ledger: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

//! Arguments of the verbs that list, stop and remove runs.

use belljar::spec::HumanDuration;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// The runs: names, ids, or the start or end of an id
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "Every process inside gets TERM, and KILL after the timeout.")]
pub(crate) struct StopArgs {
    /// Time between TERM and KILL [default: the run's stop_timeout]
    #[arg(short, long, value_name = "SECONDS")]
    pub(crate) timeout: Option<HumanDuration>,
    /// Print nothing
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The runs: names, ids, or the start or end of an id
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Stop the run first if it is alive; also remove changes that were neither applied nor discarded
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Print nothing
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The runs: names, ids, or the start or end of an id
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<String>,
}

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar prune --keep 20 --older-than 7d --dry-run\n  \
        belljar prune --keep 0",
    after_help = "With both flags, a run is removed if both apply to it. With neither, the [retention] \
    settings decide, for each name. Live runs, and runs with changes that were neither applied nor \
    discarded, are never removed."
)]
pub(crate) struct PruneArgs {
    /// Keep the N newest runs of each name
    #[arg(long, value_name = "N")]
    pub(crate) keep: Option<usize>,
    /// Remove only runs that ended longer ago than this
    #[arg(long, value_name = "SPAN")]
    pub(crate) older_than: Option<HumanDuration>,
    /// Print what would be removed, and remove nothing
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
    /// Include ended runs
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Print only full ids
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Only runs with exactly this name
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
    /// The run: its name, its id, or the start or end of its id
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
}

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The run: its name, its id, or the start or end of its id
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
}

#[derive(Debug, Args)]
pub(crate) struct PortArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The run: its name, its id, or the start or end of its id
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Only the address of this port of the run
    #[arg(value_name = "PORT")]
    pub(crate) port: Option<u16>,
}

#[derive(Debug, Args)]
pub(crate) struct ReconcileArgs {
    /// Add missing runs to the ledger from their records; a damaged ledger is moved out of the way
    #[arg(long)]
    pub(crate) rebuild_ledger: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

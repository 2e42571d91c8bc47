//! Arguments of the verbs that list, stop and remove runs.

use belljar::spec::{HumanDuration, HumanDurationError};
use clap::Args;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: that of the first run that did not end with 0; 125 for one whose supervisor died."
)]
pub(crate) struct WaitArgs {
    /// Print JSON: a list with one object for each run, with its reason and exit
    #[arg(long)]
    pub(crate) json: bool,
    /// The runs: names, ids, or the start or end of an id [default: the newest run]
    #[arg(value_name = "RUN")]
    pub(crate) runs: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "Every process inside gets TERM, and KILL after the timeout. The command \
    returns when the run's end is recorded.")]
pub(crate) struct StopArgs {
    /// Time between TERM and KILL [default: the run's stop_timeout]
    #[arg(short, long, value_name = "SECONDS")]
    pub(crate) timeout: Option<HumanDuration>,
    /// Print only ids
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print JSON: a list with one object for each run
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) json: bool,
    /// The runs: names, ids, or the start or end of an id
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A live run, and one whose changes were neither applied nor discarded, is refused without \
    --force."
)]
pub(crate) struct RmArgs {
    /// Stop the run first if it is alive; also remove changes that were neither applied nor discarded
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Print only ids
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print JSON: a list with one object for each run
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) json: bool,
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
    settings decide, for each name: beyond sandboxes the files of a sandbox are removed, beyond runs the \
    record too. Live runs, and runs with changes that were neither applied nor \
    discarded, are never removed."
)]
pub(crate) struct PruneArgs {
    /// Keep the N newest runs of each name
    #[arg(long, value_name = "N")]
    pub(crate) keep: Option<usize>,
    /// Remove only runs that ended longer ago than this
    #[arg(long, value_name = "DURATION")]
    pub(crate) older_than: Option<HumanDuration>,
    /// Print what would be removed, and remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print only ids
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
    /// The run: its name, its id, or the start or end of its id [default: the newest run]
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Prints each denial with its reason and the line of the manifest that would allow it, allowed \
    connections that failed, and exhausted budgets; for a run with --learn also the smallest list of hosts \
    that would have been enough; for a run with --trace-denied also the system calls that the filter refused."
)]
pub(crate) struct WhyArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The run: its name, its id, or the start or end of its id [default: the newest run]
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<String>,
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
#[command(
    before_help = "Examples:\n  \
        belljar network web                          what it may reach now\n  \
        belljar network web --allow pypi.org         one more host\n  \
        belljar network web --deny pypi.org          and off again\n  \
        belljar network web --set api.example.com registry.example.com:443\n  \
        belljar network web --set none               close all of it",
    after_help = "RUN comes first. A change is in force when the command ends: connections to hosts that are no \
    longer allowed are closed, and none can be made. It is recorded (network.changed). More than the ceiling of \
    /etc/belljar/policy.toml cannot be allowed. A new run, resume and fork begin with the settings' own list."
)]
pub(crate) struct NetworkArgs {
    /// Allow these hosts and nothing else (rules as in network.allow); none: close all
    #[arg(long, value_name = "HOST[:PORT]", num_args = 1.., conflicts_with_all = ["allow", "deny"])]
    pub(crate) set: Vec<String>,
    /// Also allow this host
    #[arg(long, value_name = "HOST[:PORT]", num_args = 1.., alias = "allow-host")]
    pub(crate) allow: Vec<String>,
    /// No longer allow this host; without a port, at every port
    #[arg(long, value_name = "HOST[:PORT]", num_args = 1.., alias = "remove")]
    pub(crate) deny: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The run: its name, its id, or the start or end of its id
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Every command that starts something does this too, and so do rm and prune. Exit code 1 if \
    something could not be removed."
)]
pub(crate) struct ReconcileArgs {
    /// Add missing runs to the ledger from their records; a damaged ledger is moved out of the way
    #[arg(long)]
    pub(crate) rebuild_ledger: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar run --keep --name web --ttl 1h\n  \
        belljar renew web --ttl 1h",
    after_help = "For a sandbox that was started with --keep or --reuse. Its end is recorded with the reason \
    \"expired\"."
)]
pub(crate) struct RenewArgs {
    /// How long it lives from now on (90s, 4h; a bare number is seconds);
    /// none: until it is stopped
    #[arg(long, value_name = "DURATION", value_parser = Ttl::parse)]
    pub(crate) ttl: Ttl,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The run: its name, its id, or the start or end of its id
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
}

/// A time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ttl {
    Unlimited,
    For(HumanDuration),
}

impl Ttl {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::Unlimited),
            text => {
                text.parse().map(Self::For).map_err(|error: HumanDurationError| error.to_string())
            }
        }
    }
}

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar checkpoint web\n  \
        belljar fork --name other web\n  \
        belljar fork --from 1 --name first web",
    after_help = "Prints the checkpoint's number, counted from 1. It has the run's overlay trees and its home, and \
    is taken while no command runs. An agent's run takes its own after each iteration."
)]
pub(crate) struct CheckpointArgs {
    /// A text for the record
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The run: its name, its id, or the start or end of its id
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
}

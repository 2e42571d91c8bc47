//! `belljar resume` and `belljar fork`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(before_help = "Examples:\n  \
    belljar resume night                    from the last checkpoint\n  \
    belljar resume night --from 3           from an earlier one\n  \
    belljar resume night --extend-iterations 10 --extend-cost-usd 5")]
pub(crate) struct ResumeArgs {
    /// The run, by its id, the end of its id, or its name
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    #[command(flatten)]
    pub(crate) birth: ResumeOriginArgs,
}

#[derive(Debug, Args)]
#[command(before_help = "Examples:\n  \
    belljar fork night --name other         from the last checkpoint\n  \
    belljar fork night --from 3 -d")]
pub(crate) struct ForkArgs {
    /// The run, by its id, the end of its id, or its name
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// The new run's name
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) birth: ResumeOriginArgs,
}

/// What both have.
#[derive(Debug, Args)]
pub(crate) struct ResumeOriginArgs {
    /// The iteration whose checkpoint to begin with; 0 is the beginning
    #[arg(long, value_name = "N")]
    pub(crate) from: Option<u32>,
    /// So many iterations more
    #[arg(long, value_name = "N", help_heading = "Budgets")]
    pub(crate) extend_iterations: Option<u32>,
    /// So much time more for the loop, such as 2h
    #[arg(long, value_name = "SPAN", help_heading = "Budgets")]
    pub(crate) extend_time: Option<String>,
    /// So many dollars more
    #[arg(long, visible_alias = "extend-cost", value_name = "AMOUNT", help_heading = "Budgets")]
    pub(crate) extend_cost_usd: Option<f64>,
    /// So many turns more
    #[arg(long, value_name = "N", help_heading = "Budgets")]
    pub(crate) extend_turns: Option<u64>,
    /// So many tokens more
    #[arg(long, value_name = "N", help_heading = "Budgets")]
    pub(crate) extend_tokens: Option<u64>,
    /// What may be otherwise than at the first start: image, mounts, policy
    #[arg(long, value_name = "WHAT")]
    pub(crate) allow: Vec<String>,
    /// Print the new run's id, and leave it to itself
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Print one JSON object at the end
    #[arg(long)]
    pub(crate) json: bool,
    /// Write that object to a file
    #[arg(long, value_name = "FILE")]
    pub(crate) result: Option<PathBuf>,
    /// Say nothing but what went wrong
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

//! Arguments of `resume` and `fork`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(before_help = "Examples:\n  \
    belljar resume night                    from the last checkpoint\n  \
    belljar resume night --from 3           from an earlier one\n  \
    belljar resume night --prompt \"Fix the tests first.\"\n  \
    belljar resume night --extend-iterations 10 --extend-cost-usd 5")]
pub(crate) struct ResumeArgs {
    /// The run: its name, its id, or the start or end of its id
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    #[command(flatten)]
    pub(crate) origin: ResumeOriginArgs,
}

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
    belljar fork night --name other         from the last checkpoint\n  \
    belljar fork night --from 3 -d",
    after_help = "A checkpoint that a program took of a sandbox without an agent can be forked too: the id of the \
    new sandbox is printed, and it waits for exec."
)]
pub(crate) struct ForkArgs {
    /// The run: its name, its id, or the start or end of its id
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// The new run's name
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) origin: ResumeOriginArgs,
}

/// Arguments that `resume` and `fork` share.
#[derive(Debug, Args)]
pub(crate) struct ResumeOriginArgs {
    /// Start from the checkpoint of this iteration; 0 is before the first
    #[arg(long, value_name = "N")]
    pub(crate) from: Option<u32>,
    /// Give the agent this prompt from now on
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_file")]
    pub(crate) prompt: Option<String>,
    /// Give the agent the content of this file as its prompt from now on
    #[arg(long, value_name = "FILE")]
    pub(crate) prompt_file: Option<PathBuf>,
    /// Allow N more iterations
    #[arg(long, value_name = "N", help_heading = "Budgets")]
    pub(crate) extend_iterations: Option<u32>,
    /// Allow this much more time for the loop, such as 2h
    #[arg(long, value_name = "DURATION", help_heading = "Budgets")]
    pub(crate) extend_time: Option<String>,
    /// Allow this many more dollars
    #[arg(long, visible_alias = "extend-cost", value_name = "AMOUNT", help_heading = "Budgets")]
    pub(crate) extend_cost_usd: Option<f64>,
    /// Allow N more turns
    #[arg(long, value_name = "N", help_heading = "Budgets")]
    pub(crate) extend_turns: Option<u64>,
    /// Allow N more tokens
    #[arg(long, value_name = "N", help_heading = "Budgets")]
    pub(crate) extend_tokens: Option<u64>,
    /// Accept a change since the first start: image, mounts (a mounted tree),
    /// policy (the plan); repeatable
    #[arg(long, value_name = "WHAT")]
    pub(crate) allow: Vec<String>,
    /// Run in the background and print the new run's id
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Print one JSON object at the end
    #[arg(long)]
    pub(crate) json: bool,
    /// Write that JSON object to a file
    #[arg(long, value_name = "FILE")]
    pub(crate) result: Option<PathBuf>,
    /// Print only errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

//! What decides about the changes of a run.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar apply RUN                   everything, after one question\n  \
        belljar apply RUN src tests/a.rs    only that\n  \
        belljar apply -i RUN                file by file, hunk by hunk\n  \
        belljar apply --dry-run RUN\n  \
        belljar apply --quarantine RUN      move new control files out of an rw tree",
    after_help = "All or nothing: either every path is taken over, or none is. Where the tree has moved on \
    meanwhile texts are merged; what cannot be merged is shown, and nothing is changed (exit code 1). Files that \
    decide what runs on the host are held back unless they are named. Works while the run is alive, too."
)]
pub(crate) struct ApplyArgs {
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Ask for every file, and for every hunk of a text
    #[arg(short, long, conflicts_with_all = ["yes", "json"])]
    pub(crate) interactive: bool,
    /// Only tell
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Where the tree has changed in the same place, take the run's version
    #[arg(long)]
    pub(crate) theirs: bool,
    /// Move control files that were not there before the run out of its
    /// writable trees, into the run's directory
    #[arg(long, conflicts_with_all = ["interactive", "dry_run", "theirs", "paths"])]
    pub(crate) quarantine: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The run: an id, a head or a tail of it, or a name
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Only these, and what is below them; relative to the tree's root
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DiscardArgs {
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Stop it first, if it is alive
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Print nothing
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The runs: ids, heads or tails of them, or names
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<String>,
}

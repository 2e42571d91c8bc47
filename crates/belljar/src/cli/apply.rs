//! Arguments of `apply` and `discard`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar apply RUN                   everything, after one question\n  \
        belljar apply RUN src tests/a.rs    only these paths\n  \
        belljar apply -i RUN                file by file, hunk by hunk\n  \
        belljar apply --dry-run RUN\n  \
        belljar apply --quarantine RUN      move new control files out of an rw tree",
    after_help = "Either every path is applied, or none is. If your tree has changed since, text files are \
    merged; a conflict is shown, and nothing is changed (exit code 1). Files that execute on the host are held \
    back unless you name them. The run may still be alive."
)]
pub(crate) struct ApplyArgs {
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Ask about every file, and every hunk of a text file
    #[arg(short, long, conflicts_with_all = ["yes", "json"])]
    pub(crate) interactive: bool,
    /// Print what would be applied, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Resolve conflicts with the run's version
    #[arg(long)]
    pub(crate) theirs: bool,
    /// Move control files that the run created in its writable trees
    /// into quarantine/ of the run's directory, unless they were changed since
    #[arg(long, conflicts_with_all = ["interactive", "dry_run", "theirs", "paths"])]
    pub(crate) quarantine: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The run: its name, its id, or the start or end of its id
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Only these paths and everything below them, relative to the tree's root
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "The record of the run stays.")]
pub(crate) struct DiscardArgs {
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Stop the run first if it is alive
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

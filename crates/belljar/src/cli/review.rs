//! What looks at the changes of a run.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar diff RUN\n  \
        belljar diff -p RUN src\n  \
        belljar diff -p RUN | git apply --check",
    after_help = "Letters: A made, M changed, D removed, R renamed, T replaced by something of another kind, \
    m another mode. Works while the run is alive, too."
)]
pub(crate) struct DiffArgs {
    /// Print the changes line by line, as git does
    #[arg(short, long)]
    pub(crate) patch: bool,
    /// List what git keeps in a repository too: objects, references, logs; it is only counted otherwise
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Only names
    #[arg(long, conflicts_with_all = ["patch", "json"])]
    pub(crate) name_only: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "patch")]
    pub(crate) json: bool,
    /// Exit with 1 if there are changes
    #[arg(long)]
    pub(crate) exit_code: bool,
    /// The run: an id, a head or a tail of it, or a name
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Only these, and what is below them
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
}

//! Arguments of `diff`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar diff RUN\n  \
        belljar diff -p RUN src\n  \
        belljar diff -p RUN | git apply --check",
    after_help = "Letters: A added, M modified, D deleted, R renamed, T type changed, m mode changed. The run \
    may still be alive."
)]
pub(crate) struct DiffArgs {
    /// Print the changes as a patch, as git does
    #[arg(short, long)]
    pub(crate) patch: bool,
    /// Also list git's own data (objects, references, logs), which is otherwise only counted
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Print only names
    #[arg(long, conflicts_with_all = ["patch", "json"])]
    pub(crate) name_only: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "patch")]
    pub(crate) json: bool,
    /// Exit with 1 if there are changes
    #[arg(long)]
    pub(crate) exit_code: bool,
    /// The run: its name, its id, or the start or end of its id [default: the newest run]
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Only these paths and everything below them
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
}

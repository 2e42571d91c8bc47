//! Arguments of `setup`.

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
#[command(
    after_help = "Without root, or without --yes or a yes on the terminal, nothing is changed: \
        the\ncommands that would do it are printed. A second time there is nothing to do.\n\n\
        Examples:\n  \
        belljar setup                   what your user lacks, and the commands\n  \
        sudo belljar setup              do it for the user who called sudo\n  \
        belljar setup --user ann --yes  do it for ann, as root, without a question\n  \
        sudo belljar setup --undo       remove exactly what setup made\n  \
        belljar setup --print seccomp-profile > belljar-seccomp.json"
)]
pub(crate) struct SetupArgs {
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Remove what setup made, and nothing else; a file that was changed since
    /// is left and named. With --user, only what is that user's own: ids and
    /// control groups, not what holds for the whole machine
    #[arg(long)]
    pub(crate) undo: bool,
    /// The user, by name or number; without it, yourself, or who called sudo
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print a file that belljar needs elsewhere
    #[arg(long, value_name = "FILE", conflicts_with_all = ["yes", "undo", "user", "json"])]
    pub(crate) print: Option<PrintedFile>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PrintedFile {
    /// The AppArmor profile for this executable
    ApparmorProfile,
    /// The list of system calls for a container in which belljar is to run:
    /// docker run --security-opt seccomp=FILE
    SeccompProfile,
}

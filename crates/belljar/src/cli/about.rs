//! Arguments of the commands about the program itself: `version`, `completions` and `man`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
#[command(
    after_help = "Two programs that talk to each other must have the same build id. The commit is known if \
    BELLJAR_COMMIT was set during the build. The protocols are those with PID 1 (channel) and with clients \
    (control)."
)]
pub(crate) struct VersionArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Commands, flags, fixed values and paths are completed; run ids and names are not.\n\n\
        Examples:\n  \
        source <(belljar completions bash)      in ~/.bashrc\n  \
        belljar completions zsh > ~/.zfunc/_belljar     a directory of $fpath\n  \
        belljar completions fish > ~/.config/fish/completions/belljar.fish"
)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
        belljar man run | man -l -              read one page\n  \
        belljar man --dir ~/.local/share/man/man1       then: man belljar-run")]
pub(crate) struct ManArgs {
    /// The command whose page is printed; without it, the page of belljar
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    pub(crate) command: Vec<String>,
    /// Write the pages of all commands to this directory; replaces older pages
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

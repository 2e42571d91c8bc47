//! What can be said on the command line.

mod apply;
mod image;
pub(crate) mod init;
mod inside;
mod prove;
mod record;
mod resume;
mod review;
mod run;
mod runs;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use apply::{ApplyArgs, DiscardArgs};
pub(crate) use image::{BuildArgs, ImageArgs, ImageVerb};
pub(crate) use inside::{AttachArgs, CopyArgs, ExecArgs, ShellArgs};
pub(crate) use prove::ProveArgs;
pub(crate) use record::{EventsArgs, LogsArgs, VerifyArgs};
pub(crate) use resume::{ForkArgs, ResumeArgs, ResumeOriginArgs};
pub(crate) use review::DiffArgs;
pub(crate) use run::{RunArgs, StdioKind};
pub(crate) use runs::{
    PortArgs, PruneArgs, PsArgs, ReconcileArgs, RmArgs, ShowArgs, StopArgs, WaitArgs, WhyArgs,
};

/// Run a command sealed off: explicit mounts, no network, limits, and proof.
#[derive(Debug, Parser)]
#[command(
    name = "belljar",
    version,
    max_term_width = 80,
    after_help = "Examples:\n  \
        belljar run -- make test            this directory, and nothing else\n  \
        belljar run -v ~/data:/data -- ls /data     a read-only mount\n  \
        belljar run -m 2g --timeout 10m -- ./build.sh\n  \
        belljar run --dry-run -- true       the plan and what it promises\n  \
        belljar run --keep --name web       a sandbox that stays; then: belljar exec web -- ls\n  \
        belljar run --allow-host pypi.org -- pip download six    one way out\n  \
        belljar run -d -- ./long.sh         in the background; then: belljar logs -f RUN\n  \
        belljar run --workspace .:overlay -- ./agent.sh     then: belljar diff RUN\n  \
        belljar init                        a manifest, for a command or an agent\n  \
        belljar doctor                      what this machine can hold"
)]
pub(crate) struct Arguments {
    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) color: Color,

    /// Log to stderr what belljar does; -vv for more. Before the command only:
    /// "run -v" is a volume. BELLJAR_LOG=LEVEL does the same
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command in a fresh sandbox, with its own output and exit code
    Run(Box<RunArgs>),
    /// Go on with an agent's run from its last checkpoint, or an earlier one
    Resume(ResumeArgs),
    /// Begin a new run from a checkpoint of another
    Fork(ForkArgs),
    /// Run one more command in a sandbox that is there
    Exec(ExecArgs),
    /// Open a shell in a sandbox
    Shell(ShellArgs),
    /// Follow the command of a run that was detached
    Attach(AttachArgs),
    /// List runs
    Ps(PsArgs),
    /// Print what a run's commands put out
    Logs(LogsArgs),
    /// Tell about one run: what ran, how it ended, what held
    Show(ShowArgs),
    /// Explain what a run could not reach, and what would let it
    Why(WhyArgs),
    /// Print where the host reaches a run's ports
    Port(PortArgs),
    /// Wait until runs are over, and exit with their code
    Wait(WaitArgs),
    /// End runs, with everything in them
    Stop(StopArgs),
    /// Copy files into a sandbox, or out of it
    Cp(CopyArgs),
    /// Show what a run changed in its overlay trees
    Diff(DiffArgs),
    /// Take over what a run changed in overlay trees: all of it, or paths, or hunks
    Apply(ApplyArgs),
    /// Throw away what a run changed in overlay trees
    Discard(DiscardArgs),
    /// Remove runs that are over, with their records
    Rm(RmArgs),
    /// Remove old runs
    Prune(PruneArgs),
    /// Print the events of a run's record, one JSON object a line
    Events(EventsArgs),
    /// Check that records are what was written
    Verify(VerifyArgs),
    /// Finish what dead supervisors left, and take leftovers away
    Reconcile(ReconcileArgs),
    /// Find out, by trying, what this machine can hold
    Doctor(DoctorArgs),
    /// Attack the boundary with the whole catalogue, and say what held
    Prove(ProveArgs),
    /// List the backends and whether they can be used
    Backends(BackendsArgs),
    /// Show the settings, or the manifest's schema
    Config(ConfigArgs),
    /// Build the images that engines start from
    Image(ImageArgs),
    /// Write a manifest for this directory, and trust it
    Init(Box<init::InitArgs>),
    /// Make a numbered folder for one piece of work
    New(init::NewArgs),
    /// Show what a manifest or a Dockerfile asks for, and trust it as it is now
    Trust(TrustArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write what a bug report needs to a new tar file; read it before you send it
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub(crate) bundle: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct BackendsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) what: ConfigVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// The settings that would be in force here
    Show {
        /// Say which layer each value came from
        #[arg(long)]
        origin: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Use this manifest
        #[arg(long, value_name = "FILE")]
        manifest: Option<PathBuf>,
        /// Use no manifest and no configuration file
        #[arg(long, conflicts_with = "manifest")]
        no_config: bool,
    },
    /// The JSON schema of belljar.toml
    Schema,
}

#[derive(Debug, Args)]
pub(crate) struct TrustArgs {
    /// The manifest, or the directory it is in; a Dockerfile; or a file of
    /// variables, a prompt or a configuration file
    #[arg(default_value = ".")]
    pub(crate) path: PathBuf,
    /// Take the directory for your own again although a run could write it;
    /// the manifest in it is not trusted by that
    #[arg(long, value_name = "DIR", conflicts_with_all = ["path", "context", "show", "forget"])]
    pub(crate) tree: Option<PathBuf>,
    /// Of a Dockerfile: the directory that it is built with, if that is not its own
    #[arg(long, value_name = "DIR")]
    pub(crate) context: Option<PathBuf>,
    /// Only show what it asks for
    #[arg(long)]
    pub(crate) show: bool,
    /// Trust it no more
    #[arg(long, conflicts_with = "show")]
    pub(crate) forget: bool,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

impl Color {
    /// `auto` looks at the terminal and at `NO_COLOR`.
    pub(crate) fn apply(self) {
        let choice = match self {
            Self::Auto => return,
            Self::Always => anstream::ColorChoice::Always,
            Self::Never => anstream::ColorChoice::Never,
        };
        choice.write_global();
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn too_wide(command: &mut clap::Command, found: &mut Vec<String>) {
        let name = command.get_name().to_owned();
        for help in [command.render_help(), command.render_long_help()] {
            let lines = help.to_string();
            let wide = lines.lines().filter(|line| line.chars().count() > 80);
            found.extend(wide.map(|line| format!("{name}: {line}")));
        }
        command.get_subcommands_mut().for_each(|command| too_wide(command, found));
    }

    #[test]
    fn help_fits_a_terminal_of_80_columns() {
        let mut command = Arguments::command();
        command.build();
        let mut found = Vec::new();
        too_wide(&mut command, &mut found);
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}

//! The command line: verbs, flags and their help.

mod about;
mod apply;
mod frequent;
mod groups;
mod image;
pub(crate) mod init;
mod inside;
#[cfg(test)]
mod named_commands;
mod prove;
mod record;
#[cfg(test)]
mod reference;
mod resume;
mod review;
mod run;
mod runs;
mod settings;
mod setup;
pub(crate) mod usage;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use about::{CompletionsArgs, ManArgs, Shell, VersionArgs};
pub(crate) use apply::{ApplyArgs, DiscardArgs};
#[cfg(test)]
pub(crate) use groups::GROUPS;
pub(crate) use groups::{command, parse};
pub(crate) use image::{
    BuildArgs, ExportArgs, ImageArgs, ImageListArgs, ImagePruneArgs, ImageRmArgs, ImageVerb,
    ImportArgs, InspectArgs, LoadArgs, PullArgs,
};
pub(crate) use inside::{AttachArgs, CopyArgs, ExecArgs, ShellArgs};
pub(crate) use prove::ProveArgs;
pub(crate) use record::{EventsArgs, LogsArgs, VerifyArgs};
pub(crate) use resume::{ForkArgs, ResumeArgs, ResumeOriginArgs};
pub(crate) use review::DiffArgs;
pub(crate) use run::{RunArgs, StdioKind};
pub(crate) use runs::{
    CheckpointArgs, NetworkArgs, PortArgs, PruneArgs, PsArgs, ReconcileArgs, RenewArgs, RmArgs,
    ShowArgs, StopArgs, Ttl, WaitArgs, WhyArgs,
};
pub(crate) use setup::{PrintedFile, SetupArgs};

/// Run commands and agents in a sandbox: explicit mounts, no network, limits, and proof.
#[derive(Debug, Parser)]
#[command(
    name = "belljar",
    version,
    max_term_width = 80,
    after_help = "Examples:\n  \
        belljar run make test               with this directory, and nothing else\n  \
        belljar run -v ~/data:/data ls /data    with a read-only mount\n  \
        belljar run --timeout 10m ./build.sh    with a limit on its time\n  \
        belljar run --dry-run true          print the plan and its guarantees\n  \
        belljar run --keep --name web       then: belljar exec web ls\n  \
        belljar run --allow-host pypi.org pip download six   allow one host\n  \
        belljar run -d ./long.sh            then: belljar logs -f\n  \
        belljar run --workspace .:overlay ./agent.sh    then: belljar diff\n  \
        belljar init                        write a manifest for a command or an agent\n  \
        belljar doctor                      check which guarantees work here"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) display: DisplayArgs,

    /// Log to stderr what belljar does; -vv for more. Before the command only:
    /// "run -v" is a volume. BELLJAR_LOG=LEVEL does the same
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Of every command.
#[derive(Debug, Args)]
pub(crate) struct DisplayArgs {
    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) color: Color,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command or an agent in a new sandbox
    Run(Box<RunArgs>),
    /// Continue an agent's run from a checkpoint
    Resume(ResumeArgs),
    /// Start a new run from another run's checkpoint
    Fork(ForkArgs),
    /// Run a command in an existing sandbox
    Exec(ExecArgs),
    /// Open a shell in a sandbox
    Shell(ShellArgs),
    /// Attach to the command of a detached run
    Attach(AttachArgs),
    /// List runs
    #[command(aliases = ["ls", "list"])]
    Ps(PsArgs),
    /// Print the output of a run's commands
    Logs(LogsArgs),
    #[command(alias = "inspect")]
    /// Show one run: its settings, its result and its guarantees
    Show(ShowArgs),
    /// Explain denied connections and system calls, and how to allow them
    Why(WhyArgs),
    /// Show what a live run may reach, and change it
    Network(NetworkArgs),
    /// Print the host addresses of a run's published ports
    Port(PortArgs),
    /// Wait until runs have ended, and exit with their code
    Wait(WaitArgs),
    /// Stop runs and everything in them
    Stop(StopArgs),
    /// Save the current state of a kept sandbox, to fork from
    Checkpoint(CheckpointArgs),
    /// Give a kept sandbox another time to live
    Renew(RenewArgs),
    /// Copy files into or out of a sandbox
    Cp(CopyArgs),
    /// Show a run's changes to its overlay trees
    Diff(DiffArgs),
    /// Apply a run's changes to your files, all or some of them
    Apply(ApplyArgs),
    /// Discard a run's changes
    Discard(DiscardArgs),
    /// Remove ended runs and their records
    Rm(RmArgs),
    /// Remove old runs
    Prune(PruneArgs),
    /// Print the events of a run's record, one JSON object per line
    Events(EventsArgs),
    /// Check that records are complete and unchanged
    Verify(VerifyArgs),
    /// Close the records of dead supervisors, remove their leftovers
    Reconcile(ReconcileArgs),
    /// Test which guarantees this machine can enforce
    Doctor(DoctorArgs),
    /// Show what is missing on this machine for your user; as root, add it
    Setup(SetupArgs),
    /// Attack the sandbox with a catalogue, and report what held
    Prove(ProveArgs),
    /// List the backends and whether they are available
    Backends(BackendsArgs),
    /// Show the settings, or the manifest's schema
    Config(ConfigArgs),
    /// Load, pull, list and remove images; build them with an engine
    Image(ImageArgs),
    /// Write a manifest for this directory, and trust it
    Init(Box<init::InitArgs>),
    /// Create a numbered folder for one task
    New(init::NewArgs),
    /// Show what a manifest or a Dockerfile asks for, and trust it
    Trust(TrustArgs),
    /// Print the version and build of this program
    Version(VersionArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print a manual page, or write all of them to a directory
    Man(ManArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Starts a canary in each backend, at most 5 seconds each. The canary of an engine needs no image \
    of yours: one with an empty directory, localhost/belljar/canary-1, is created in it once. Exit code 0 if a \
    run that names no backend would find one, else 1."
)]
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
    /// Print the settings that apply in this directory
    Show {
        /// Print the source of each value
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
    /// Print the JSON schema of belljar.toml
    Schema,
}

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar trust                           the manifest of this directory\n  \
        belljar trust --show\n  \
        belljar trust --forget belljar.toml\n  \
        belljar trust --tree .                  after you have checked it",
    after_help = "Shows what the file asks for beyond the defaults and your own configuration, and trusts its \
    content as it is now. Of a Dockerfile the .dockerignore in its context is trusted too. --tree states that \
    you have checked a directory that a run could write: links in it are followed again, and files in it count \
    as yours; it is refused while a live run can write there."
)]
pub(crate) struct TrustArgs {
    /// The manifest or its directory; a Dockerfile; or a file with variables,
    /// a prompt or a configuration
    #[arg(default_value = ".")]
    pub(crate) path: PathBuf,
    /// Trust the directory again after a run could write to it; this does not
    /// trust the manifest in it
    #[arg(long, value_name = "DIR", conflicts_with_all = ["path", "context", "show", "forget"])]
    pub(crate) tree: Option<PathBuf>,
    /// The build context of a Dockerfile, if it is not the Dockerfile's directory
    #[arg(long, value_name = "DIR")]
    pub(crate) context: Option<PathBuf>,
    /// Only show what the file asks for
    #[arg(long)]
    pub(crate) show: bool,
    /// Revoke trust
    #[arg(long, conflicts_with = "show")]
    pub(crate) forget: bool,
    /// Print JSON: the path, whether it is trusted now, and what it asks for
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

impl Color {
    /// `auto` checks for a terminal and for `NO_COLOR`.
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
        let mut command = command();
        command.build();
        let mut found = Vec::new();
        too_wide(&mut command, &mut found);
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}

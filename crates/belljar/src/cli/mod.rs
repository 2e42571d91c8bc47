//! The command line: verbs, flags and their help.

mod about;
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
mod settings;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use about::{CompletionsArgs, ManArgs, Shell, VersionArgs};
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

/// Run commands and agents in a sandbox: explicit mounts, no network, limits, and proof.
#[derive(Debug, Parser)]
#[command(
    name = "belljar",
    version,
    max_term_width = 80,
    after_help = "Examples:\n  \
        belljar run -- make test            with this directory, and nothing else\n  \
        belljar run -v ~/data:/data -- ls /data     with a read-only mount\n  \
        belljar run -m 2g --timeout 10m -- ./build.sh\n  \
        belljar run --dry-run -- true       print the plan and its guarantees\n  \
        belljar run --keep --name web       then: belljar exec web -- ls\n  \
        belljar run --allow-host pypi.org -- pip download six    allow one host\n  \
        belljar run -d -- ./long.sh         then: belljar logs -f RUN\n  \
        belljar run --workspace .:overlay -- ./agent.sh     then: belljar diff RUN\n  \
        belljar init                        write a manifest for a command or an agent\n  \
        belljar doctor                      check which guarantees work here"
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
    /// Run a command or an agent in a new sandbox
    Run(Box<RunArgs>),
    /// Continue an agent's run from its last checkpoint, or an earlier one
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
    Ps(PsArgs),
    /// Print the output of a run's commands
    Logs(LogsArgs),
    /// Show one run: its settings, its result and its guarantees
    Show(ShowArgs),
    /// Explain which hosts a run could not reach, and how to allow them
    Why(WhyArgs),
    /// Print the host addresses of a run's published ports
    Port(PortArgs),
    /// Wait until runs have ended, and exit with their code
    Wait(WaitArgs),
    /// Stop runs and everything in them
    Stop(StopArgs),
    /// Copy files into or out of a sandbox
    Cp(CopyArgs),
    /// Show a run's changes to its overlay trees
    Diff(DiffArgs),
    /// Apply a run's changes to your files: all, some paths, or some hunks
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
    /// Close the records of dead supervisors, and remove their leftovers
    Reconcile(ReconcileArgs),
    /// Test which guarantees this machine can enforce
    Doctor(DoctorArgs),
    /// Attack the sandbox with the whole catalogue, and report what held
    Prove(ProveArgs),
    /// List the backends and whether they are available
    Backends(BackendsArgs),
    /// Show the settings, or the manifest's schema
    Config(ConfigArgs),
    /// Build images for engines
    Image(ImageArgs),
    /// Write a manifest for this directory, and trust it
    Init(Box<init::InitArgs>),
    /// Create a numbered folder for one task
    New(init::NewArgs),
    /// Show what a manifest or a Dockerfile asks for, and trust its current content
    Trust(TrustArgs),
    /// Print the version and build of this program
    Version(VersionArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print a manual page, or write all of them to a directory
    Man(ManArgs),
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
    const COMMAND_LINE: &str =
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/command-line.md"));

    /// Whether the flag is in the text, and not only as the start of another one.
    fn mentions(text: &str, flag: &str) -> bool {
        let ends = |rest: &str| {
            !rest.starts_with(|next: char| next == '-' || next.is_ascii_alphanumeric())
        };
        text.split(flag).skip(1).any(ends)
    }

    /// The flags of `command` and of the commands below it that `docs/command-line.md` does not have in the command's
    /// section. `path` is what is written before the flags.
    fn undocumented(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        let sections = COMMAND_LINE.split("\n## ").filter(|section| {
            let heading = section.lines().next().unwrap_or_default();
            heading.split('`').any(|part| format!("{part} ").starts_with(&format!("{path} ")))
        });
        let text: String = sections.collect();
        let visible = command.get_arguments().filter(|arg| !arg.is_hide_set());
        for arg in visible.filter(|arg| !arg.is_global_set()) {
            let Some(long) = arg.get_long().filter(|long| *long != "help") else { continue };
            let short = arg.get_short().map(|short| format!("-{short}"));
            if !mentions(&text, &format!("--{long}"))
                && !short.is_some_and(|short| mentions(&text, &short))
            {
                found.push(format!("{path} --{long}"));
            }
        }
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            undocumented(below, &format!("{path} {}", below.get_name()), found);
        }
    }

    #[test]
    fn every_flag_is_documented_with_its_command() {
        let mut command = Arguments::command();
        command.build();
        let mut found = Vec::new();
        for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
            undocumented(verb, &format!("belljar {}", verb.get_name()), &mut found);
        }
        assert!(found.is_empty(), "not in docs/command-line.md: {}", found.join(", "));
    }

    #[test]
    fn a_setting_is_documented_with_its_key() {
        for flag in belljar::config::FLAGS {
            let row = |line: &&str| line.starts_with('|') && mentions(line, flag.name);
            let key = flag.key();
            let section = key.rsplit_once('.').map_or(key.as_str(), |(section, _)| section);
            let rows: Vec<&str> = COMMAND_LINE.lines().filter(row).collect();
            let has_key = |row: &&str| row.contains(&format!("`{section}")) || row.contains(&key);
            assert!(rows.iter().any(has_key), "{} ({key}): {rows:?}", flag.name);
        }
    }
}

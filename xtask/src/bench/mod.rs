//! `cargo xtask bench`: what Belljar costs, beside what its peers cost on the same machine in the same minutes.
//! Each command is a module; what they share is here and in [`measurements`].

mod agent_loop;
mod conditions;
mod containers;
mod density;
mod egress;
mod exec;
mod identity;
mod kept_run;
mod measurements;
mod memory;
mod outcome;
mod record;
mod rounds;
mod start;
mod static_program;
mod workspace;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use belljar::spec::env;

use self::identity::Identity;
use crate::artifacts::{self, Measuring};
use crate::command;
use crate::engines::{Engine, Engines};
use crate::test::TestUser;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Bench {
    /// How long a start takes, beside the peers that this machine has
    Start(start::StartOptions),
    /// A command in a sandbox that runs already, and copies in and out, beside docker's
    Exec(exec::ExecOptions),
    /// Many runs: at once, kept, and recorded in one home
    Density(density::DensityOptions),
    /// What the record costs: output, events, verification
    Record(record::RecordOptions),
    /// Containers through Belljar, beside the engines' own commands
    Engines(containers::ContainersOptions),
    /// Network access through the proxy: a download, small requests, many connections, beside peers
    Egress(egress::EgressOptions),
    /// Overlay trees: their start, and looking at changes, beside git and diff
    Workspace(workspace::WorkspaceOptions),
    /// An iteration besides the agent's own, resume, and reading agents' output
    Loop(agent_loop::LoopOptions),
}

impl Bench {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Start(options) => start::main(&options),
            Self::Exec(options) => exec::main(&options),
            Self::Density(options) => density::main(&options),
            Self::Record(options) => record::main(&options),
            Self::Engines(options) => containers::main(&options),
            Self::Egress(options) => egress::main(&options),
            Self::Workspace(options) => workspace::main(&options),
            Self::Loop(options) => agent_loop::main(&options),
        }
    }
}

/// The options that every benchmark has.
#[derive(Debug, clap::Args)]
struct CommonOptions {
    /// Do less of everything: numbers for a first look
    #[arg(long)]
    quick: bool,
    /// Also write the result here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// For a benchmark that calls the library in its own process, which has to be an optimised build.
#[derive(Debug, clap::Args)]
struct Measurer {
    /// The executable to measure; with it, this process is the one that measures.
    #[arg(long, hide = true)]
    belljar: Option<PathBuf>,
}

impl CommonOptions {
    fn sizes<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// Runs the same command in an optimised build of this program.
fn run_optimised(built: &Measuring, variables: &[(String, String)]) -> Result<ExitCode> {
    let mut measuring = Command::new(&built.xtask);
    measuring.args(std::env::args_os().skip(1)).arg("--belljar").arg(&built.belljar);
    measuring.envs(variables.iter().cloned());
    let status = measuring
        .status()
        .with_context(|| format!("cannot start `{}`", command::line(&measuring)))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The same with private engines around it, as the tests have them. The library finds an engine by the variables of its
/// process, so they are there from its start. Without root there are none.
fn run_optimised_with_engines(wanted: &[Engine]) -> Result<ExitCode> {
    let built = artifacts::build_measuring()?; // before an engine has to wait for it
    let engines = match Engines::of_this_machine(wanted) {
        Ok(engines) => Some(engines),
        Err(error) => {
            eprintln!("no containers: {error:#}");
            None
        }
    };
    let mut variables = engines.as_ref().map(Engines::environment).unwrap_or_default();
    let addresses =
        [(env::TEST_DOCKER, containers::DOCKER_HOST), (env::TEST_PODMAN, containers::PODMAN_HOST)];
    for (variable, name) in addresses {
        let address = variables.iter().find(|(one, _)| one == variable);
        let address = address.map(|(_, value)| (name.to_owned(), value.clone()));
        variables.extend(address);
    }
    let measured = run_optimised(&built, &variables);
    if let Some(engines) = engines {
        engines.end()?;
    }
    measured
}

/// Ourselves, and the ordinary user that the tests made, where there is one.
fn identities(scratch: &Path) -> Result<Vec<Identity>> {
    let mut identities = vec![Identity::ourselves(scratch)?];
    if crate::host::is_root() {
        match TestUser::find()? {
            Some(user) => identities.push(Identity::other(scratch, &user)?),
            None => eprintln!("no rootless rows: `cargo xtask test` makes the user for them"),
        }
    }
    Ok(identities)
}

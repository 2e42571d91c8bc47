//! Container engines for the tests and for measuring: a Docker with gVisor, a Podman of root's and one
//! of an ordinary user's. All of them are private: nothing of the machine's own engines is used,
//! changed or stopped.
//!
//! They belong to a process of their own, the keeper, which ends them when its standard input ends:
//! when this process has let go of it, or is gone, whatever ended it.

mod api;
mod daemon;
mod docker;
mod groups;
mod image;
mod keeper;
mod needs;
pub(crate) mod podman;
mod step;
mod subids;
mod sweep;
mod with;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

pub(crate) use self::keeper::{KEEPER, keep};
pub(crate) use self::step::step;
pub(crate) use self::with::{EnginesOptions, main};
use crate::command::{self, Ended};
use crate::{guest, host};

/// To take everything away, containers included.
const END_LIMIT: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Docker,
    Podman,
    PodmanRootless,
    Runsc,
}

impl Engine {
    /// Docker before gVisor, which is a runtime of it.
    pub(crate) const ALL: [Self; 4] =
        [Self::Docker, Self::Podman, Self::PodmanRootless, Self::Runsc];

    /// As `BELLJAR_MUST_WORK` has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::PodmanRootless => "podman-rootless",
            Self::Runsc => "runsc",
        }
    }
}

/// What a test gets to know an engine by: names and values of variables.
pub(crate) type Variables = Vec<(String, String)>;

/// The engines that run, and why the others do not. Ended when dropped.
pub(crate) struct Engines {
    keeper: Child,
    /// Its end is the keeper's.
    hold: Option<ChildStdin>,
    reports: Vec<(Engine, Result<Variables, String>)>,
}

impl Engines {
    /// The ones that are installed already; the others are named. Needs root.
    pub(crate) fn of_this_machine(wanted: &[Engine]) -> Result<Self> {
        ensure!(host::is_root(), "private engines need root");
        let is_there = |engine: &Engine| match needs::look(*engine) {
            Ok(()) => true,
            Err(why) => {
                eprintln!("no {}: {why}; `cargo xtask test` installs it", engine.name());
                false
            }
        };
        let there: Vec<Engine> = wanted.iter().copied().filter(is_there).collect();
        let engines = Self::start(&there)?;
        for (engine, why) in engines.missing() {
            eprintln!("no {}: {why}", engine.name());
        }
        Ok(engines)
    }

    /// Needs root. What is installed is used, and nothing else.
    pub(crate) fn start(wanted: &[Engine]) -> Result<Self> {
        let busybox = guest::busybox(&guest::directory()?)?;
        // Not by its path: a build that runs meanwhile may put another file there.
        let mut command = Command::new("/proc/self/exe");
        command.arg(KEEPER).arg(busybox).args(wanted.iter().map(|engine| engine.name()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut keeper = command::spawn(&mut command)?;
        let hold = keeper.stdin.take();
        let mut output = BufReader::new(keeper.stdout.take().context("the keeper has no stdout")?);
        let mut engines = Self { keeper, hold, reports: Vec::new() };
        let mut line = String::new();
        output.read_line(&mut line).context("cannot read the report of the keeper")?;
        ensure!(!line.is_empty(), "the keeper of the engines ended early");
        engines.reports = keeper::read_report(&line, wanted)?;
        Ok(engines)
    }

    /// Of all engines that run.
    pub(crate) fn environment(&self) -> Variables {
        self.reports
            .iter()
            .filter_map(|(_, report)| report.as_ref().ok())
            .flatten()
            .cloned()
            .collect()
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = Engine> {
        self.reports.iter().filter(|(_, report)| report.is_ok()).map(|(engine, _)| *engine)
    }

    /// Those that were wanted and do not run, with the reason.
    pub(crate) fn missing(&self) -> impl Iterator<Item = (Engine, &str)> {
        self.reports
            .iter()
            .filter_map(|(engine, report)| Some((*engine, report.as_ref().err()?.as_str())))
    }

    /// Containers of belljar's that are still there: when no run is, none should be.
    pub(crate) fn left(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for (name, value) in self.environment() {
            let Some(socket) = value.strip_prefix("unix://").map(PathBuf::from) else { continue };
            for container in api::containers(&socket, api::Whose::Belljars)? {
                left.push(format!("{name}: {container}"));
            }
        }
        Ok(left)
    }

    /// Ends them and takes everything of theirs away.
    pub(crate) fn end(mut self) -> Result<()> {
        self.let_go()
    }

    fn let_go(&mut self) -> Result<()> {
        if self.hold.take().is_none() {
            return Ok(());
        }
        match command::wait(&mut self.keeper, END_LIMIT)? {
            Ended::Exited(status) if status.success() => Ok(()),
            Ended::Exited(status) => bail!("the keeper of the engines ended with {status}"),
            Ended::TimedOut => {
                bail!("the engines were not stopped within {} s", END_LIMIT.as_secs())
            }
        }
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        if let Err(error) = self.let_go() {
            eprintln!("warning: {error:#}");
        }
    }
}

/// As the engines' own variables and `BELLJAR_TEST_*` have it.
fn endpoint(socket: &Path) -> String {
    format!("unix://{}", socket.display())
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

//! `cargo xtask bench engines`: what a container costs through belljar, beside what the same engine's own
//! command costs. The engines are private ones, as the tests have them.

pub(super) mod arm;
mod at_once;
mod exec;
pub(super) mod kept;
mod start;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, ensure};

use self::arm::EngineArm;
pub(super) use self::arm::{DOCKER_HOST, PODMAN_HOST};
use super::identity::Identity;
use super::measurements::Measurements;
use super::outcome::Part;
use super::{CommonOptions, Measurer, run_optimised_with_engines};
use crate::engines::Engine;
use crate::scratch::Scratch;

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ContainersSizes {
    starts: usize,
    execs: usize,
    /// Containers at once, and how often.
    crowd: usize,
    crowds: usize,
}

const FULL: ContainersSizes = ContainersSizes { starts: 60, execs: 200, crowd: 20, crowds: 5 };
const QUICK: ContainersSizes = ContainersSizes { starts: 10, execs: 20, crowd: 20, crowds: 1 };

type ContainersMeasure = fn(&ContainersBench, &EngineArm) -> Result<Part>;

/// In the order in which they run.
const PARTS: [(&str, ContainersMeasure); 3] =
    [("start", start::measure), ("exec", exec::measure), ("at once", at_once::measure)];

/// What every part has.
struct ContainersBench {
    belljar: PathBuf,
    identity: Identity,
    sizes: ContainersSizes,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ContainersOptions {
    #[command(flatten)]
    common: CommonOptions,
    #[command(flatten)]
    measurer: Measurer,
}

pub(crate) fn main(options: &ContainersOptions) -> Result<ExitCode> {
    match &options.measurer.belljar {
        Some(belljar) => measure(options, belljar),
        None => run_optimised_with_engines(&[Engine::Docker, Engine::Podman]),
    }
}

fn measure(options: &ContainersOptions, belljar: &Path) -> Result<ExitCode> {
    let scratch = Scratch::on_disk("bench-engines")?;
    let belljar = scratch.copy_executable(belljar)?;
    let identity = Identity::ourselves(scratch.path())?;
    let sizes = options.common.sizes(FULL, QUICK);
    let bench = ContainersBench { belljar, identity, sizes };
    let arms = arm::all()?;
    ensure!(!arms.is_empty(), "no engine runs, so there is nothing to compare with");
    let title = "containers through belljar and without it";
    let mut measurements = Measurements::begin(title, options.common.json.clone());
    for arm in &arms {
        for (name, measure) in PARTS {
            measurements.part(name, || measure(&bench, arm));
        }
    }
    measurements.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsed;

    #[test]
    fn options_that_are_not_there_are_refused() {
        let sizes = |text| {
            parsed::<ContainersOptions>(text).map(|options| options.common.sizes(FULL, QUICK))
        };
        assert_eq!(sizes("").unwrap(), FULL);
        assert_eq!(sizes("--quick --json x").unwrap(), QUICK);
        assert!(sizes("--json").is_err());
        assert!(sizes("--fast").is_err());
    }
}

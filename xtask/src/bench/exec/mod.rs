//! `cargo xtask bench exec`: what a command in a sandbox that runs already costs, and copies in and out, beside the
//! same through docker.

mod command;
mod copy;
mod peers;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::builder::PossibleValuesParser;

use super::containers::arm::{self, EngineArm};
use super::identity::Identity;
use super::measurements::{self, Measurements};
use super::outcome::Part;
use super::{CommonOptions, Measurer, run_optimised_with_engines};
use crate::engines::Engine;
use crate::scratch::Scratch;

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ExecSizes {
    execs: usize,
    copies: usize,
    copied_bytes: usize,
}

const FULL: ExecSizes = ExecSizes { execs: 200, copies: 30, copied_bytes: 50 << 20 };
const QUICK: ExecSizes = ExecSizes { execs: 10, copies: 3, copied_bytes: 50 << 20 };

type ExecMeasure = fn(&ExecBench) -> Result<Part>;

/// In the order in which they run.
const PARTS: [(&str, ExecMeasure); 2] = [("exec", command::measure), ("cp", copy::measure)];

/// What every part has.
struct ExecBench {
    belljar: PathBuf,
    scratch: Scratch,
    identity: Identity,
    /// The private engines that run.
    engines: Vec<EngineArm>,
    sizes: ExecSizes,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExecOptions {
    #[command(flatten)]
    common: CommonOptions,
    #[command(flatten)]
    measurer: Measurer,
    /// Only these parts
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    #[arg(value_parser = PossibleValuesParser::new(measurements::names(&PARTS)))]
    only: Vec<String>,
}

pub(crate) fn main(options: &ExecOptions) -> Result<ExitCode> {
    match &options.measurer.belljar {
        Some(belljar) => measure(options, belljar),
        None => run_optimised_with_engines(&[Engine::Docker, Engine::Podman]),
    }
}

fn measure(options: &ExecOptions, belljar: &Path) -> Result<ExitCode> {
    let scratch = Scratch::on_disk("bench-exec")?;
    let belljar = scratch.copy_executable(belljar)?;
    let identity = Identity::ourselves(scratch.path())?;
    let sizes = options.common.sizes(FULL, QUICK);
    let bench = ExecBench { belljar, scratch, identity, engines: arm::all()?, sizes };
    let title = "commands and copies in a sandbox that runs";
    let mut measurements = Measurements::begin(title, options.common.json.clone());
    measurements.parts(&PARTS, &options.only, |measure| measure(&bench));
    measurements.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsed;

    #[test]
    fn a_part_that_is_not_there_is_refused() {
        let options = parsed::<ExecOptions>("--quick --only cp").unwrap();
        assert_eq!(options.common.sizes(FULL, QUICK), QUICK);
        assert_eq!(options.only, ["cp"]);
        assert!(parsed::<ExecOptions>("--only copy").is_err());
    }
}

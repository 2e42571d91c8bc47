//! `cargo xtask bench start`: what a start costs, beside what peers and the bare kernel calls cost
//! on the same machine in the same minutes. Ratios, since milliseconds are a machine's own; and counts,
//! which are the same on a busy machine.

pub(crate) mod cases;
mod counts;
mod executable;
mod guest;
mod phases;
mod times;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::builder::RangedU64ValueParser;

use super::identity::Identity;
use super::measurements::Measurements;
use super::outcome::Part;
use super::rounds::Rounds;
use super::{CommonOptions, Measurer, identities};
use crate::artifacts::{self, Profile};
use crate::scratch::Scratch;

/// The fewest starts that the targets are judged by.
const MIN_ROUNDS: u64 = 100;
const QUICK_ROUNDS: usize = 10;

#[derive(Debug, clap::Args)]
pub(crate) struct StartOptions {
    #[command(flatten)]
    common: CommonOptions,
    #[command(flatten)]
    measurer: Measurer,
    /// Starts of each kind, at least 100
    #[arg(long, value_name = "N", default_value_t = MIN_ROUNDS as usize)]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(MIN_ROUNDS..))]
    #[arg(conflicts_with = "quick")]
    rounds: usize,
    /// Also build the executable in an empty target directory, and take the time
    #[arg(long)]
    first_build: bool,
    /// Only the times, in the virtual machine with a stock kernel and cgroup v2
    #[arg(long, conflicts_with = "first_build")]
    guest: bool,
}

impl StartOptions {
    fn rounds(&self) -> Rounds {
        Rounds::with_pauses(self.common.sizes(self.rounds, QUICK_ROUNDS))
    }
}

/// What every part has.
struct StartBench {
    belljar: PathBuf,
    scratch: Scratch,
    identities: Vec<Identity>,
    rounds: Rounds,
}

type StartMeasure = fn(&StartBench) -> Result<Part>;

/// In the order in which they run.
const PARTS: [(&str, StartMeasure); 4] = [
    ("times", times::measure),
    ("counts", counts::measure),
    ("phases", phases::measure),
    ("executable", executable::measure),
];

/// Of these, what the guest has programs for.
const PARTS_OF_GUEST: [(&str, StartMeasure); 1] = [("times", times::measure)];

pub(crate) fn main(options: &StartOptions) -> Result<ExitCode> {
    match &options.measurer.belljar {
        Some(belljar) => measure(options, belljar, &PARTS_OF_GUEST),
        None if options.guest => guest::run(options.rounds().count, options.common.json.as_deref()),
        None => measure(options, &artifacts::build_belljar(Profile::Release)?, &PARTS),
    }
}

fn measure(
    options: &StartOptions,
    built: &Path,
    parts: &[(&'static str, StartMeasure)],
) -> Result<ExitCode> {
    let scratch = Scratch::on_disk("bench-start")?;
    let belljar = scratch.copy_executable(built)?;
    let identities = identities(scratch.path())?;
    let bench = StartBench { belljar, scratch, identities, rounds: options.rounds() };
    let mut measurements = Measurements::begin("the cost of a start", options.common.json.clone());
    measurements.parts(parts, &[], |measure| measure(&bench));
    if options.first_build {
        measurements.part("first build", || executable::first_build(&bench));
    }
    measurements.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsed;

    #[test]
    fn too_few_rounds_are_refused() {
        let rounds = |text| parsed::<StartOptions>(text).map(|options| options.rounds().count);
        assert_eq!(rounds("").unwrap(), 100);
        assert_eq!(rounds("--rounds 150 --first-build").unwrap(), 150);
        assert_eq!(rounds("--quick").unwrap(), QUICK_ROUNDS);
        assert!(rounds("--rounds 10").is_err());
        assert!(rounds("--rounds 150 --quick").is_err());
        assert!(parsed::<StartOptions>("--guest --rounds 120").unwrap().guest);
        assert!(rounds("--guest --first-build").is_err());
    }
}

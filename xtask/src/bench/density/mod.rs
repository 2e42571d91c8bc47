//! `cargo xtask bench density`: what many runs cost: at once, kept side by side, and recorded in one home.

mod at_once;
mod kept;
mod left_behind;
mod memory;
mod overlays;
mod records;
mod replay;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use belljar::home::Home;
use clap::builder::PossibleValuesParser;

use super::identity::Identity;
use super::measurements::{self, Measurements};
use super::outcome::Part;
use super::rounds::Case;
use super::start::cases::run_words;
use super::{CommonOptions, Measurer, run_optimised};
use crate::artifacts;
use crate::scratch::Scratch;

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DensitySizes {
    /// Short runs, and how often they are all started.
    runs: usize,
    run_rounds: usize,
    /// Kept runs whose memory is read, without a proxy and with one.
    idle: usize,
    with_proxy: usize,
    /// Kept runs at once.
    kept: usize,
    /// Recorded runs in one home, and those among them whose supervisor died.
    records: u64,
    lost: u64,
    overlays: usize,
    /// Starts in a home with records or overlays, and in a new one.
    starts: usize,
}

const FULL: DensitySizes = DensitySizes {
    runs: 800,
    run_rounds: 3,
    idle: 60,
    with_proxy: 20,
    kept: 500,
    records: 10_000,
    lost: 50,
    overlays: 100,
    starts: 100,
};
const QUICK: DensitySizes = DensitySizes {
    runs: 64,
    run_rounds: 1,
    idle: 10,
    with_proxy: 3,
    kept: 30,
    records: 300,
    lost: 5,
    overlays: 10,
    starts: 10,
};

type DensityMeasure = fn(&DensityBench) -> Result<Part>;

/// In the order in which they run.
const PARTS: [(&str, DensityMeasure); 5] = [
    ("at-once", at_once::measure),
    ("memory", memory::measure),
    ("kept", kept::measure),
    ("records", records::measure),
    ("overlays", overlays::measure),
];

/// What every part has.
struct DensityBench {
    belljar: PathBuf,
    scratch: Scratch,
    identity: Identity,
    sizes: DensitySizes,
}

impl DensityBench {
    /// A home of its own, for a part that fills it.
    fn another_home(&self, name: &str) -> Result<Home> {
        Ok(Home::open_at(self.scratch.path().join(format!("home-{name}")))?)
    }

    /// `belljar run SETTINGS -- /bin/true` in a home.
    fn start_in(&self, name: &str, home: &Path, settings: &[&str]) -> Case<'static> {
        let identity = self.identity.with_home(home);
        Case::sandbox(name, &identity, &self.belljar, run_words(settings))
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct DensityOptions {
    #[command(flatten)]
    common: CommonOptions,
    #[command(flatten)]
    measurer: Measurer,
    /// Only these parts
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    #[arg(value_parser = PossibleValuesParser::new(measurements::names(&PARTS)))]
    only: Vec<String>,
    /// Kept runs at once
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    kept: Option<usize>,
}

impl DensityOptions {
    fn sizes(&self) -> DensitySizes {
        let sizes = self.common.sizes(FULL, QUICK);
        DensitySizes { kept: self.kept.unwrap_or(sizes.kept), ..sizes }
    }
}

pub(crate) fn main(options: &DensityOptions) -> Result<ExitCode> {
    match &options.measurer.belljar {
        Some(belljar) => measure(options, belljar),
        None => run_optimised(&artifacts::build_measuring()?, &[]),
    }
}

fn measure(options: &DensityOptions, belljar: &Path) -> Result<ExitCode> {
    let scratch = Scratch::on_disk("bench-density")?;
    let belljar = scratch.copy_executable(belljar)?;
    let identity = Identity::ourselves(scratch.path())?;
    let bench = DensityBench { belljar, scratch, identity, sizes: options.sizes() };
    let mut measurements = Measurements::begin("many runs", options.common.json.clone());
    measurements.parts(&PARTS, &options.only, |measure| measure(&bench));
    measurements.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsed;

    #[test]
    fn sizes_come_from_flags_in_any_order() {
        assert_eq!(parsed::<DensityOptions>("").unwrap().sizes(), FULL);
        let options = parsed::<DensityOptions>("--kept 7 --quick --only kept").unwrap();
        assert_eq!(options.sizes(), DensitySizes { kept: 7, ..QUICK });
        assert_eq!(options.only, ["kept"]);
        assert!(parsed::<DensityOptions>("--only jails").is_err());
        assert!(parsed::<DensityOptions>("--kept 0").is_err());
    }
}

//! `cargo xtask bench record`: what the record costs: output through the launcher, events, verification.
//!
//! Parts of it call the library in their own process, so this process is an optimised build too: the
//! one that cargo started builds both and hands over.

mod events;
mod pipeline;
mod throughput;
mod verify;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Result;
use belljar::home::Home;
use clap::builder::PossibleValuesParser;

use super::identity::Identity;
use super::measurements::{self, Measurements};
use super::outcome::Part;
use super::{CommonOptions, Measurer, run_optimised};
use crate::artifacts;
use crate::scratch::Scratch;

/// In the order in which they run.
const PARTS: [(&str, RecordMeasure); 3] =
    [("throughput", throughput::measure), ("events", events::measure), ("verify", verify::measure)];

type RecordMeasure = fn(&RecordBench) -> Result<Part>;

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordSizes {
    pub(crate) output: u64,
    pub(crate) output_rounds: usize,
    pub(crate) small_writes: u64,
    pub(crate) events: u64,
    pub(crate) synced_events: u64,
}

const FULL: RecordSizes = RecordSizes {
    output: 1 << 30,
    output_rounds: 3,
    small_writes: 200_000,
    events: 100_000,
    synced_events: 200,
};
const QUICK: RecordSizes = RecordSizes {
    output: 128 << 20,
    output_rounds: 1,
    small_writes: 20_000,
    events: 10_000,
    synced_events: 20,
};
const LARGE_OUTPUT: u64 = 4 << 30;

/// What every part has.
pub(crate) struct RecordBench {
    pub(crate) belljar: PathBuf,
    pub(crate) scratch: Scratch,
    pub(crate) identity: Identity,
    pub(crate) sizes: RecordSizes,
}

impl RecordBench {
    pub(crate) fn home(&self) -> Result<Home> {
        Ok(Home::open_at(self.identity.home.clone())?)
    }

    /// A home of its own, for a part that fills it.
    pub(crate) fn another_home(&self, name: &str) -> Result<Home> {
        Ok(Home::open_at(self.scratch.path().join(format!("home-{name}")))?)
    }

    /// `belljar WORDS`, quiet where it can be, without the machine's settings.
    pub(crate) fn run(&self, settings: &[&str]) -> Command {
        let mut command = self.identity.command(&self.belljar);
        command.args(["run", "--no-config", "-q"]).args(settings).arg("--");
        command
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct RecordOptions {
    #[command(flatten)]
    common: CommonOptions,
    #[command(flatten)]
    measurer: Measurer,
    /// Only these parts
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    #[arg(value_parser = PossibleValuesParser::new(measurements::names(&PARTS)))]
    only: Vec<String>,
    /// More output than a cache holds
    #[arg(long)]
    large: bool,
}

impl RecordOptions {
    fn sizes(&self) -> RecordSizes {
        let mut sizes = self.common.sizes(FULL, QUICK);
        if self.large {
            sizes.output = LARGE_OUTPUT;
        }
        sizes
    }
}

pub(crate) fn main(options: &RecordOptions) -> Result<ExitCode> {
    match &options.measurer.belljar {
        Some(belljar) => measure(options, belljar),
        None => run_optimised(&artifacts::build_measuring()?, &[]),
    }
}

fn measure(options: &RecordOptions, belljar: &Path) -> Result<ExitCode> {
    let scratch = Scratch::on_disk("bench-record")?;
    let belljar = scratch.copy_executable(belljar)?;
    let identity = Identity::ourselves(scratch.path())?;
    let bench = RecordBench { belljar, scratch, identity, sizes: options.sizes() };
    let title = "the record and its cost";
    let mut measurements = Measurements::begin(title, options.common.json.clone());
    measurements.parts(&PARTS, &options.only, |measure| measure(&bench));
    measurements.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsed;

    #[test]
    fn sizes_come_from_flags_in_any_order() {
        assert_eq!(parsed::<RecordOptions>("").unwrap().sizes(), FULL);
        let options = parsed::<RecordOptions>("--large --quick").unwrap();
        assert_eq!(options.sizes(), RecordSizes { output: LARGE_OUTPUT, ..QUICK });
    }

    #[test]
    fn a_part_that_is_not_there_is_refused() {
        let options = parsed::<RecordOptions>("--only events,verify").unwrap();
        assert_eq!(options.only, ["events", "verify"]);
        let error = parsed::<RecordOptions>("--only events,event").unwrap_err().to_string();
        assert!(error.contains("'event'"), "{error}");
        assert!(parsed::<RecordOptions>("--json").is_err());
    }
}

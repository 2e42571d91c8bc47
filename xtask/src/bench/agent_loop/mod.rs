//! `cargo xtask bench loop`: what an iteration costs besides the agent's own, how fast agents' output is read, and how
//! long a resume takes, beside what people do by hand for the same.
//!
//! Output is read in this process, so it is an optimised build too: the one that cargo started hands over.

mod by_hand;
mod costs;
mod iteration;
mod paced;
mod parsing;
mod resume;
mod work;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::builder::RangedU64ValueParser;

use super::identity::Identity;
use super::measurements::Measurements;
use super::workspace::tree;
use super::{CommonOptions, Measurer, identities, run_optimised};
use crate::artifacts;
use crate::scratch::Scratch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LoopSizes {
    files: usize,
    iterations: usize,
    resumes: usize,
    /// Bytes of agents' output.
    output: usize,
    readings: usize,
}

const FULL: LoopSizes =
    LoopSizes { files: 100_000, iterations: 20, resumes: 20, output: 64 << 20, readings: 5 };
const QUICK: LoopSizes =
    LoopSizes { files: 100_000, iterations: 6, resumes: 3, output: 4 << 20, readings: 2 };
/// The tree that the large one is compared with.
const FEW_FILES: usize = 1000;

/// What the parts with sandboxes have.
struct LoopBench<'a> {
    belljar: &'a Path,
    scratch: &'a Path,
    identity: &'a Identity,
    /// Of the identity, with a repository in it, like the small one.
    tree: &'a Path,
    small_tree: &'a Path,
    sizes: LoopSizes,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LoopOptions {
    #[command(flatten)]
    common: CommonOptions,
    #[command(flatten)]
    measurer: Measurer,
    /// Files of the large tree, at least 2000
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(2 * FEW_FILES as u64..))]
    files: usize,
}

impl LoopOptions {
    fn sizes(&self) -> LoopSizes {
        LoopSizes { files: self.files, ..self.common.sizes(FULL, QUICK) }
    }
}

pub(crate) fn main(options: &LoopOptions) -> Result<ExitCode> {
    match &options.measurer.belljar {
        Some(belljar) => measure(options, belljar),
        None => run_optimised(&artifacts::build_measuring()?, &[]),
    }
}

fn measure(options: &LoopOptions, belljar: &Path) -> Result<ExitCode> {
    let sizes = options.sizes();
    let scratch = Scratch::on_disk("bench-loop")?;
    let belljar = scratch.copy_executable(belljar)?;
    let mut measurements = Measurements::begin("the loop", options.common.json.clone());
    measurements.part("parsing", || parsing::measure(sizes));
    for identity in identities(scratch.path())? {
        let make = |kind: &str, files: usize| {
            let root = scratch.path().join(format!("{kind}-{}", identity.name));
            tree::make(&identity, &root, files)
        };
        let bench = LoopBench {
            belljar: &belljar,
            scratch: scratch.path(),
            identity: &identity,
            tree: &make("tree", sizes.files)?,
            small_tree: &make("small", FEW_FILES)?,
            sizes,
        };
        measurements.part("iteration", || iteration::measure(&bench));
        measurements.part("resume", || resume::measure(&bench));
    }
    measurements.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsed;

    #[test]
    fn a_tree_that_is_no_larger_than_the_small_one_is_refused() {
        let options = parsed::<LoopOptions>("--files 5000 --quick").unwrap();
        assert_eq!(options.sizes(), LoopSizes { files: 5000, ..QUICK });
        assert!(parsed::<LoopOptions>("--files 1000").is_err());
        assert!(parsed::<LoopOptions>("--json").is_err());
        assert!(parsed::<LoopOptions>("--slow").is_err());
    }
}

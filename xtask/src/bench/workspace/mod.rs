//! `cargo xtask bench workspace`: what a layered tree costs at the start, and how fast it is looked at afterwards,
//! beside `git status` and `diff -r` on the same changes in the same minutes.

mod look;
mod start;
pub(crate) mod tree;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::builder::RangedU64ValueParser;

use super::identity::Identity;
use super::measurements::Measurements;
use super::{CommonOptions, identities};
use crate::artifacts::{self, Profile};
use crate::scratch::Scratch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WorkspaceSizes {
    files: usize,
    /// Fewer have no tenth percentile worth the name.
    starts: usize,
    looks: usize,
}

const FULL: WorkspaceSizes = WorkspaceSizes { files: 100_000, starts: 100, looks: 30 };
const QUICK: WorkspaceSizes = WorkspaceSizes { files: 100_000, starts: 20, looks: 5 };
const CHANGES: usize = 100;

/// What every part has.
struct WorkspaceBench<'a> {
    belljar: &'a Path,
    identity: &'a Identity,
    /// Of the identity, with a repository in it.
    tree: &'a Path,
    sizes: WorkspaceSizes,
}

#[derive(Debug, clap::Args)]
pub(crate) struct WorkspaceOptions {
    #[command(flatten)]
    common: CommonOptions,
    /// Files of the tree, at least 1000
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1000..))]
    files: usize,
}

impl WorkspaceOptions {
    fn sizes(&self) -> WorkspaceSizes {
        WorkspaceSizes { files: self.files, ..self.common.sizes(FULL, QUICK) }
    }
}

pub(crate) fn main(options: &WorkspaceOptions) -> Result<ExitCode> {
    let sizes = options.sizes();
    let built = artifacts::build_belljar(Profile::Release)?;
    let scratch = Scratch::on_disk("bench")?;
    let belljar = scratch.copy_executable(&built)?;
    let mut measurements = Measurements::begin("bench workspace", options.common.json.clone());
    for identity in identities(scratch.path())? {
        let name = format!("tree-{}", identity.name);
        let tree = tree::make(&identity, &scratch.path().join(name), sizes.files)?;
        let bench = WorkspaceBench { belljar: &belljar, identity: &identity, tree: &tree, sizes };
        measurements.part("start", || start::measure(&bench));
        measurements.part("look", || look::measure(&bench));
    }
    measurements.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsed;

    #[test]
    fn a_tree_that_is_too_small_is_refused() {
        let options = parsed::<WorkspaceOptions>("--quick --files 5000").unwrap();
        assert_eq!(options.sizes(), WorkspaceSizes { files: 5000, ..QUICK });
        assert_eq!(parsed::<WorkspaceOptions>("").unwrap().sizes(), FULL);
        assert!(parsed::<WorkspaceOptions>("--files 10").is_err());
        assert!(parsed::<WorkspaceOptions>("--slow").is_err());
    }
}

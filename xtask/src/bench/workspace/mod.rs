//! `cargo xtask bench workspace`: what a layered tree costs at the start, and how fast it is looked at afterwards,
//! beside `git status` and `diff -r` on the same changes in the same minutes.

mod look;
mod start;
pub(crate) mod tree;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use super::identities;
use super::identity::Identity;
use super::outcome::{self, Part};
use crate::artifacts::{self, Profile};
use crate::scratch::Scratch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    files: usize,
    /// Fewer have no tenth percentile worth the name.
    starts: usize,
    looks: usize,
}

const FULL: Sizes = Sizes { files: 100_000, starts: 100, looks: 30 };
const QUICK: Sizes = Sizes { files: 100_000, starts: 20, looks: 5 };
const CHANGES: usize = 100;

/// What every part has.
struct Bench<'a> {
    belljar: &'a Path,
    identity: &'a Identity,
    /// Of the identity, with a repository in it.
    tree: &'a Path,
    sizes: Sizes,
}

#[derive(Debug)]
struct Options {
    sizes: Sizes,
    json: Option<PathBuf>,
}

fn parse(words: &[String]) -> Result<Options> {
    let mut options = Options { sizes: FULL, json: None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--quick" => options.sizes = Sizes { files: options.sizes.files, ..QUICK },
            "--files" => {
                options.sizes.files = value()?.parse().context("--files needs a number")?;
                ensure!(options.sizes.files >= 1000, "--files must be at least 1000");
            }
            "--json" => options.json = Some(PathBuf::from(value()?)),
            unknown => bail!("`cargo xtask bench workspace` has no option `{unknown}`"),
        }
    }
    Ok(options)
}

pub(crate) fn main(words: &[String]) -> Result<ExitCode> {
    let options = parse(words)?;
    let built = artifacts::build_belljar(Profile::Release)?;
    let load = outcome::load();
    let scratch = Scratch::on_disk("bench")?;
    let belljar = scratch.copy_executable(&built)?;
    print!("{}", outcome::heading("bench workspace", load.as_deref()));
    let mut parts = Vec::new();
    for identity in identities(scratch.path())? {
        let name = format!("tree-{}", identity.name);
        let tree = tree::make(&identity, &scratch.path().join(name), options.sizes.files)?;
        let bench =
            Bench { belljar: &belljar, identity: &identity, tree: &tree, sizes: options.sizes };
        for (name, measure) in [("start", start::measure as Measure), ("look", look::measure)] {
            let part = measure(&bench).unwrap_or_else(|error| Part::failed(name, &error));
            print!("{}", part.text());
            parts.push(part);
        }
    }
    outcome::conclude(&parts, options.json.as_deref(), load.as_deref())
}

type Measure = fn(&Bench<'_>) -> Result<Part>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_that_is_too_small_is_refused() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(parse(&words("--quick --files 5000")).unwrap().sizes.files, 5000);
        assert!(parse(&words("--files 10")).is_err());
        assert!(parse(&words("--slow")).is_err());
    }
}

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

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use super::identity::Identity;
use super::outcome::{self, Part};
use super::workspace::tree;
use super::{BELLJAR, hand_over, identities};
use crate::artifacts;
use crate::scratch::Scratch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    files: usize,
    iterations: usize,
    resumes: usize,
    /// Bytes of agents' output.
    output: usize,
    readings: usize,
}

const FULL: Sizes =
    Sizes { files: 100_000, iterations: 20, resumes: 20, output: 64 << 20, readings: 5 };
const QUICK: Sizes =
    Sizes { files: 100_000, iterations: 6, resumes: 3, output: 4 << 20, readings: 2 };
/// The tree that the large one is compared with.
const FEW_FILES: usize = 1000;

/// What the parts with sandboxes have.
struct Bench<'a> {
    belljar: &'a Path,
    scratch: &'a Path,
    identity: &'a Identity,
    /// Of the identity, with a repository in it, like the small one.
    tree: &'a Path,
    small_tree: &'a Path,
    sizes: Sizes,
}

#[derive(Debug)]
struct Options {
    sizes: Sizes,
    json: Option<PathBuf>,
    belljar: Option<PathBuf>,
}

fn parse(words: &[String]) -> Result<Options> {
    let mut options = Options { sizes: FULL, json: None, belljar: None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--quick" => options.sizes = Sizes { files: options.sizes.files, ..QUICK },
            "--files" => {
                options.sizes.files = value()?.parse().context("--files needs a number")?;
                ensure!(
                    options.sizes.files >= 2 * FEW_FILES,
                    "--files must be at least {}",
                    2 * FEW_FILES
                );
            }
            "--json" => options.json = Some(PathBuf::from(value()?)),
            BELLJAR => options.belljar = Some(PathBuf::from(value()?)),
            unknown => bail!("`cargo xtask bench loop` has no option `{unknown}`"),
        }
    }
    Ok(options)
}

pub(crate) fn main(words: &[String]) -> Result<ExitCode> {
    let options = parse(words)?;
    match &options.belljar {
        Some(belljar) => measure(&options, belljar),
        None => hand_over(&artifacts::build_measuring()?, "loop", words, &[]),
    }
}

fn measure(options: &Options, belljar: &Path) -> Result<ExitCode> {
    let load = outcome::load();
    let scratch = Scratch::on_disk("bench-loop")?;
    let belljar = scratch.copy_executable(belljar)?;
    print!("{}", outcome::heading("the loop", load.as_deref()));
    let mut parts = vec![part_or_failure("parsing", parsing::measure(options.sizes))];
    for identity in identities(scratch.path())? {
        let make = |kind: &str, files: usize| {
            let root = scratch.path().join(format!("{kind}-{}", identity.name));
            tree::make(&identity, &root, files)
        };
        let bench = Bench {
            belljar: &belljar,
            scratch: scratch.path(),
            identity: &identity,
            tree: &make("tree", options.sizes.files)?,
            small_tree: &make("small", FEW_FILES)?,
            sizes: options.sizes,
        };
        parts.push(part_or_failure("iteration", iteration::measure(&bench)));
        parts.push(part_or_failure("resume", resume::measure(&bench)));
    }
    outcome::conclude(&parts, options.json.as_deref(), load.as_deref())
}

fn part_or_failure(name: &'static str, measured: Result<Part>) -> Part {
    let part = measured.unwrap_or_else(|error| Part::failed(name, &error));
    print!("{}", part.text());
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_that_is_no_larger_than_the_small_one_is_refused() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let options = parse(&words("--files 5000 --quick")).unwrap();
        assert_eq!(options.sizes, Sizes { files: 5000, ..QUICK });
        assert!(parse(&words("--files 1000")).is_err());
        assert!(parse(&words("--json")).is_err());
        assert!(parse(&words("--slow")).is_err());
    }
}

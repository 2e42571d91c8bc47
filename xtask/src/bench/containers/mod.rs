//! `cargo xtask bench engines`: what a container costs through belljar, beside what the same engine's own
//! command costs. The engines are private ones, as the tests have them.

pub(super) mod arm;
mod at_once;
mod exec;
mod start;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use belljar::spec::env;

use self::arm::Arm;
use super::identity::Identity;
use super::outcome::{self, Part};
use super::{BELLJAR, hand_over};
use crate::artifacts;
use crate::engines::{Engine, Engines};
use crate::scratch::Scratch;

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    starts: usize,
    execs: usize,
    /// Containers at once, and how often.
    crowd: usize,
    crowds: usize,
}

const FULL: Sizes = Sizes { starts: 60, execs: 200, crowd: 20, crowds: 5 };
const QUICK: Sizes = Sizes { starts: 10, execs: 20, crowd: 20, crowds: 1 };

type Measure = fn(&Bench, &Arm) -> Result<Part>;

/// In the order in which they run.
const PARTS: [(&str, Measure); 3] =
    [("start", start::measure), ("exec", exec::measure), ("at once", at_once::measure)];

/// What every part has.
struct Bench {
    belljar: PathBuf,
    identity: Identity,
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
            "--quick" => options.sizes = QUICK,
            "--json" => options.json = Some(PathBuf::from(value()?)),
            BELLJAR => options.belljar = Some(PathBuf::from(value()?)),
            unknown => bail!("`cargo xtask bench engines` has no option `{unknown}`"),
        }
    }
    Ok(options)
}

pub(crate) fn main(words: &[String]) -> Result<ExitCode> {
    let options = parse(words)?;
    match &options.belljar {
        Some(belljar) => measure(&options, belljar),
        None => with_engines(words),
    }
}

/// The library finds an engine by the variables of its process, so they are there from its start.
fn with_engines(words: &[String]) -> Result<ExitCode> {
    let built = artifacts::build_measuring()?; // before an engine has to wait for it
    let engines = Engines::of_this_machine(&[Engine::Docker, Engine::Podman])?;
    let mut variables = engines.environment();
    for (variable, by) in
        [(env::TEST_DOCKER, arm::DOCKER_HOST), (env::TEST_PODMAN, arm::PODMAN_HOST)]
    {
        let address = variables.iter().find(|(name, _)| name == variable);
        let address = address.map(|(_, value)| (by.to_owned(), value.clone()));
        variables.extend(address);
    }
    let measured = hand_over(&built, "engines", words, &variables);
    engines.end()?;
    measured
}

fn measure(options: &Options, belljar: &Path) -> Result<ExitCode> {
    let scratch = Scratch::on_disk("bench-engines")?;
    let belljar = scratch.copy_executable(belljar)?;
    let identity = Identity::ourselves(scratch.path())?;
    let bench = Bench { belljar, identity, sizes: options.sizes };
    let arms = arm::all()?;
    ensure!(!arms.is_empty(), "no engine runs, so there is nothing to compare with");
    let load = outcome::load();
    print!("{}", outcome::heading("containers through belljar and without it", load.as_deref()));
    let mut parts = Vec::new();
    for arm in &arms {
        for (name, measure) in PARTS {
            eprintln!("measuring: {name} on {}", arm.name);
            let part = measure(&bench, arm).unwrap_or_else(|error| Part::failed(name, &error));
            print!("{}", part.text());
            parts.push(part);
        }
    }
    outcome::conclude(&parts, options.json.as_deref(), load.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Options> {
        parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_that_are_not_there_are_refused() {
        assert_eq!(parsed("").unwrap().sizes, FULL);
        assert_eq!(parsed("--quick --json x").unwrap().sizes, QUICK);
        assert!(parsed("--json").is_err());
        assert!(parsed("--fast").is_err());
    }
}

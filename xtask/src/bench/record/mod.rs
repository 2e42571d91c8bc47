//! `cargo xtask bench record`: what the record costs, and what it costs to have many commands and many
//! sandboxes.
//!
//! Parts of it call the library in their own process, so this process is an optimised build too: the
//! one that cargo started builds both and hands over.

mod events;
pub(crate) mod exec;
mod exec_peers;
mod jails;
mod pipeline;
mod reconcile;
mod replay;
mod start;
mod throughput;
mod verify;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use belljar::home::Home;

use super::identity::Identity;
use super::outcome::{self, Part};
use super::{BELLJAR, hand_over};
use crate::artifacts;
use crate::scratch::Scratch;

/// In the order in which they run.
const PARTS: [(&str, Measure); 7] = [
    ("throughput", throughput::measure),
    ("events", events::measure),
    ("verify", verify::measure),
    ("exec", exec::measure),
    ("jails", jails::measure),
    ("start", start::measure),
    ("reconcile", reconcile::measure),
];

type Measure = fn(&Bench) -> Result<Part>;

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) output: u64,
    pub(crate) output_rounds: usize,
    pub(crate) small_writes: u64,
    pub(crate) events: u64,
    pub(crate) synced_events: u64,
    pub(crate) execs: usize,
    pub(crate) jails: usize,
    pub(crate) starts: usize,
    pub(crate) runs: u64,
    pub(crate) lost: u64,
}

const FULL: Sizes = Sizes {
    output: 1 << 30,
    output_rounds: 3,
    small_writes: 200_000,
    events: 100_000,
    synced_events: 200,
    execs: 500,
    jails: 200,
    starts: 100,
    runs: 1000,
    lost: 50,
};
const QUICK: Sizes = Sizes {
    output: 128 << 20,
    output_rounds: 1,
    small_writes: 20_000,
    events: 10_000,
    synced_events: 20,
    execs: 50,
    jails: 20,
    starts: 20,
    runs: 100,
    lost: 5,
};
const LARGE_OUTPUT: u64 = 4 << 30;

/// What every part has.
pub(crate) struct Bench {
    pub(crate) belljar: PathBuf,
    pub(crate) scratch: Scratch,
    pub(crate) identity: Identity,
    pub(crate) sizes: Sizes,
}

impl Bench {
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

#[derive(Debug)]
struct Options {
    only: Option<Vec<String>>,
    sizes: Sizes,
    json: Option<PathBuf>,
    belljar: Option<PathBuf>,
}

fn parse(words: &[String]) -> Result<Options> {
    let mut options = Options { only: None, sizes: FULL, json: None, belljar: None };
    if words.iter().any(|word| word == "--quick") {
        options.sizes = QUICK;
    }
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--quick" => {}
            "--large" => options.sizes.output = LARGE_OUTPUT,
            "--only" => {
                let names: Vec<String> = value()?.split(',').map(str::to_owned).collect();
                if let Some(unknown) = names.iter().find(|name| !is_part(name)) {
                    let all: Vec<&str> = PARTS.iter().map(|(name, _)| *name).collect();
                    bail!("there is no part `{unknown}`; there are {}", all.join(", "));
                }
                options.only = Some(names);
            }
            "--jails" => {
                options.sizes.jails = value()?.parse().context("--jails needs a number")?;
            }
            "--json" => options.json = Some(PathBuf::from(value()?)),
            BELLJAR => options.belljar = Some(PathBuf::from(value()?)),
            unknown => bail!("`cargo xtask bench record` has no option `{unknown}`"),
        }
    }
    Ok(options)
}

fn is_part(name: &str) -> bool {
    PARTS.iter().any(|(part, _)| *part == name)
}

pub(crate) fn main(words: &[String]) -> Result<ExitCode> {
    let options = parse(words)?;
    match &options.belljar {
        Some(belljar) => measure(&options, belljar),
        None => hand_over(&artifacts::build_measuring()?, "record", words, &[]),
    }
}

fn measure(options: &Options, belljar: &Path) -> Result<ExitCode> {
    let scratch = Scratch::on_disk("bench-record")?;
    let belljar = scratch.copy_executable(belljar)?;
    let identity = Identity::ourselves(scratch.path())?;
    let bench = Bench { belljar, scratch, identity, sizes: options.sizes };
    let load = outcome::load();
    print!("{}", outcome::heading("the record and its cost", load.as_deref()));
    let mut parts = Vec::new();
    for (name, measure) in PARTS {
        if options.only.as_ref().is_some_and(|only| !only.iter().any(|one| one == name)) {
            continue;
        }
        eprintln!("measuring: {name}");
        let part = measure(&bench).unwrap_or_else(|error| Part::failed(name, &error));
        print!("{}", part.text());
        parts.push(part);
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
    fn sizes_come_from_flags_in_any_order() {
        assert_eq!(parsed("").unwrap().sizes, FULL);
        let options = parsed("--jails 7 --large --quick").unwrap();
        assert_eq!(options.sizes, Sizes { jails: 7, output: LARGE_OUTPUT, ..QUICK });
    }

    #[test]
    fn a_part_that_is_not_there_is_refused() {
        let only = parsed("--only exec,jails").unwrap().only.unwrap();
        assert_eq!(only, ["exec", "jails"]);
        assert!(parsed("--only exec,jail").unwrap_err().to_string().contains("`jail`"));
        assert!(parsed("--json").is_err());
    }
}

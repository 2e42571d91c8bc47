//! `cargo xtask bench egress`: what the way out costs. One large download, small requests, many connections, each
//! without anything in between, through the plainest forwarder there is, through belljar's proxy, and through
//! peers that are installed. In a network of its own: nothing leaves the machine.

mod arm;
mod client_report;
mod crowd;
mod download;
mod latency;
mod peers;
mod relay;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use belljar::prove::world::{FILES, Maker, World};
use belljar::spec::env;

use self::arm::Arm;
use super::containers::arm as containers;
use super::identity::Identity;
use super::outcome::{self, Part};
use super::{BELLJAR, hand_over};
use crate::artifacts;
use crate::engines::{Engine, Engines};
use crate::scratch::Scratch;

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    download: u64,
    downloads: usize,
    requests: u64,
    connections: u64,
    rounds: usize,
    at_once: u64,
}

const FULL: Sizes = Sizes {
    download: 2 << 30,
    downloads: 5,
    requests: 2000,
    connections: 300,
    rounds: 5,
    at_once: 500,
};
const QUICK: Sizes = Sizes {
    download: 256 << 20,
    downloads: 1,
    requests: 200,
    connections: 30,
    rounds: 1,
    at_once: 500,
};

type Measure = fn(&Bench, &[Arm]) -> Result<Part>;

/// In the order in which they run.
const PARTS: [(&str, Measure); 3] =
    [("download", download::measure), ("latency", latency::measure), ("at once", crowd::measure)];

/// What every part has.
struct Bench {
    belljar: PathBuf,
    /// A directory with nothing but the executable, to be mounted.
    kit: PathBuf,
    scratch: Scratch,
    identity: Identity,
    world: World,
    sizes: Sizes,
}

#[derive(Debug)]
struct Options {
    sizes: Sizes,
    only: Option<Vec<String>>,
    peers: Peers,
    json: Option<PathBuf>,
    belljar: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peers {
    /// Those that are installed.
    Found,
    /// Debian's, installed first.
    Installed,
}

fn parse(words: &[String]) -> Result<Options> {
    let mut options =
        Options { sizes: FULL, only: None, peers: Peers::Found, json: None, belljar: None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--quick" => options.sizes = QUICK,
            "--only" => {
                let names: Vec<String> = value()?.split(',').map(str::to_owned).collect();
                let is_part = |name: &str| PARTS.iter().any(|(part, _)| *part == name);
                if let Some(unknown) = names.iter().find(|name| !is_part(name)) {
                    bail!("there is no part `{unknown}`; there are download, latency, at once");
                }
                options.only = Some(names);
            }
            "--install-peers" => options.peers = Peers::Installed,
            "--json" => options.json = Some(PathBuf::from(value()?)),
            BELLJAR => options.belljar = Some(PathBuf::from(value()?)),
            unknown => bail!("`cargo xtask bench egress` has no option `{unknown}`"),
        }
    }
    Ok(options)
}

pub(crate) fn main(words: &[String]) -> Result<ExitCode> {
    if let Some((word, rest)) = words.split_first()
        && word == relay::RELAY
    {
        return relay::main(rest);
    }
    let options = parse(words)?;
    match &options.belljar {
        Some(belljar) => measure(&options, belljar),
        None => with_engines(&options, words),
    }
}

/// Engines are private ones, as the tests have them. Without root there are none.
fn with_engines(options: &Options, words: &[String]) -> Result<ExitCode> {
    if options.peers == Peers::Installed {
        peers::install()?;
    }
    let built = artifacts::build_measuring()?; // before an engine has to wait for it
    let engines = match Engines::of_this_machine(&[Engine::Docker, Engine::Podman]) {
        Ok(engines) => Some(engines),
        Err(error) => {
            eprintln!("no containers: {error:#}");
            None
        }
    };
    let variables = engines.as_ref().map(Engines::environment).unwrap_or_default();
    let measured = hand_over(&built, "egress", words, &variables);
    if let Some(engines) = engines {
        engines.end()?;
    }
    measured
}

fn measure(options: &Options, belljar: &Path) -> Result<ExitCode> {
    let scratch = Scratch::on_disk("bench-egress")?;
    let belljar = scratch.copy_executable(belljar)?;
    let identity = Identity::ourselves(scratch.path())?;
    let (kit, place) = (scratch.path().join("kit"), scratch.path().join("world"));
    fs::create_dir(&kit)
        .and_then(|()| fs::create_dir_all(place.join(FILES)))
        .and_then(|()| fs::copy(&belljar, kit.join("belljar")))
        .context("cannot make the kit")?;
    let world = World::start(&belljar, &place, Maker::Caller)?;
    let bench = Bench { belljar, kit, scratch, identity, world, sizes: options.sizes };
    let arms = arm::all(&bench)?;
    let load = outcome::load();
    print!("{}", outcome::heading("the way out", load.as_deref()));
    let mut parts = Vec::new();
    for (name, measure) in PARTS {
        if options.only.as_ref().is_some_and(|only| !only.iter().any(|one| one == name)) {
            continue;
        }
        eprintln!("measuring: {name}");
        let part = measure(&bench, &arms).unwrap_or_else(|error| Part::failed(name, &error));
        print!("{}", part.text());
        parts.push(part);
    }
    outcome::conclude(&parts, options.json.as_deref(), load.as_deref())
}

/// The containers that runs can be in, if this was started with engines around it.
fn engines() -> Result<Vec<containers::Arm>> {
    let is_there =
        [env::TEST_DOCKER, env::TEST_PODMAN].iter().any(|name| std::env::var(name).is_ok());
    if is_there { containers::all() } else { Ok(Vec::new()) }
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
        let options = parsed("--quick --install-peers --only latency").unwrap();
        assert_eq!((options.sizes, options.peers), (QUICK, Peers::Installed));
        assert!(parsed("--only latencies").is_err());
        assert!(parsed("--json").is_err());
    }
}

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
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use belljar::prove::world::{FILES, Maker, World};
use belljar::spec::env;
use clap::builder::PossibleValuesParser;

use self::arm::ProxyArm;
use super::containers::arm as containers;
use super::identity::Identity;
use super::measurements::{self, Measurements};
use super::outcome::Part;
use super::{CommonOptions, Measurer, run_optimised_with_engines};
use crate::engines::Engine;
use crate::scratch::Scratch;

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EgressSizes {
    download: u64,
    downloads: usize,
    requests: u64,
    connections: u64,
    rounds: usize,
    at_once: u64,
}

const FULL: EgressSizes = EgressSizes {
    download: 2 << 30,
    downloads: 5,
    requests: 2000,
    connections: 300,
    rounds: 5,
    at_once: 500,
};
const QUICK: EgressSizes = EgressSizes {
    download: 256 << 20,
    downloads: 1,
    requests: 200,
    connections: 30,
    rounds: 1,
    at_once: 500,
};

type EgressMeasure = fn(&EgressBench, &[ProxyArm]) -> Result<Part>;

/// In the order in which they run.
const PARTS: [(&str, EgressMeasure); 3] =
    [("download", download::measure), ("latency", latency::measure), ("at once", crowd::measure)];

/// What every part has.
struct EgressBench {
    belljar: PathBuf,
    /// A directory with nothing but the executable, to be mounted.
    kit: PathBuf,
    scratch: Scratch,
    identity: Identity,
    world: World,
    sizes: EgressSizes,
}

#[derive(Debug, clap::Args)]
pub(crate) struct EgressOptions {
    #[command(flatten)]
    common: CommonOptions,
    #[command(flatten)]
    measurer: Measurer,
    /// Only these parts
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    #[arg(value_parser = PossibleValuesParser::new(measurements::names(&PARTS)))]
    only: Vec<String>,
    /// Install Debian's peers first; otherwise only those that are installed are compared
    #[arg(long)]
    install_peers: bool,
    /// Make this process the forwarder that is compared with
    #[arg(long, hide = true, num_args = 2, value_names = ["LISTEN", "TO"])]
    relay: Option<Vec<SocketAddr>>,
}

pub(crate) fn main(options: &EgressOptions) -> Result<ExitCode> {
    if let Some(addresses) = &options.relay {
        return relay::main(addresses);
    }
    match &options.measurer.belljar {
        Some(belljar) => measure(options, belljar),
        None => with_engines(options),
    }
}

fn with_engines(options: &EgressOptions) -> Result<ExitCode> {
    if options.install_peers {
        peers::install()?;
    }
    run_optimised_with_engines(&[Engine::Docker, Engine::Podman])
}

fn measure(options: &EgressOptions, belljar: &Path) -> Result<ExitCode> {
    let scratch = Scratch::on_disk("bench-egress")?;
    let belljar = scratch.copy_executable(belljar)?;
    let identity = Identity::ourselves(scratch.path())?;
    let (kit, place) = (scratch.path().join("kit"), scratch.path().join("world"));
    fs::create_dir(&kit)
        .and_then(|()| fs::create_dir_all(place.join(FILES)))
        .and_then(|()| fs::copy(&belljar, kit.join("belljar")))
        .context("cannot make the kit")?;
    let world = World::start(&belljar, &place, Maker::Caller)?;
    let sizes = options.common.sizes(FULL, QUICK);
    let bench = EgressBench { belljar, kit, scratch, identity, world, sizes };
    let arms = arm::all(&bench)?;
    let title = "network access through the proxy";
    let mut measurements = Measurements::begin(title, options.common.json.clone());
    measurements.parts(&PARTS, &options.only, |measure| measure(&bench, &arms));
    measurements.finish()
}

/// The containers that runs can be in, if this was started with engines around it.
fn engines() -> Result<Vec<containers::EngineArm>> {
    let is_there =
        [env::TEST_DOCKER, env::TEST_PODMAN].iter().any(|name| std::env::var(name).is_ok());
    if is_there { containers::all() } else { Ok(Vec::new()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsed;

    #[test]
    fn options_that_are_not_there_are_refused() {
        let options = parsed::<EgressOptions>("--quick --install-peers --only latency").unwrap();
        assert_eq!(options.common.sizes(FULL, QUICK), QUICK);
        assert!(options.install_peers && options.only == ["latency"]);
        assert!(parsed::<EgressOptions>("--only latencies").is_err());
        assert!(parsed::<EgressOptions>("--json").is_err());
    }
}

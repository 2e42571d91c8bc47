//! A file in and out of a sandbox that runs: `belljar cp` beside `docker cp`.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::runtime::Runtime;

use super::ExecBench;
use crate::bench::containers::kept::KeptContainer;
use crate::bench::kept_run::KeptRun;
use crate::bench::outcome::{Part, Target, at_most};
use crate::bench::rounds::{self, Case, Rounds};
use crate::command;

const TO_DOCKER: Target = at_most(1.0, "x").aim(0.5);

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

impl Way {
    const BOTH: [Self; 2] = [Self::In, Self::Out];

    fn name(self, program: &str) -> String {
        match self {
            Self::In => format!("{program} cp, in"),
            Self::Out => format!("{program} cp, out"),
        }
    }
}

pub(super) fn measure(bench: &ExecBench) -> Result<Part> {
    let runtime = Runtime::new().context("cannot start the runtime")?;
    let rounds = Rounds::with_pauses(bench.sizes.copies);
    let mib = bench.sizes.copied_bytes >> 20;
    let title = format!("a file of {mib} MiB, {} rounds in turn", rounds.count);
    let mut part = Part::new("cp", title);
    let identity = &bench.identity;
    let source = bench.scratch.path().join("copied");
    let content = random_bytes(bench.sizes.copied_bytes)?;
    fs::write(&source, &content).context("cannot write the file to copy")?;
    let kept = KeptRun::start(&runtime, KeptRun::builder(identity, &bench.belljar))?;
    let docker = bench.engines.iter().find(|arm| arm.name == "docker");
    // Its root is read-only otherwise, and then nothing can be copied in.
    let writable = ["--read-only=false"];
    let container = docker.map(|arm| KeptContainer::start(identity, arm, &writable)).transpose()?;
    let mut cases = Vec::new();
    for way in Way::BOTH {
        let (run, target) = (kept.id(), bench.scratch.path().join("from-belljar"));
        let source = &source;
        cases.push(Case::timed(way.name("belljar"), move || {
            let inside = format!("{run}:/tmp/copied");
            let mut copy = identity.command(&bench.belljar);
            copy.args(["cp"]);
            timed_copy(copy, way, source, &inside, &target, bench.sizes.copied_bytes)
        }));
        let Some((arm, container)) = docker.zip(container.as_ref()) else { continue };
        let target = bench.scratch.path().join("from-docker");
        cases.push(Case::timed(way.name("docker"), move || {
            let inside = format!("{}:/copied", container.id);
            let copy = arm.client(identity, &["cp"]);
            timed_copy(copy, way, source, &inside, &target, bench.sizes.copied_bytes)
        }));
    }
    if container.is_none() {
        part.missing("docker cp", "no private docker runs");
    }
    let found = rounds::measure(cases, rounds);
    found.add_rows(&mut part);
    for way in Way::BOTH {
        let [ours, theirs] = ["belljar", "docker"].map(|program| way.name(program));
        found.times(&ours)?;
        part.compare_found(format!("{ours}, to {theirs}"), found.ratio(&ours, &theirs), TO_DOCKER);
    }
    let back = fs::read(bench.scratch.path().join("from-belljar")).context("nothing came back")?;
    ensure!(back == content, "what was copied in and out is not the same");
    kept.stop()?;
    part.note("belljar's file inside is on the sandbox's /tmp, docker's in the container's layer");
    Ok(part)
}

/// A copy out finds what a copy in has put there: cases are warmed up in their order.
fn timed_copy(
    mut copy: Command,
    way: Way,
    source: &Path,
    inside: &str,
    target: &Path,
    bytes: usize,
) -> Result<Duration> {
    match way {
        Way::In => command::timed(copy.arg(source).arg(inside)),
        Way::Out => {
            // Each copy makes a new file.
            if target.exists() {
                fs::remove_file(target).context("cannot remove the last copy")?;
            }
            let took = command::timed(copy.arg(inside).arg(target))?;
            let length = fs::metadata(target).context("nothing was copied")?.len();
            ensure!(length == bytes as u64, "{length} of {bytes} bytes were copied");
            Ok(took)
        }
    }
}

fn random_bytes(count: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    let mut random = File::open("/dev/urandom").context("cannot open /dev/urandom")?;
    random.read_exact(&mut bytes).context("cannot read /dev/urandom")?;
    Ok(bytes)
}

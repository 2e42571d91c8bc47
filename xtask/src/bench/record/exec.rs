//! `/bin/true` in a sandbox that stands already: through the library and through the command.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use belljar::Sandbox;
use belljar::spec::MountMode;
use tokio::runtime::Runtime;

use super::exec_peers::peers;
use super::{Bench, Sizes};
use crate::bench::engines;
use crate::bench::outcome::{Part, figure, latency};
use crate::bench::repeated::Peer;
use crate::bench::rounds::Times;
use crate::command;

const AT_ONCE: usize = 8;
const WARM_UP: usize = 5;
const LIBRARY_AIM_MS: f64 = 1.0;
const COMMAND_AIM_MS: f64 = 5.0;
const MIN_OF_DOCKER: f64 = 10.0;
const TRUE: [&str; 1] = ["/bin/true"];

const LIBRARY: &str = "belljar, library";
const COMMAND: &str = "belljar exec";

pub(crate) fn measure(bench: &Bench) -> Result<Part> {
    let runtime = Runtime::new().context("cannot start the runtime")?;
    let Sizes { execs, .. } = bench.sizes;
    let mut part =
        Part::new("exec", format!("/bin/true in a sandbox that stands, {execs} of each in turn"));
    let sandbox = Arc::new(runtime.block_on(start(bench))?);
    let engines = engines::found(bench.scratch.path(), &bench.identity);
    let mut peers = peers(bench, &engines);
    match command_of(bench, &sandbox) {
        Some(ours) => peers.push(ours),
        None => part.missing(COMMAND, "not in this build"),
    }
    let library = in_turn(&runtime, &sandbox, &mut peers, execs)?;
    part.row(LIBRARY, latency(&library));
    let ours = library.percentile(50);
    part.at_most("through the library, p50", ours, LIBRARY_AIM_MS, "ms");
    for peer in peers {
        let times = match peer.times() {
            Ok(times) => times,
            Err((name, why)) => {
                part.missing(name, why);
                continue;
            }
        };
        let p50 = times.times.percentile(50);
        let mut figures = latency(&times.times);
        figures.push(figure("library is", p50 / ours, "x as fast"));
        if times.name.ends_with(" exec") && times.name != COMMAND {
            let what = format!("through the library, against {}", times.name);
            part.at_least(&what, p50 / ours, MIN_OF_DOCKER, "x as fast");
        }
        if times.name == COMMAND {
            part.at_most("through the command, p50", p50, COMMAND_AIM_MS, "ms");
        }
        part.row(times.name, figures);
    }
    let in_a_row = runtime.block_on(in_a_row(&sandbox, execs))?;
    part.row("library, one after the other with nothing between", latency(&in_a_row));
    let rate = runtime.block_on(at_once(&sandbox, execs))?;
    part.row(format!("library, {AT_ONCE} at once"), vec![figure("rate", rate, "execs/s")]);
    runtime.block_on(sandbox.stop())?;
    part.note(
        "of each in turn: a start finds cold caches, as an agent's commands do; `/bin/true` alone and \
         bwrap are the floor that the kernel sets",
    );
    Ok(part)
}

pub(super) async fn start(bench: &Bench) -> Result<Sandbox> {
    let sandbox = Sandbox::builder()
        .no_config()
        .home(&bench.identity.home)
        .belljar(&bench.belljar)
        .workspace(&bench.identity.workspace, MountMode::Rw)
        .start()
        .await?;
    Ok(sandbox)
}

async fn one(sandbox: &Sandbox) -> Result<Duration> {
    let started = Instant::now();
    let output = sandbox.exec(TRUE).output().await?;
    let time = started.elapsed();
    ensure!(output.success(), "/bin/true in the sandbox ended with {:?}", output.exit);
    Ok(time)
}

/// The library's, and each peer's.
pub(crate) fn in_turn(
    runtime: &Runtime,
    sandbox: &Sandbox,
    peers: &mut [Peer],
    count: usize,
) -> Result<Times> {
    // Also shows that the commands really run: what does nothing would be the fastest.
    let output = runtime.block_on(sandbox.exec(["echo", "sealed"]).output())?;
    ensure!(output.stdout == b"sealed\n", "the command in the sandbox did not run");
    for _ in 0..WARM_UP {
        runtime.block_on(one(sandbox))?;
        peers.iter_mut().for_each(Peer::warm_up);
    }
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        times.push(runtime.block_on(one(sandbox))?);
        peers.iter_mut().for_each(Peer::measure);
    }
    Ok(Times::new(times))
}

async fn in_a_row(sandbox: &Sandbox, count: usize) -> Result<Times> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        times.push(one(sandbox).await?);
    }
    Ok(Times::new(times))
}

/// How many a second.
async fn at_once(sandbox: &Arc<Sandbox>, count: usize) -> Result<f64> {
    let each = count.div_ceil(AT_ONCE);
    let mut workers = tokio::task::JoinSet::new();
    let started = Instant::now();
    for _ in 0..AT_ONCE {
        let sandbox = Arc::clone(sandbox);
        workers.spawn(async move {
            for _ in 0..each {
                one(&sandbox).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = workers.join_next().await {
        done.context("a worker failed")??;
    }
    Ok((each * AT_ONCE) as f64 / started.elapsed().as_secs_f64())
}

fn command_of(bench: &Bench, sandbox: &Sandbox) -> Option<Peer> {
    let mut help = bench.identity.command(&bench.belljar);
    help.args(["exec", "--help"]);
    if !command::succeeds(&mut help, Duration::from_secs(10)) {
        return None;
    }
    let (identity, belljar) = (bench.identity.clone(), bench.belljar.clone());
    let run = sandbox.id().to_string();
    Some(Peer::new(COMMAND, move || {
        let mut exec: Command = identity.command(&belljar);
        exec.args(["exec", &run, "--", "/bin/true"]).stderr(Stdio::inherit());
        exec
    }))
}

//! Many kept runs at once: whether the last starts as fast as the first, and whether all of them can be stopped.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use belljar::home::Home;
use belljar::{Sandbox, SandboxBuilder};
use tokio::runtime::Runtime;

use super::DensityBench;
use super::left_behind::{Traces, our_processes};
use crate::bench::kept_run::KeptRun;
use crate::bench::memory::Memory;
use crate::bench::outcome::{Part, Target, at_most, figure, latency};
use crate::bench::rounds::{self, Rounds, START_PAUSE, Times};
use crate::bench::start::cases::Start;

/// Compared at either end.
const FEW: usize = 20;
const LAST_TO_FIRST: Target = at_most(1.2, "x");
const LEFT: Target = at_most(0.0, "left");
const WARM_UP: usize = 3;

pub(super) fn measure(bench: &DensityBench) -> Result<Part> {
    let runtime = Runtime::new().context("cannot start the runtime")?;
    let count = bench.sizes.kept;
    let title = format!("{count} kept runs at once, started one after the other");
    let mut part = Part::new("kept", title);
    let before = Traces::find()?;
    let builder = || KeptRun::builder(&bench.identity, &bench.belljar);
    for _ in 0..WARM_UP {
        let warm = runtime.block_on(builder().start())?;
        runtime.block_on(warm.stop())?;
    }
    let few = FEW.min(count);
    let peer = peer_start(bench, few);
    let mut sandboxes = Vec::with_capacity(count);
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let (sandbox, took) = timed_start(&runtime, builder())?;
        sandboxes.push(sandbox);
        times.push(took);
    }
    let peer_beside = peer_start(bench, few);
    compare_ends(&mut part, &times, few);
    if let (Some(before), Some(beside)) = (peer, peer_beside) {
        part.row(
            "bwrap, before the first and beside all of them",
            vec![
                figure("before", before, "ms"),
                figure("beside", beside, "ms"),
                figure("beside is", beside / before, "x"),
            ],
        );
    }
    part.row("memory of each", Memory::of(&our_processes()?)?.each(count));
    let last = sandboxes.last().context("no run was started")?;
    let works = runtime.block_on(last.exec(["echo", "sealed"]).output())?;
    ensure!(works.stdout == b"sealed\n", "the last run runs nothing");

    let ids: BTreeSet<String> = sandboxes.iter().map(|one| one.id().to_string()).collect();
    let started = Instant::now();
    runtime.block_on(stop_all(sandboxes))?;
    let all = started.elapsed().as_secs_f64();
    part.row(
        "stopping all, at once",
        vec![figure("in all", all, "s"), figure("each", all * 1000.0 / count as f64, "ms")],
    );
    let left = before.left(&Home::open_at(bench.identity.home.clone())?, &ids)?;
    part.compare("processes, live entries, mounts, control groups", left as f64, LEFT);
    Ok(part)
}

fn timed_start(runtime: &Runtime, builder: SandboxBuilder) -> Result<(Sandbox, Duration)> {
    sleep(START_PAUSE);
    let started = Instant::now();
    let sandbox = runtime.block_on(builder.start())?;
    Ok((sandbox, started.elapsed()))
}

/// The p50 of a few starts of bubblewrap: what the machine itself makes slower.
fn peer_start(bench: &DensityBench, count: usize) -> Option<f64> {
    let case = Start::Bwrap.case(&bench.identity, &bench.belljar)?;
    let found = rounds::measure(vec![case], Rounds::with_pauses(count));
    found.p50(&Start::Bwrap.name(&bench.identity))
}

fn compare_ends(part: &mut Part, times: &[Duration], few: usize) {
    let median = |of: &[Duration]| Times::new(of.to_vec()).percentile(50);
    let (first, last) = (median(&times[..few]), median(&times[times.len() - few..]));
    part.row("start, all of them", latency(&Times::new(times.to_vec())));
    part.row(
        format!("start, p50 of the first {few} and of the last {few}"),
        vec![figure("first", first, "ms"), figure("last", last, "ms")],
    );
    part.compare(format!("last {few} starts, to the first {few}"), last / first, LAST_TO_FIRST);
}

async fn stop_all(sandboxes: Vec<Sandbox>) -> Result<()> {
    let mut stops = tokio::task::JoinSet::new();
    for sandbox in sandboxes {
        stops.spawn(async move { sandbox.stop().await.map(drop) });
    }
    while let Some(stopped) = stops.join_next().await {
        stopped.context("a stop failed")??;
    }
    Ok(())
}

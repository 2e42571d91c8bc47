//! A home with many runs: how long every command's clean-up and the listings take.

use std::fs::File;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use belljar::home::Home;
use belljar::run::reconcile;
use belljar::spec::RunId;
use belljar::store::{self, Which};

use super::Bench;
use super::replay::{Sample, Written};
use super::start::newest;
use crate::bench::outcome::{Part, figure, latency};
use crate::bench::rounds::Times;

const MAX_MS: f64 = 1000.0;
const BEGAN: u64 = 1_700_000_000_000;
const TIMES: usize = 20;

pub(crate) fn measure(bench: &Bench) -> Result<Part> {
    let (runs, lost) = (bench.sizes.runs, bench.sizes.lost);
    let mut part = Part::new("reconcile", format!("a home with {runs} recorded runs"));
    run_once(bench)?;
    let sample = Sample::read(&newest(&bench.home()?)?)?;
    let home = bench.another_home("reconcile")?;
    for number in 0..runs {
        sample.write(&home, &id(number), Written::Whole)?;
    }
    let nothing = times(|| {
        let done = reconcile(&home)?;
        ensure!(done.is_empty(), "it found something to do: {done:?}");
        Ok(())
    })?;
    part.row("reconcile, nothing to do", latency(&nothing));
    part.at_most("reconcile, nothing to do, p99", nothing.percentile(99), MAX_MS, "ms");

    let all = times(|| {
        let found = store::list(&home, Which::All)?.len() as u64;
        ensure!(found == runs, "{found} runs were listed");
        Ok(())
    })?;
    part.row("store::list, all", latency(&all));
    let live = times(|| Ok(store::list(&home, Which::Live).map(drop)?))?;
    part.row("store::list, live", latency(&live));
    let (whole, tail) = (id(runs / 2).to_string(), id(runs / 2).tail().to_owned());
    let by_id = times(|| Ok(store::find(&home, &whole).map(drop)?))?;
    part.row("store::find, an id", latency(&by_id));
    let by_tail = times(|| Ok(store::find(&home, &tail).map(drop)?))?;
    part.row("store::find, a tail", latency(&by_tail));

    let took = after_a_crash(&home, &sample, runs, lost)?.as_secs_f64() * 1000.0;
    part.row(
        format!("reconcile, {lost} of the runs lost their supervisor"),
        vec![figure("once", took, "ms"), figure("each", took / lost as f64, "ms")],
    );
    part.note("a lost run is finished on the disk: its end and the ledger's row are each a sync");
    Ok(part)
}

fn run_once(bench: &Bench) -> Result<()> {
    let mut command = bench.run(&[]);
    command.arg("/bin/true").stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.status().context("cannot start belljar")?;
    ensure!(status.success(), "`belljar run -- /bin/true` ended with {status}");
    Ok(())
}

/// Later for a higher number; the tails differ.
fn id(number: u64) -> RunId {
    RunId::from_parts(BEGAN + number * 1000, number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20)
}

/// No process holds the locks of these runs.
fn after_a_crash(home: &Home, sample: &Sample, runs: u64, lost: u64) -> Result<Duration> {
    for number in runs..runs + lost {
        let id = id(number);
        sample.write(home, &id, Written::UntilGo)?;
        File::create(home.live_path(&id)).context("cannot make an entry in live/")?;
    }
    let started = Instant::now();
    let done = reconcile(home)?;
    let took = started.elapsed();
    let found = done.lost.len() as u64;
    ensure!(found == lost, "{found} of {lost} lost runs were finished: {:?}", done.left);
    Ok(took)
}

fn times(mut work: impl FnMut() -> Result<()>) -> Result<Times> {
    let mut times = Vec::with_capacity(TIMES);
    for _ in 0..TIMES {
        let started = Instant::now();
        work()?;
        times.push(started.elapsed());
    }
    Ok(Times::new(times))
}

//! A home with many recorded runs: what a start, every command's clean-up and the listings take in it.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use belljar::home::Home;
use belljar::run::reconcile;
use belljar::spec::RunId;
use belljar::store::{self, Which};

use super::DensityBench;
use super::replay::{ReplaySample, ReplayedRecord};
use crate::bench::outcome::{Part, Target, at_most, figure, latency};
use crate::bench::rounds::{self, Rounds, Times};
use crate::bench::start::cases::run_words;
use crate::command;

const NEW: &str = "start in a new home";
const FULL: &str = "start in the home with all records";
const TO_NEW: Target = at_most(1.1, "x");
const RECONCILE: Target = at_most(1000.0, "ms");
const BEGAN: u64 = 1_700_000_000_000;
const TIMES: usize = 20;
/// Runs of one name: fewer than retention leaves.
const ONE_NAME_HAS: u64 = 100;

pub(super) fn measure(bench: &DensityBench) -> Result<Part> {
    let (runs, lost) = (bench.sizes.records, bench.sizes.lost);
    let mut part = Part::new("records", format!("a home with {runs} recorded runs"));
    let sample = sample(bench)?;
    let home = bench.another_home("records")?;
    eprintln!("writing {runs} records");
    for number in 0..runs {
        sample.write(&home, &id(number), &name(number), ReplayedRecord::Whole)?;
    }
    starts(bench, &home, &mut part)?;
    let listed = store::list(&home, Which::All)?.len() as u64;
    ensure!(listed >= runs, "{listed} of {runs} records are left: retention removed some");
    commands(&home, runs, &mut part)?;
    let took = after_a_crash(&home, &sample, runs, lost)?.as_secs_f64() * 1000.0;
    part.row(
        format!("reconcile, {lost} of the runs lost their supervisor"),
        vec![figure("once", took, "ms"), figure("each", took / lost as f64, "ms")],
    );
    part.note("a lost run is finished on the disk: its end and the ledger's row are each a sync");
    Ok(part)
}

/// What one run recorded.
fn sample(bench: &DensityBench) -> Result<ReplaySample> {
    let mut run = bench.identity.command(&bench.belljar);
    run.args(run_words(&[])).arg("/bin/true").stdin(Stdio::null()).stdout(Stdio::null());
    command::timed(&mut run)?;
    ReplaySample::read(&newest(&Home::open_at(bench.identity.home.clone())?)?)
}

/// The directory of the newest run.
fn newest(home: &Home) -> Result<PathBuf> {
    let runs = store::list(home, Which::All)?;
    let newest = runs.first().context("no run is there")?;
    Ok(home.run_dir(&newest.id))
}

fn starts(bench: &DensityBench, home: &Home, part: &mut Part) -> Result<()> {
    let new = bench.another_home("new")?;
    let cases = vec![bench.start_in(NEW, new.path(), &[]), bench.start_in(FULL, home.path(), &[])];
    let found = rounds::measure(cases, Rounds::with_pauses(bench.sizes.starts));
    found.add_rows(part);
    let ratio = found.times(FULL)?.percentile(50) / found.times(NEW)?.percentile(50);
    part.compare(format!("{FULL}, to {NEW}"), ratio, TO_NEW);
    Ok(())
}

fn commands(home: &Home, runs: u64, part: &mut Part) -> Result<()> {
    let nothing = times(|| {
        let done = reconcile(home)?;
        ensure!(done.is_empty(), "it found something to do: {done:?}");
        Ok(())
    })?;
    part.row("reconcile, nothing to do", latency(&nothing));
    part.compare("reconcile, nothing to do, p99", nothing.percentile(99), RECONCILE);
    let all = times(|| Ok(store::list(home, Which::All).map(drop)?))?;
    part.row("store::list, all", latency(&all));
    let live = times(|| Ok(store::list(home, Which::Live).map(drop)?))?;
    part.row("store::list, live", latency(&live));
    let (whole, tail) = (id(runs / 2).to_string(), id(runs / 2).tail().to_owned());
    let by_id = times(|| Ok(store::find(home, &whole).map(drop)?))?;
    part.row("store::find, an id", latency(&by_id));
    let by_tail = times(|| Ok(store::find(home, &tail).map(drop)?))?;
    part.row("store::find, a tail", latency(&by_tail));
    Ok(())
}

/// Later for a higher number; the tails differ.
fn id(number: u64) -> RunId {
    RunId::from_parts(BEGAN + number * 1000, number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20)
}

fn name(number: u64) -> String {
    format!("job-{}", number / ONE_NAME_HAS)
}

/// No process holds the locks of these runs.
fn after_a_crash(home: &Home, sample: &ReplaySample, runs: u64, lost: u64) -> Result<Duration> {
    for number in runs..runs + lost {
        let id = id(number);
        sample.write(home, &id, &name(number), ReplayedRecord::UntilGo)?;
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

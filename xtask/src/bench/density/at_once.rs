//! Short recorded runs, many at once: how many are done in a second.

use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::DensityBench;
use crate::bench::outcome::{Part, Target, at_least, figure};
use crate::bench::start::cases::Start;
use crate::command;

const AT_ONCE: usize = 16;
/// The machine that the target is for.
const CORES: usize = 2;
const RATE: Target = at_least(150.0, "runs/s").aim(250.0);

/// What is compared, in this order.
const COMPARED: [Start; 3] = [Start::Belljar, Start::BelljarNoGroup, Start::Bwrap];

pub(super) fn measure(bench: &DensityBench) -> Result<Part> {
    let (runs, rounds) = (bench.sizes.runs, bench.sizes.run_rounds);
    let title = format!(
        "{runs} runs of /bin/true, {AT_ONCE} at once on {CORES} cores, {rounds} rounds in turn"
    );
    let mut part = Part::new("at-once", title);
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); COMPARED.len()];
    on_cores(CORES, || {
        for round in 0..rounds {
            for turn in 0..COMPARED.len() {
                let which = (round + turn) % COMPARED.len();
                rates[which].extend(rate(bench, COMPARED[which], runs)?);
            }
        }
        Ok(())
    })?;
    for (start, mut found) in COMPARED.into_iter().zip(rates) {
        let name = start.name(&bench.identity);
        found.sort_by(f64::total_cmp);
        let Some(median) = found.get(found.len() / 2).copied() else {
            part.missing(name, "it is not installed");
            continue;
        };
        part.row(&name, vec![figure("p50", median, "runs/s")]);
        if start == Start::Belljar {
            part.compare(format!("{name}, {AT_ONCE} at once"), median, RATE);
        }
    }
    Ok(part)
}

/// How many runs are done in a second; nothing if the peer is not installed.
fn rate(bench: &DensityBench, start: Start, runs: usize) -> Result<Option<f64>> {
    let Some((program, words)) = start.line(&bench.identity, &bench.belljar) else {
        return Ok(None);
    };
    let begun = AtomicUsize::new(0);
    let work = || {
        while begun.fetch_add(1, Ordering::Relaxed) < runs {
            let mut run = bench.identity.command(&program);
            run.args(&words).arg("/bin/true").stdin(Stdio::null()).stdout(Stdio::null());
            command::timed(&mut run)?;
        }
        anyhow::Ok(())
    };
    let started = Instant::now();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        let done = workers.into_iter().map(|worker| match worker.join() {
            Ok(done) => done,
            Err(_) => Err(anyhow!("a worker failed")),
        });
        // All of them are waited for, also where one fails.
        done.collect::<Vec<Result<()>>>().into_iter().collect::<Result<()>>()
    })?;
    Ok(Some(runs as f64 / started.elapsed().as_secs_f64()))
}

/// This thread, and all that it starts meanwhile, may use so many cores.
fn on_cores(count: usize, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = sched_getaffinity(None).context("cannot ask for the cores of this process")?;
    let mut few = CpuSet::new();
    (0..CpuSet::MAX_CPU).filter(|cpu| before.is_set(*cpu)).take(count).for_each(|cpu| few.set(cpu));
    sched_setaffinity(None, &few).context("cannot choose the cores of this process")?;
    let done = work();
    sched_setaffinity(None, &before).context("cannot give the cores of this process back")?;
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_get_the_chosen_cores() {
        let allowed = || command::read(&mut std::process::Command::new("nproc")).unwrap();
        let before = allowed();
        on_cores(1, || {
            assert_eq!(allowed().trim(), "1");
            Ok(())
        })
        .unwrap();
        assert_eq!(allowed(), before);
    }
}

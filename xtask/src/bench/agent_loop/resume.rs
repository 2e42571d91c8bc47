//! From `belljar resume` to the first byte of the agent's next iteration, beside a run that begins at the beginning, and
//! beside going back to a commit by hand.

use std::process::Stdio;
use std::time::Duration;

use anyhow::Result;

use super::by_hand::{change, copied, git_by_shell};
use super::iteration::whole_directories;
use super::paced::Paced;
use super::work::Work;
use super::{FEW_FILES, LoopBench};
use crate::bench::outcome::{Part, figure, latency};
use crate::bench::rounds::Times;
use crate::command;

const CHANGES: usize = 100;
/// Before the run is stopped in the middle of the next one.
const ITERATIONS: usize = 3;
const CASES: usize = 4;

pub(super) fn measure(bench: &LoopBench<'_>) -> Result<Part> {
    let (files, rounds) = (bench.sizes.files, bench.sizes.resumes);
    let who = &bench.identity.name;
    let title =
        format!("to the agent's first byte, after {ITERATIONS} times {CHANGES} changes, as {who}");
    let mut part = Part::new("resume", title);
    let work = Work::new(whole_directories(files), CHANGES);
    let large = stopped(bench, "resume-large", bench.tree, work)?;
    let few = Work::new(FEW_FILES, CHANGES);
    let small = stopped(bench, "resume-small", bench.small_tree, few)?;
    let copy = copied(bench, "reset")?;
    let mut fresh = 0;
    let mut begin = || {
        fresh += 1;
        rustix::fs::sync();
        let name = format!("fresh-{fresh}");
        let run = Paced::start(bench, &name, bench.tree, work, ITERATIONS)?;
        run.stop()?;
        Ok::<Duration, anyhow::Error>(run.start)
    };
    let reset = |number| {
        change(bench.identity, &copy, work, number)?;
        rustix::fs::sync();
        let mut git = git_by_shell(bench.identity, &copy, "git reset -q --hard HEAD");
        command::timed(git.stdin(Stdio::null()))
    };
    eprintln!("{rounds} rounds of {CASES} cases");
    let mut times: [Vec<Duration>; CASES] = Default::default();
    for round in 0..=rounds {
        for turn in 0..CASES {
            let case = (round + turn) % CASES;
            let took = match case {
                0 => large.resume()?,
                1 => small.resume()?,
                2 => begin()?,
                _ => reset(round)?,
            };
            if round > 0 {
                times[case].push(took);
            }
        }
    }
    let names = [
        format!("belljar resume, {files} files"),
        format!("belljar resume, {FEW_FILES} files"),
        format!("belljar run, {files} files"),
        format!("git reset --hard, {files} files"),
    ];
    let times = times.map(Times::new);
    for (name, times) in names.into_iter().zip(&times) {
        part.row(name, latency(times));
    }
    let to = |other: usize| times[0].percentile(50) / times[other].percentile(50);
    let ratios = [("to the small tree", 1), ("to run", 2), ("to git reset", 3)];
    part.row(
        "belljar resume, ratio",
        ratios.map(|(name, other)| figure(name, to(other), "x")).into(),
    );
    part.note(
        "git reset starts no agent and no sandbox: it is what going back by hand takes at least",
    );
    Ok(part)
}

/// A run with checkpoints that was stopped in the middle of an iteration.
fn stopped<'a>(
    bench: &'a LoopBench<'a>,
    name: &str,
    tree: &std::path::Path,
    work: Work,
) -> Result<Paced<'a>> {
    let paced = Paced::start(bench, name, tree, work, ITERATIONS + 1)?;
    for number in 0..ITERATIONS {
        paced.go_on(number)?;
    }
    paced.stop()?;
    Ok(paced)
}

//! What an iteration costs besides the agent's own: with a large tree and a small one, with many changes and few, beside
//! what people do by hand to keep the same changes.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::by_hand::ByHand;
use super::costs::{self, Cost};
use super::paced::{GATE_CHANGES, Paced};
use super::work::Work;
use super::{FEW_FILES, LoopBench};
use crate::bench::outcome::{Part, Target, at_most, figure, latency};
use crate::bench::rounds::Times;
use crate::command;

const FEW_CHANGES: usize = 100;
const MANY_CHANGES: usize = 1000;
/// What a tree a hundred times as large may cost.
const TO_FEW_FILES: Target = at_most(1.5, "x");
const VERSION_LIMIT: Duration = Duration::from_secs(10);

/// One loop, with what its agent does.
struct LoopArm<'a> {
    name: String,
    work: Work,
    paced: Paced<'a>,
}

pub(super) fn measure(bench: &LoopBench<'_>) -> Result<Part> {
    let (who, iterations) = (&bench.identity.name, bench.sizes.iterations);
    let title = format!("{iterations} iterations, each changing files of a tree, as {who}");
    let mut part = Part::new("iteration", title);
    let files = bench.sizes.files;
    let arm = |word: &str, tree: &Path, files: usize, changes: usize| {
        let work = Work::new(whole_directories(files), changes);
        let name = format!("{changes} changes, {files} files");
        // The first is not measured, and the last only waits.
        let paced = Paced::start(bench, word, tree, work, iterations + 2)?;
        Ok::<LoopArm<'_>, anyhow::Error>(LoopArm { name, work, paced })
    };
    let arms = [
        arm("large", bench.tree, files, FEW_CHANGES)?,
        arm("small", bench.small_tree, FEW_FILES, FEW_CHANGES)?,
        arm("many", bench.tree, files, MANY_CHANGES)?,
    ];
    let work = arms[0].work;
    let mut by_hand = vec![ByHand::commit(bench, work)?, ByHand::copy_of_changes(bench, work)?];
    if command::succeeds(Command::new("rsync").arg("--version"), VERSION_LIMIT) {
        by_hand.push(ByHand::rsync(bench, work)?);
    } else {
        eprintln!("rsync is not here, and not measured");
        part.missing("rsync -a --delete", "rsync is not here");
    }
    take_turns(&arms, &mut by_hand, iterations)?;

    let mut medians = Vec::new();
    for arm in &arms {
        medians.push(tell(&mut part, arm, iterations)?);
    }
    let mut ratios = vec![figure("to 1000 changes", medians[0] / medians[2], "x")];
    for one in by_hand {
        let (name, word) = one.names();
        let [taken, on_disk] = one.times().map(Times::new);
        part.row(name, latency(&taken));
        part.row(format!("{name}, on disk"), latency(&on_disk));
        ratios.push(figure(word, medians[0] / on_disk.percentile(50), "x"));
    }
    part.row(format!("{}, ratio", arms[0].name), ratios);
    part.note("from the end of the agent until it runs again; a checkpoint is on disk then,");
    part.note("so the ratios are to what is on disk too");
    let what = format!("{files} files to {FEW_FILES}, the same changes, p50");
    part.compare(what, medians[0] / medians[1], TO_FEW_FILES);
    Ok(part)
}

/// The agent's changes are in directories that are full.
pub(super) fn whole_directories(files: usize) -> usize {
    files / FEW_CHANGES * FEW_CHANGES
}

/// Every arm once per round, each round beginning with another.
fn take_turns(arms: &[LoopArm<'_>], by_hand: &mut [ByHand<'_>], iterations: usize) -> Result<()> {
    let count = arms.len() + by_hand.len();
    eprintln!("{iterations} rounds of {count} cases");
    for round in 0..=iterations {
        for turn in 0..count {
            let place = (round + turn) % count;
            match arms.get(place) {
                Some(arm) => arm.paced.go_on(round)?,
                None => by_hand[place - arms.len()].once(round)?,
            }
        }
    }
    Ok(())
}

/// The median of what one iteration costs.
fn tell(part: &mut Part, arm: &LoopArm<'_>, iterations: usize) -> Result<f64> {
    arm.paced.stop()?;
    let costs = costs::costs(&costs::events_in(&arm.paced.directory())?)?;
    ensure!(
        costs.len() == iterations + 1,
        "{} iterations were to come, and {} did",
        iterations + 1,
        costs.len()
    );
    let measured = &costs[1..];
    for cost in measured {
        let Cost { report, .. } = cost;
        let changed = usize::try_from(report.changed).unwrap_or(usize::MAX);
        ensure!(
            (arm.work.changes..=arm.work.changes + GATE_CHANGES).contains(&changed),
            "iteration {} of {} changed {changed} paths",
            report.iteration,
            arm.name
        );
    }
    let of = |time: fn(&Cost) -> Duration| Times::new(measured.iter().map(time).collect());
    let besides = of(|cost| cost.besides);
    part.row(arm.name.clone(), latency(&besides));
    part.row("  of it the checkpoint", latency(&of(|cost| cost.checkpoint)));
    Ok(besides.percentile(50))
}

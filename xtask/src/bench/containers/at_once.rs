//! Many containers at once: the time from the first start to the last end.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::ContainersBench;
use super::arm::EngineArm;
use crate::bench::outcome::{Part, figure};
use crate::bench::rounds::Times;
use crate::command;

pub(super) fn measure(bench: &ContainersBench, arm: &EngineArm) -> Result<Part> {
    let (crowd, crowds) = (bench.sizes.crowd, bench.sizes.crowds);
    let mut part = Part::new(
        "at once",
        format!(
            "{crowd} new containers of {} with /bin/true, all at once, {crowds} times",
            arm.name
        ),
    );
    let names = arm.names("run");
    let words = [arm.belljar_run(&bench.belljar), arm.client_run(&[])];
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..crowds {
        // Each comes first as often as the other.
        for turn in 0..2 {
            let which = (round + turn) % 2;
            let time = all_of(bench, &words[which], crowd);
            times[which].push(time.with_context(|| names[which].clone())?);
        }
    }
    let times = times.map(Times::new);
    let medians = [times[0].percentile(50), times[1].percentile(50)];
    for (name, median) in names.into_iter().zip(medians) {
        let each = median / crowd as f64;
        part.row(
            name,
            vec![figure("all, p50", median / 1000.0, "s"), figure("for each", each, "ms")],
        );
    }
    part.row("belljar is", vec![figure("p50", medians[0] / medians[1], "x of the other")]);
    Ok(part)
}

fn all_of(bench: &ContainersBench, words: &[String], crowd: usize) -> Result<Duration> {
    let started = Instant::now();
    let mut children: Vec<Child> = Vec::with_capacity(crowd);
    let mut failure = None;
    for _ in 0..crowd {
        let mut run = bench.identity.command(Path::new("env"));
        run.args(words).arg("/bin/true").stdin(Stdio::null()).stdout(Stdio::null());
        match command::spawn(&mut run) {
            Ok(child) => children.push(child),
            Err(error) => failure = Some(error),
        }
    }
    let mut failed = 0;
    // All of them are waited for, also where one could not be started.
    for child in &mut children {
        let status = child.wait().context("cannot wait for a child")?;
        failed += usize::from(!status.success());
    }
    let time = started.elapsed();
    if let Some(error) = failure {
        return Err(error);
    }
    ensure!(failed == 0, "{failed} of {crowd} at once failed");
    Ok(time)
}

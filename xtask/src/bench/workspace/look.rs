//! Looking at what a run changed, beside what git and diff take for the same changes.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{CHANGES, WorkspaceBench, tree};
use crate::bench::outcome::{Part, Target, at_most, figure, latency};
use crate::bench::rounds::Times;
use crate::command;

const DIFF: Target = at_most(200.0, "ms");
const LIMIT: Duration = Duration::from_secs(300);

pub(super) fn measure(bench: &WorkspaceBench<'_>) -> Result<Part> {
    let who = &bench.identity.name;
    let title = format!("{CHANGES} changes in a tree of {} files, as {who}", bench.sizes.files);
    let mut part = Part::new("look", title);
    let script = tree::script(bench.sizes.files, CHANGES);
    let overlay = format!("{}:overlay", bench.tree.display());
    let name = format!("look-{who}");
    let mut run = bench.identity.command(bench.belljar);
    run.args(["run", "--no-config", "-q", "--name", &name, "--workspace", &overlay, "--"]);
    run.args(["sh", "-c", &script]);
    command::check(&mut run, LIMIT)?;
    let mut copy = bench.identity.command(Path::new("cp"));
    // The directory is not the identity's own to write to.
    copy.arg("-a").arg(bench.tree).arg(&bench.identity.workspace);
    command::check(&mut copy, LIMIT)?;
    let copied = bench.identity.workspace.join(bench.tree.file_name().unwrap_or_default());
    let mut shell = bench.identity.command(Path::new("sh"));
    shell.args(["-c", &script]).current_dir(&copied);
    command::check(&mut shell, LIMIT)?;

    let belljar = |words: &[&str]| {
        let mut command = bench.identity.command(bench.belljar);
        command.arg("diff").args(words).arg(&name);
        command
    };
    let git = |words: &[&str]| {
        let mut command = bench.identity.command(Path::new("git"));
        command.arg("-C").arg(&copied).args(words);
        command
    };
    let mut diff = bench.identity.command(Path::new("diff"));
    diff.args(["-rq", "--exclude=.git"]).arg(bench.tree).arg(&copied);
    // Each reads everything once before it is measured.
    let cases: [(&str, Command, &[i32]); 6] = [
        ("belljar diff", belljar(&[]), &[0]),
        ("belljar diff -p", belljar(&["-p"]), &[0]),
        ("belljar diff --json", belljar(&["--json"]), &[0]),
        ("git status", git(&["status", "--porcelain"]), &[0]),
        ("git diff", git(&["diff"]), &[0]),
        ("diff -rq", diff, &[1]),
    ];
    let mut rows: Vec<(&str, Command, &[i32], Vec<Duration>)> =
        cases.into_iter().map(|(name, command, codes)| (name, command, codes, vec![])).collect();
    for round in 0..=bench.sizes.looks {
        for (name, command, codes, times) in &mut rows {
            let started = Instant::now();
            let output = command.output().with_context(|| format!("cannot start {name}"))?;
            let took = started.elapsed();
            let errors = String::from_utf8_lossy(&output.stderr);
            ensure!(
                output.status.code().is_some_and(|code| codes.contains(&code)),
                "{name} ended with {}: {errors}",
                output.status
            );
            ensure!(!output.stdout.is_empty(), "{name} found nothing");
            if round > 0 {
                times.push(took);
            }
        }
    }
    let found: Vec<(&str, Times)> =
        rows.into_iter().map(|(name, _, _, times)| (name, Times::new(times))).collect();
    for (name, times) in &found {
        part.row(*name, latency(times));
    }
    let of = |name: &str| {
        found.iter().find(|(one, _)| *one == name).map_or(f64::NAN, |one| one.1.percentile(50))
    };
    let ratios = [("to git status", "git status"), ("to diff -rq", "diff -rq")];
    part.row(
        "belljar diff, ratio",
        ratios.map(|(word, other)| figure(word, of("belljar diff") / of(other), "x")).into(),
    );
    part.compare("belljar diff, p50", of("belljar diff"), DIFF);
    Ok(part)
}

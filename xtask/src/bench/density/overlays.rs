//! A home with many overlays that nobody has applied or discarded: what a start takes in it.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use super::DensityBench;
use crate::bench::outcome::{Part, Target, at_most};
use crate::bench::rounds::{self, Rounds};
use crate::bench::start::cases::run_words;
use crate::command;

const TO_NEW: Target = at_most(1.1, "x");
/// As much as a short task changes.
const CHANGE: &str = "for i in 1 2 3 4 5; do echo changed > file$i; done";

pub(super) fn measure(bench: &DensityBench) -> Result<Part> {
    let count = bench.sizes.overlays;
    let mut part = Part::new("overlays", format!("a home with {count} undecided overlays"));
    let (new, full) = (bench.another_home("decided")?, bench.another_home("undecided")?);
    let tree = bench.scratch.path().join("overlaid");
    fs::create_dir(&tree).with_context(|| format!("cannot make {}", tree.display()))?;
    let overlay = format!("{}:overlay", tree.display());
    eprintln!("making {count} overlays");
    for _ in 0..count {
        // Without a name, as the measured starts: retention would remove all but a few of them, and may not.
        change(bench, full.path(), &["--workspace", &overlay])?;
    }
    let kept = undecided(full.path())?;
    ensure!(kept == count, "{kept} of {count} overlays are left");
    let plain = format!("{}:rw", bench.identity.workspace.display());
    let kinds = [("rw workspace", &plain), ("overlay workspace", &overlay)];
    let mut cases = Vec::new();
    for (kind, workspace) in kinds {
        for (where_to, home) in [("a new home", &new), ("the full home", &full)] {
            let words = ["--workspace", workspace.as_str()];
            cases.push(bench.start_in(&format!("{kind}, {where_to}"), home.path(), &words));
        }
    }
    let found = rounds::measure(cases, Rounds::with_pauses(bench.sizes.starts));
    found.add_rows(&mut part);
    for (kind, _) in kinds {
        let p50 =
            |place: &str| found.times(&format!("{kind}, {place}")).map(|one| one.percentile(50));
        let ratio = p50("the full home")? / p50("a new home")?;
        part.compare(format!("start, {kind}, the full home to a new one"), ratio, TO_NEW);
    }
    Ok(part)
}

fn change(bench: &DensityBench, home: &Path, settings: &[&str]) -> Result<()> {
    let mut run = bench.identity.with_home(home).command(&bench.belljar);
    run.args(run_words(settings)).args(["/bin/sh", "-c", CHANGE]);
    command::timed(run.stdin(Stdio::null()).stdout(Stdio::null()))?;
    Ok(())
}

/// Runs that have kept the upper layer of their overlay.
fn undecided(home: &Path) -> Result<usize> {
    let runs = home.join("runs");
    let entries = fs::read_dir(&runs).with_context(|| format!("cannot list {}", runs.display()))?;
    Ok(entries.flatten().filter(|run| run.path().join("upper").is_dir()).count())
}

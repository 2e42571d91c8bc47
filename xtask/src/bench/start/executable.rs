//! The executable itself: how fast it is there, how large it is, how long its first build takes.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::StartBench;
use crate::bench::outcome::{Part, Target, at_most, figure};
use crate::bench::rounds::{self, Case};
use crate::bench::static_program::{self, ABOUT_NOTHING, NOTHING};
use crate::{command, host};

const VERSION: &str = "belljar --version";

const TO_NOTHING: Target = at_most(1.2, "x");
const SIZE: Target = at_most(16.0, "MB");
const FIRST_BUILD: Target = at_most(3.0, "min");
const FETCH_LIMIT: Duration = Duration::from_secs(300);

pub(super) fn measure(bench: &StartBench) -> Result<Part> {
    let mut part = Part::new("executable", format!("{} rounds in turn", bench.rounds.count));
    let nothing = static_program::build(bench.scratch.path())?;
    let identity = &bench.identities[0];
    let cases = vec![
        Case::command(NOTHING, || identity.command(&nothing)),
        Case::command(VERSION, || {
            let mut command = identity.command(&bench.belljar);
            command.arg("--version");
            command
        }),
    ];
    let found = rounds::measure(cases, bench.rounds);
    found.add_rows(&mut part);
    let size = |path: &Path| -> Result<f64> {
        let found =
            fs::metadata(path).with_context(|| format!("cannot look at {}", path.display()))?;
        Ok(found.len() as f64 / 1e6)
    };
    let own = size(&bench.belljar)?;
    part.row("size of belljar", vec![figure("is", own, "MB")]);
    part.row("size of the program that does nothing", vec![figure("is", size(&nothing)?, "MB")]);
    part.compare_found(
        format!("{VERSION}, to {NOTHING}"),
        found.ratio(VERSION, NOTHING),
        TO_NOTHING,
    );
    part.compare("size of belljar", own, SIZE);
    part.note(ABOUT_NOTHING);
    Ok(part)
}

/// `cargo build --release` of the package `belljar`, with nothing built before. The sources of the crates are there.
pub(super) fn first_build(bench: &StartBench) -> Result<Part> {
    let mut part = Part::new("first build", "`cargo build --release` in an empty target directory");
    command::check(host::cargo()?.args(["fetch", "--locked"]), FETCH_LIMIT)?;
    let target = bench.scratch.path().join("target");
    let mut build = host::cargo()?;
    build.args(["build", "--release", "--locked", "--package", "belljar", "--target-dir"]);
    let minutes = command::timed(build.arg(&target))?.as_secs_f64() / 60.0;
    fs::remove_dir_all(&target).context("cannot remove the target directory")?;
    part.row("first build", vec![figure("took", minutes, "min")]);
    part.compare("first build, on two cores", minutes, FIRST_BUILD);
    Ok(part)
}

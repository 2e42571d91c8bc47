//! `cargo xtask test agents`: the real agents from npm against a local model service. It sets everything up itself, and
//! fails where something cannot be checked.

mod install;

use std::time::Duration;

use anyhow::{Result, bail};
use belljar_testkit::AGENTS_VARIABLE;

use self::install::InstalledAgents;
use super::left_out::Strict;
use super::runner_report::RunnerReport;
use super::{MustWork, Outcome, Report, TestOptions};
use super::{has_nextest, leftovers, path_with_unpacked, rootless_surroundings};
use crate::engines::{self, Engine, Engines};
use crate::scratch::Scratch;
use crate::{artifacts, command, host};

const LIMIT: Duration = Duration::from_secs(40 * 60);
/// The integration test of the package `belljar`.
const TEST: &str = "real_agents";

pub(super) fn run(options: &TestOptions, report: &mut Report) {
    let mut installed = None;
    report.step("agents", || {
        installed = Some(InstalledAgents::ensure()?);
        Ok(Outcome::Passed)
    });
    let mut belljar = None;
    report.step("build", || {
        belljar = Some(artifacts::build_test(TEST)?);
        Ok(Outcome::Passed)
    });
    let (Some(installed), Some(belljar)) = (installed, belljar) else { return };

    let mut environment = Vec::new();
    let (mut delegated, mut scratch) = (None, None);
    report.step("surroundings", || {
        let directory = Scratch::on_disk("agents")?;
        let copy = directory.copy_executable(&belljar)?;
        environment.push(("BELLJAR_EXE".into(), copy.display().to_string()));
        let programs = installed.programs_for_all(&directory)?;
        environment.push((AGENTS_VARIABLE.to_owned(), programs.display().to_string()));
        environment.extend(path_with_unpacked());
        scratch = Some(directory);
        rootless_surroundings(&mut environment, &mut delegated)
    });
    let mut must_work = MustWork::asked_for();
    let mut engines = None;
    report.step("engines", || engines::step(&[Engine::Docker], &must_work, &mut engines));
    must_work.add_what_runs(engines.as_ref());
    environment.extend(must_work.environment());
    environment.extend(engines.iter().flat_map(Engines::environment));
    for (name, value) in &environment {
        eprintln!("    {name}={value}");
    }
    let mut runner = RunnerReport::default();
    report.step("tests", || tests(options, &environment, &mut runner));
    report.step("left out", || Ok(runner.left_out.verdict(Strict::Yes)));
    report.step("flaky", || Ok(runner.flaky.verdict()));
    report.step("leftovers", || leftovers(delegated, engines));
    drop(scratch);
}

fn tests(
    options: &TestOptions,
    environment: &[(String, String)],
    runner: &mut RunnerReport,
) -> Result<Outcome> {
    if !has_nextest()? {
        bail!("cargo-nextest is not installed: its report says what tests left out");
    }
    let mut cargo = host::cargo()?;
    cargo.args(["nextest", "run", "-p", "belljar", "--test", TEST, "--no-fail-fast"]);
    cargo.args(["--ignore-default-filter", "--run-ignored", "all"]);
    cargo.args(&options.runner_arguments).envs(environment.iter().cloned());
    RunnerReport::forget_older()?;
    let ended = command::check(&mut cargo, LIMIT);
    runner.read()?;
    ended.map(|()| Outcome::Passed)
}

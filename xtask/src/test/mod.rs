//! `cargo xtask test`: everything that must hold, from a clean checkout, with one command.

mod delegated;
mod dependencies;
mod doc_tests;
mod left_out;
mod must_work;
mod no_jail;
mod on_engines;
pub(crate) mod packages;
mod report;
mod user;

use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use belljar::spec::env;

use self::delegated::Delegated;
pub(crate) use self::delegated::remove_tree as remove_cgroup;
pub(crate) use self::dependencies::built_crates;
use self::left_out::{LeftOut, Strict};
pub(crate) use self::must_work::MustWork;
pub(crate) use self::report::Outcome;
pub(crate) use self::report::Report;
pub(crate) use self::user::TestUser;
use crate::artifacts::{self, Artifacts, Profile};
use crate::engines::{self, Engines};
use crate::scratch::Scratch;
use crate::{check, command, fresh, guest, host};

/// A test that hangs must not hang the whole.
const TESTS_LIMIT: Duration = Duration::from_secs(30 * 60);
const SOAK_LIMIT: Duration = Duration::from_secs(3 * 60 * 60);
const CHECK_LIMIT: Duration = Duration::from_secs(15 * 60);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    NoGuest,
    GuestOnly,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Effort {
    Normal,
    /// Ignored tests too, and many more property-test cases.
    Soak,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Machine {
    This,
    /// One on which nothing was installed by hand.
    Fresh,
}

struct Options {
    machine: Machine,
    scope: Scope,
    effort: Effort,
    runner_arguments: Vec<String>,
}

fn parse(words: &[String]) -> Result<Options> {
    let mut options = Options {
        machine: Machine::This,
        scope: Scope::All,
        effort: Effort::Normal,
        runner_arguments: Vec::new(),
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match (word.as_str(), options.scope) {
            ("--no-guest", Scope::All) => options.scope = Scope::NoGuest,
            ("--guest-only", Scope::All) => options.scope = Scope::GuestOnly,
            ("--no-guest" | "--guest-only", _) => {
                bail!("--no-guest and --guest-only exclude each other")
            }
            ("--fresh", _) => options.machine = Machine::Fresh,
            ("--soak", _) => options.effort = Effort::Soak,
            ("--", _) => options.runner_arguments = words.by_ref().cloned().collect(),
            (unknown, _) => bail!("`cargo xtask test` has no option `{unknown}`"),
        }
    }
    Ok(options)
}

pub(crate) fn main(words: &[String]) -> Result<ExitCode> {
    let options = parse(words)?;
    if options.machine == Machine::Fresh {
        return fresh::run(&without_fresh(words));
    }
    let mut report = Report::new();
    report.step("packages", packages::step);
    if options.scope == Scope::GuestOnly {
        report.step("guest", || guest::step(None));
    } else {
        let artifacts = on_the_host(&options, &mut report);
        if options.scope == Scope::All {
            report.step("guest", || guest::step(artifacts.as_ref()));
        }
    }
    print!("{}", report.summary());
    Ok(if report.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The arguments for the test on the other machine. Those of the test runner are unchanged.
fn without_fresh(words: &[String]) -> Vec<String> {
    let own = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let (own, runner) = words.split_at(own);
    own.iter().filter(|word| *word != "--fresh").chain(runner).cloned().collect()
}

/// `cargo xtask dependencies`: that step alone.
pub(crate) fn dependencies() -> Result<ExitCode> {
    dependencies::step().map(|_| ExitCode::SUCCESS)
}

fn on_the_host(options: &Options, report: &mut Report) -> Option<Artifacts> {
    report.step("fmt", || cargo_check(&["fmt", "--all", "--check"]));
    report.step("clippy", || {
        cargo_check(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
    });
    report.step("dependencies", dependencies::step);
    check::steps(report);
    report.step("clippy without the jail", no_jail::check);
    let mut without_jail = None;
    report.step("build without the jail", || no_jail::build(&mut without_jail));

    let mut built = None;
    report.step("build", || {
        built = Some(artifacts::build_tests(Profile::Dev)?);
        Ok(Outcome::Passed)
    });
    let Some(artifacts) = built else {
        // Without the executable the tests would only repeat the compiler's error.
        return None;
    };

    let mut environment = Vec::new();
    let mut delegated = None;
    let mut scratch = None;
    report.step("surroundings", || {
        let directory = Scratch::new("test")?;
        let copy = directory.copy_executable(&artifacts.belljar)?;
        environment.push(("BELLJAR_EXE".into(), copy.display().to_string()));
        let launcher = without_jail.as_ref().map(no_jail::launcher);
        environment.extend(launcher.map(|path| (env::TEST_NO_JAIL.to_owned(), path)));
        environment.extend(path_with_unpacked());
        scratch = Some(directory);
        rootless_surroundings(&mut environment, &mut delegated)
    });
    let mut must_work = MustWork::asked_for();
    let strict = if must_work.is_empty() { Strict::No } else { Strict::Yes };
    let mut engines = None;
    report.step("engines", || engines::step(&must_work, &mut engines));
    must_work.add_what_runs(engines.as_ref());
    environment.extend(must_work.environment());
    environment.extend(engines.iter().flat_map(Engines::environment));
    for (name, value) in &environment {
        eprintln!("    {name}={value}");
    }
    let mut left_out = LeftOut::default();
    report.step("tests", || tests(options, &environment, &mut left_out));
    report.step("the jail's tests on engines", || {
        on_engines::step(engines.as_ref(), &environment, &mut left_out)
    });
    report.step("doc tests", || doc_tests::step(&environment));
    report.step("left out", || Ok(left_out.verdict(strict)));
    report.step("leftovers", || leftovers(delegated, engines));
    drop((scratch, without_jail));
    Some(artifacts)
}

/// Where a package was unpacked instead of installed, its programs come last.
fn path_with_unpacked() -> Option<(String, String)> {
    let commands = host::unpacked_commands()?;
    let path = std::env::var("PATH").unwrap_or_default();
    Some(("PATH".to_owned(), format!("{path}:{}", commands.display())))
}

/// The other user, and its cgroups. Both take root.
fn rootless_surroundings(
    environment: &mut Vec<(String, String)>,
    delegated: &mut Option<Delegated>,
) -> Result<Outcome> {
    if !host::is_root() {
        return Ok(Outcome::NotChecked(
            "not root: no second user and no delegated cgroups could be made, so the tests run as \
             this user only"
                .into(),
        ));
    }
    let user = TestUser::ensure()?;
    environment.extend(user.environment());
    match Delegated::create(&user) {
        Ok(made) => {
            environment.push(made.environment());
            *delegated = Some(made);
            Ok(Outcome::Passed)
        }
        // A container's cgroups are often read-only; that is no fault of the project.
        Err(error) => Ok(Outcome::NotChecked(format!("no delegated cgroups: {error:#}"))),
    }
}

/// Takes away what the tests were given. What they left in it is a failure.
fn leftovers(delegated: Option<Delegated>, engines: Option<Engines>) -> Result<Outcome> {
    let removed = delegated.map_or(Ok(()), Delegated::remove);
    if let Some(engines) = engines {
        let left = engines.left();
        engines.end()?;
        let left = left?;
        ensure!(left.is_empty(), "the tests left containers behind: {}", left.join(", "));
    }
    removed.map(|()| Outcome::Passed)
}

fn tests(
    options: &Options,
    environment: &[(String, String)],
    left_out: &mut LeftOut,
) -> Result<Outcome> {
    let has_nextest =
        command::succeeds(host::cargo()?.args(["nextest", "--version"]), Duration::from_secs(30));
    let mut cargo = host::cargo()?;
    if has_nextest {
        cargo.args(["nextest", "run", "--workspace", "--no-fail-fast"]);
    } else {
        eprintln!("cargo-nextest is not installed: using `cargo test`");
        cargo.args(["test", "--workspace", "--tests", "--no-fail-fast"]);
    }
    cargo.envs(environment.iter().cloned());
    let mut limit = TESTS_LIMIT;
    if options.effort == Effort::Soak {
        limit = SOAK_LIMIT;
        cargo.env("BELLJAR_TEST_SOAK", "1").env("PROPTEST_CASES", "20000");
    }
    cargo.args(&options.runner_arguments);
    if options.effort == Effort::Soak {
        if has_nextest {
            cargo.args(["--run-ignored", "all"]);
        } else {
            cargo.args(["--", "--include-ignored"]);
        }
    }
    LeftOut::forget_older()?;
    let ended = command::check(&mut cargo, limit);
    left_out.read()?;
    ended.map(|()| Outcome::Passed)
}

fn cargo_check(arguments: &[&str]) -> Result<Outcome> {
    let mut cargo: Command = host::cargo()?;
    command::check(cargo.args(arguments), CHECK_LIMIT)?;
    Ok(Outcome::Passed)
}

#[cfg(test)]
mod tests_of_options {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn what_follows_the_dashes_goes_to_the_runner() {
        let options = parse(&words("--soak --no-guest -- -E test(jail) --soak")).unwrap();
        assert!(options.scope == Scope::NoGuest && options.effort == Effort::Soak);
        assert_eq!(options.runner_arguments, words("-E test(jail) --soak"));
    }

    #[test]
    fn contradictions_and_unknown_options_are_refused() {
        assert!(parse(&words("--no-guest --guest-only")).is_err());
        assert!(parse(&words("--quick")).is_err());
        assert!(parse(&words("--guest-only")).is_ok());
    }

    #[test]
    fn only_the_own_word_for_a_new_machine_is_taken_out() {
        let given = words("--fresh --no-guest -- --fresh x");
        assert!(parse(&given).unwrap().machine == Machine::Fresh);
        let passed_on = without_fresh(&given);
        assert_eq!(passed_on, words("--no-guest -- --fresh x"));
        assert!(parse(&passed_on).unwrap().machine == Machine::This);
    }
}

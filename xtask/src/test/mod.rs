//! `cargo xtask test`: everything that must hold, from a clean checkout, with one command.

mod agents;
mod apparmor;
mod delegated;
mod dependencies;
mod doc_tests;
mod flaky;
mod left_out;
mod must_work;
mod no_jail;
mod on_backends;
pub(crate) mod packages;
mod remote_launcher;
mod report;
mod runner_report;
mod user;

use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Result, ensure};
use belljar::spec::env;
use belljar_testkit::RealAgent;

use self::delegated::Delegated;
pub(crate) use self::delegated::remove_tree as remove_cgroup;
pub(crate) use self::dependencies::built_crates;
use self::left_out::Strict;
pub(crate) use self::must_work::MustWork;
pub(crate) use self::report::Outcome;
pub(crate) use self::report::Report;
use self::runner_report::RunnerReport;
pub(crate) use self::user::TestUser;
use crate::artifacts::{self, Artifacts, Profile};
use crate::engines::{self, Engine, Engines};
use crate::scratch::Scratch;
use crate::{check, command, fresh, guest, host};

/// A test that hangs must not hang the whole.
const TESTS_LIMIT: Duration = Duration::from_secs(45 * 60);
const SOAK_LIMIT: Duration = Duration::from_secs(3 * 60 * 60);
/// Property tests try the same cases each time, so that a failure is one of the change that is tested. `--soak` looks
/// for new ones.
const PROPERTY_SEED: &str = "20261118";
const CHECK_LIMIT: Duration = Duration::from_secs(15 * 60);

#[derive(Debug, clap::Args)]
pub(crate) struct TestOptions {
    /// Only this part, which nothing else runs
    #[arg(value_enum, conflicts_with_all = ["no_guest", "guest_only", "soak"])]
    part: Option<Part>,
    /// On a new machine, in a tree that debootstrap makes (Debian, root)
    #[arg(long)]
    fresh: bool,
    /// Without the virtual machine
    #[arg(long)]
    no_guest: bool,
    /// Only the virtual machine
    #[arg(long, conflicts_with = "no_guest")]
    guest_only: bool,
    /// Also the ignored tests, and many more cases of property tests
    #[arg(long)]
    soak: bool,
    /// Arguments of the test runner, for example `-- -E 'test(exit_code)'`
    #[arg(last = true, value_name = "NEXTEST-ARGS")]
    runner_arguments: Vec<String>,
}

/// A part of the tests that is run by its name only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The real agents from npm, against a local model service
    Agents,
}

pub(crate) fn main(options: &TestOptions) -> Result<ExitCode> {
    if options.fresh {
        // The first argument is the name of the command.
        let given: Vec<String> = std::env::args().skip(2).collect();
        return fresh::run(&without_fresh(&given));
    }
    let mut report = Report::new();
    if let Some(Part::Agents) = options.part {
        agents::run(options, &mut report);
        print!("{}", report.summary());
        return Ok(if report.all_passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    report.step("packages", packages::step);
    if options.guest_only {
        report.step("guest", || guest::step(None));
    } else {
        let artifacts = on_the_host(options, &mut report);
        if !options.no_guest {
            report.step("guest", || guest::step(artifacts.as_ref()));
        }
    }
    print!("{}", report.summary());
    Ok(if report.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The arguments for the test on the new machine. Those of the test runner are unchanged.
fn without_fresh(arguments: &[String]) -> Vec<String> {
    let own = arguments.iter().position(|one| one == "--").unwrap_or(arguments.len());
    let (own, runner) = arguments.split_at(own);
    own.iter().filter(|one| *one != "--fresh").chain(runner).cloned().collect()
}

/// `cargo xtask dependencies`: that step alone.
pub(crate) fn dependencies() -> Result<ExitCode> {
    dependencies::step().map(|_| ExitCode::SUCCESS)
}

fn on_the_host(options: &TestOptions, report: &mut Report) -> Option<Artifacts> {
    report.step("fmt", || cargo_check(&["fmt", "--all", "--check"]));
    report.step("clippy", || {
        cargo_check(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
    });
    report.step("dependencies", dependencies::step);
    check::steps(report);
    report.step("clippy without the jail", no_jail::check);
    let mut without_jail = None;
    report.step("build without the jail", || no_jail::build(&mut without_jail));
    let mut remote = None;
    report.step("build with the remote backend", || remote_launcher::build(&mut remote));

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
        let launcher = remote.as_ref().map(remote_launcher::launcher);
        environment.extend(launcher.map(|path| (env::TEST_REMOTE.to_owned(), path)));
        environment.extend(path_with_unpacked());
        scratch = Some(directory);
        rootless_surroundings(&mut environment, &mut delegated)
    });
    report.step("AppArmor parser", || apparmor::step(&mut environment));
    let mut must_work = MustWork::asked_for();
    let strict = if must_work.is_empty() { Strict::No } else { Strict::Yes };
    let mut engines = None;
    report.step("engines", || engines::step(&Engine::ALL, &must_work, &mut engines));
    must_work.add_what_runs(engines.as_ref());
    environment.extend(must_work.environment());
    environment.extend(engines.iter().flat_map(Engines::environment));
    for (name, value) in &environment {
        eprintln!("    {name}={value}");
    }
    let mut runner = RunnerReport::default();
    report.step("tests", || tests(options, &environment, &mut runner));
    report.step("the jail's tests on other backends", || {
        on_backends::step(engines.as_ref(), &environment, &mut runner)
    });
    report.step("doc tests", || doc_tests::step(&environment));
    report.step("left out", || Ok(runner.left_out.verdict(strict)));
    report.step("flaky", || Ok(runner.flaky.verdict()));
    report.step("leftovers", || leftovers(delegated, engines));
    drop((scratch, without_jail, remote));
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

fn has_nextest() -> Result<bool> {
    let limit = Duration::from_secs(30);
    Ok(command::succeeds(host::cargo()?.args(["nextest", "--version"]), limit))
}

fn tests(
    options: &TestOptions,
    environment: &[(String, String)],
    runner: &mut RunnerReport,
) -> Result<Outcome> {
    let has_nextest = has_nextest()?;
    let mut cargo = host::cargo()?;
    if has_nextest {
        cargo.args(["nextest", "run", "--workspace", "--no-fail-fast"]);
    } else {
        eprintln!("cargo-nextest is not installed: using `cargo test`");
        cargo.args(["test", "--workspace", "--tests", "--no-fail-fast"]);
    }
    cargo.envs(environment.iter().cloned());
    let mut limit = TESTS_LIMIT;
    if options.soak {
        limit = SOAK_LIMIT;
        cargo.env("BELLJAR_TEST_SOAK", "1").env("PROPTEST_CASES", "20000");
        if has_nextest {
            cargo.args(["--retries", "0"]);
        }
    } else {
        cargo.env("PROPTEST_RNG_SEED", PROPERTY_SEED);
    }
    cargo.args(&options.runner_arguments);
    if options.soak {
        if has_nextest {
            cargo.args(["--run-ignored", "all"]);
        } else {
            cargo.args(["--", "--include-ignored"]);
            // Nextest leaves them out by its configuration.
            cargo.args(RealAgent::ALL.map(|agent| format!("--skip=real_{}", agent.name())));
        }
    }
    RunnerReport::forget_older()?;
    let ended = command::check(&mut cargo, limit);
    runner.read()?;
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
    use crate::parsed;

    fn list(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn what_follows_the_dashes_goes_to_the_runner() {
        let options: TestOptions = parsed("--soak --no-guest -- -E test(jail) --soak").unwrap();
        assert!(options.no_guest && options.soak && !options.fresh);
        assert_eq!(options.runner_arguments, list("-E test(jail) --soak"));
    }

    #[test]
    fn contradictions_and_unknown_options_are_refused() {
        assert!(parsed::<TestOptions>("--no-guest --guest-only").is_err());
        assert!(parsed::<TestOptions>("--quick").is_err());
        assert!(parsed::<TestOptions>("--guest-only").is_ok());
        assert!(parsed::<TestOptions>("agents --soak").is_err());
        assert!(parsed::<TestOptions>("agent").is_err());
    }

    #[test]
    fn a_part_is_named_and_can_be_narrowed() {
        let options: TestOptions = parsed("agents -- -E test(real_codex)").unwrap();
        assert_eq!(options.part, Some(Part::Agents));
        assert_eq!(options.runner_arguments, list("-E test(real_codex)"));
        assert_eq!(without_fresh(&list("--fresh agents")), list("agents"));
        assert_eq!(parsed::<TestOptions>("").unwrap().part, None);
    }

    #[test]
    fn only_the_option_of_the_command_itself_is_removed() {
        let given = "--fresh --no-guest -- --fresh x";
        assert!(parsed::<TestOptions>(given).unwrap().fresh);
        let passed_on = without_fresh(&list(given));
        assert_eq!(passed_on, list("--no-guest -- --fresh x"));
        assert!(!parsed::<TestOptions>(&passed_on.join(" ")).unwrap().fresh);
    }
}

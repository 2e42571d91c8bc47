//! The jail's own tests once more on other backends, container engines and `belljar-remote`: one behaviour on each.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use belljar::spec::env::{TEST_LEASE_MS, TEST_ON, TEST_REMOTE};
use belljar_testkit::REMOTE_LEASE_MS;

use super::report::Outcome;
use super::runner_report::RunnerReport;
use crate::engines::Engines;
use crate::{command, host};

const LIMIT: Duration = Duration::from_secs(15 * 60);

/// The life of a run, its commands, its streams and its ends: integration test and module.
const MODULES: Modules = &[
    ("cli", "copy"),
    ("cli", "exec"),
    ("cli", "life"),
    ("fault", "life"),
    ("jail", "exit"),
    ("jail", "life"),
    ("jail", "streams"),
    ("jail", "terminal"),
    ("life", "supervisor"),
];

/// The part for an ordinary user with a belljar that has no jail. In the other modules tests start belljar themselves,
/// as root, and every exit code takes two minutes.
const NO_JAIL_MODULES: Modules =
    &[("cli", "copy"), ("cli", "exec"), ("cli", "life"), ("jail", "life"), ("jail", "terminal")];

type Modules = &'static [(&'static str, &'static str)];

/// One more pass of the tests.
struct Pass {
    /// What `BELLJAR_TEST_ON` names.
    name: &'static str,
    needs: Needs,
    modules: Modules,
    /// Tests that mean nothing there: integration test, module, function, and why. Each is printed.
    not_applicable: &'static [(&'static str, &'static str, &'static str, &'static str)],
}

enum Needs {
    Engine(&'static str),
    /// What the variable names, and root.
    Launcher(&'static str),
}

const PASSES: &[Pass] = &[
    Pass { name: "docker", needs: Needs::Engine("docker"), modules: MODULES, not_applicable: &[] },
    Pass { name: "podman", needs: Needs::Engine("podman"), modules: MODULES, not_applicable: &[] },
    Pass {
        name: "docker-no-jail",
        needs: Needs::Engine("docker"),
        modules: NO_JAIL_MODULES,
        not_applicable: &[],
    },
    Pass {
        name: "remote",
        needs: Needs::Launcher(TEST_REMOTE),
        modules: MODULES,
        not_applicable: NOT_REMOTE,
    },
];

/// Tests that mean nothing where the sandbox is on another machine.
const NOT_REMOTE: &[(&str, &str, &str, &str)] = &[(
    "jail",
    "terminal",
    "a_person_is_told_the_run_and_what_is_unusual",
    "nothing is mounted there, so no clause is weaker",
)];

pub(super) fn step(
    engines: Option<&Engines>,
    environment: &[(String, String)],
    runner: &mut RunnerReport,
) -> Result<Outcome> {
    let here: Vec<&str> =
        engines.iter().flat_map(|engines| engines.running()).map(|engine| engine.name()).collect();
    let mut missing = Vec::new();
    for pass in PASSES {
        let is_there = match pass.needs {
            Needs::Engine(engine) => here.contains(&engine),
            Needs::Launcher(variable) => {
                host::is_root() && environment.iter().any(|(name, _)| name == variable)
            }
        };
        if !is_there {
            missing.push(pass.name); // where it must work, that was reported when it did not start
            continue;
        }
        pass.run(environment, runner)?;
    }
    Ok(match missing.as_slice() {
        [] => Outcome::Passed,
        missing => Outcome::NotChecked(format!("not here: {}", missing.join(", "))),
    })
}

impl Pass {
    fn run(&self, environment: &[(String, String)], runner: &mut RunnerReport) -> Result<()> {
        eprintln!("    on {}; {} tests do not apply there", self.name, self.not_applicable.len());
        for (test, module, function, why) in self.not_applicable {
            eprintln!("    not on {}: {test} {module}::{function}: {why}", self.name);
            let file = host::workspace()?.join(format!("crates/belljar/tests/{test}/{module}.rs"));
            let text = std::fs::read_to_string(&file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            ensure!(text.contains(&format!("fn {function}()")), "there is no {module}::{function}");
        }
        let mut cargo = host::cargo()?;
        cargo.args(["nextest", "run", "-p", "belljar", "--no-fail-fast", "-E", &self.filter()]);
        cargo.envs(environment.iter().cloned()).env(TEST_ON, self.name);
        if let Needs::Launcher(_) = self.needs {
            cargo.env(TEST_LEASE_MS, REMOTE_LEASE_MS); // also for sandboxes that a test starts by itself
        }
        RunnerReport::forget_older()?;
        let ended = command::check(&mut cargo, LIMIT);
        runner.read()?;
        ended
    }

    /// In the language of nextest.
    fn filter(&self) -> String {
        let modules = self.modules.iter();
        let each = modules.map(|(test, module)| format!("(binary({test}) & test(/^{module}::/))"));
        let mut filter = format!("({})", each.collect::<Vec<_>>().join(" | "));
        for (test, module, function, _) in self.not_applicable {
            filter.push_str(&format!(" & not (binary({test}) & test(={module}::{function}))"));
        }
        filter
    }
}

//! The jail's own tests once more, with every run in a container: one behaviour on every backend.

use std::time::Duration;

use anyhow::Result;
use belljar::spec::env::TEST_ON;

use super::left_out::LeftOut;
use super::report::Outcome;
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

/// What `BELLJAR_TEST_ON` names, the engine that it needs, and the modules.
const PASSES: &[(&str, &str, Modules)] = &[
    ("docker", "docker", MODULES),
    ("podman", "podman", MODULES),
    ("docker-no-jail", "docker", NO_JAIL_MODULES),
];

pub(super) fn step(
    engines: Option<&Engines>,
    environment: &[(String, String)],
    left_out: &mut LeftOut,
) -> Result<Outcome> {
    let here: Vec<&str> =
        engines.iter().flat_map(|engines| engines.running()).map(|engine| engine.name()).collect();
    let mut missing = Vec::new();
    for (name, engine, modules) in PASSES {
        if !here.contains(engine) {
            missing.push(*name); // where it must work, that was reported when it did not start
            continue;
        }
        eprintln!("    on {name}");
        let mut cargo = host::cargo()?;
        cargo.args(["nextest", "run", "-p", "belljar", "--no-fail-fast", "-E", &filter(modules)]);
        cargo.envs(environment.iter().cloned()).env(TEST_ON, name);
        LeftOut::forget_older()?;
        let ended = command::check(&mut cargo, LIMIT);
        left_out.read()?;
        ended?;
    }
    Ok(match missing.as_slice() {
        [] => Outcome::Passed,
        missing => Outcome::NotChecked(format!("not here: {}", missing.join(", "))),
    })
}

/// In the language of nextest.
fn filter(modules: Modules) -> String {
    let each =
        modules.iter().map(|(test, module)| format!("(binary({test}) & test(/^{module}::/))"));
    each.collect::<Vec<_>>().join(" | ")
}

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
const MODULES: &[(&str, &str)] = &[
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

const ENGINES: &[&str] = &["docker", "podman"];

pub(super) fn step(
    engines: Option<&Engines>,
    environment: &[(String, String)],
    left_out: &mut LeftOut,
) -> Result<Outcome> {
    let here: Vec<&str> =
        engines.iter().flat_map(|engines| engines.running()).map(|engine| engine.name()).collect();
    let mut missing = Vec::new();
    for engine in ENGINES {
        if !here.contains(engine) {
            missing.push(*engine); // where it must work, that was reported when it did not start
            continue;
        }
        eprintln!("    on {engine}");
        let mut cargo = host::cargo()?;
        cargo.args(["nextest", "run", "-p", "belljar", "--no-fail-fast", "-E", &filter()]);
        cargo.envs(environment.iter().cloned()).env(TEST_ON, engine);
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
fn filter() -> String {
    let each =
        MODULES.iter().map(|(test, module)| format!("(binary({test}) & test(/^{module}::/))"));
    each.collect::<Vec<_>>().join(" | ")
}

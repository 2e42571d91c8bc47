//! The jail's own tests once more, with every run in a container: one behaviour on every backend.

use std::time::Duration;

use anyhow::Result;
use belljar::spec::env::TEST_ON;

use super::left_out::LeftOut;
use super::report::Outcome;
use crate::engines::Engines;
use crate::{command, host};

const LIMIT: Duration = Duration::from_secs(15 * 60);

/// The life of a run, its commands, its streams and its ends.
const FILES: &[&str] = &[
    "cli_copy",
    "cli_exec",
    "cli_life",
    "fault_life",
    "jail_exit",
    "jail_life",
    "jail_streams",
    "jail_terminal",
    "life_supervisor",
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
            missing.push(*engine); // where it must work, that was said when it did not start
            continue;
        }
        eprintln!("    on {engine}");
        let mut cargo = host::cargo()?;
        cargo.args(["nextest", "run", "-p", "belljar", "--no-fail-fast"]);
        for file in FILES {
            cargo.args(["--test", file]);
        }
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

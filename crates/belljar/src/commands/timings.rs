//! `run --timings`: a table of where the time of a run went.

use std::time::Duration;

use belljar::run::LaunchError;
use belljar::run::timings::{self, Phase, Timings};

use crate::logging;
use crate::report::{self, BOLD, DIM};

pub(super) fn start() {
    timings::start(logging::process_started());
}

/// Another process starts a run that is detached, kept or an agent's.
pub(super) fn only_foreground() -> LaunchError {
    LaunchError::Conflict {
        option: "--timings".to_owned(),
        other: "-d, --keep, --reuse or an agent".to_owned(),
        why: "it is about a command in the foreground; their times are in the run's debug.log, with BELLJAR_LOG=debug"
            .to_owned(),
    }
}

/// To stderr: stdout is the command's.
pub(super) fn print() {
    if let Some(timings) = timings::take() {
        report::eprintln(table(&timings).trim_end());
    }
}

fn table(timings: &Timings) -> String {
    let mut text = String::new();
    for phase in Phase::ALL {
        let (name, what) = (phase.name(), phase.describe());
        let took = milliseconds(timings.of(phase));
        text.push_str(&format!("{BOLD}{name:<12}{BOLD:#}{took}  {DIM}{what}{DIM:#}\n"));
    }
    text.push_str(&format!("{BOLD}{:<12}{BOLD:#}{}\n", "total", milliseconds(timings.total())));
    text
}

fn milliseconds(time: Duration) -> String {
    format!("{:>11.2} ms", time.as_secs_f64() * 1000.0)
}

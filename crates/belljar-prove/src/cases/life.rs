//! Living longer than the run.

use std::time::Duration;

use belljar_spec::Clause;
use rustix::process::{Pid, Signal, kill_process};

use crate::case::{Case, Severity, Verdict};
use crate::stage::{Run, Running, Stage, StageError, Unprotected, wait_until_none};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "life.ignore-signals",
        attack: "ignore every request to stop",
        clause: Clause::LimitTime,
        severity: Severity::High,
        run: ignore_signals,
    },
    Case {
        name: "life.daemonize",
        attack: "leave a process in a session of its own behind",
        clause: Clause::LifeBound,
        severity: Severity::Critical,
        run: daemonize,
    },
];

/// An argument that no other process has.
fn word(stage: &Stage) -> Result<String, StageError> {
    let place = stage.place()?;
    let name =
        place.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok(format!("belljar-prove-{}-{name}", std::process::id()))
}

fn ignore_signals(stage: &Stage) -> Result<Verdict, StageError> {
    let (workspace, word) = (stage.workspace()?, word(stage)?);
    let run = ["--timeout", "500ms", "--stop-timeout", "500ms"]
        .iter()
        .fold(Run::of(&workspace, "stubborn").args(["30000", &word]), |run, flag| run.flag(flag));
    let seen = stage.inside(&run)?;
    let left = wait_until_none(&word, Duration::from_secs(1));
    if !left.is_empty() {
        return Ok(Verdict::broke(format!("{} processes are left", left.len())));
    }
    if seen.code != Some(124) {
        return Ok(Verdict::broke(format!("it ended with {}, not with 124", seen.end())));
    }
    // Grace, a second, and what a busy machine takes to start it.
    if seen.took > Duration::from_secs(5) {
        return Ok(Verdict::broke(format!("it ended after {} ms", seen.took.as_millis())));
    }
    let mut control = stage.control(Unprotected::Directly, ["stubborn", "30000", &word]);
    let mut control = Running::start(&mut control, "the control")?;
    control.hear("ready")?;
    signal(control.pid(), Signal::TERM);
    std::thread::sleep(Duration::from_millis(300));
    if !control.is_alive() {
        return Ok(Verdict::no_control("outside, it ended by itself"));
    }
    Ok(Verdict::held(format!("124 after {} ms, nothing left", seen.took.as_millis())))
}

fn daemonize(stage: &Stage) -> Result<Verdict, StageError> {
    let (workspace, word) = (stage.workspace()?, word(stage)?);
    let seen = stage.inside(&Run::of(&workspace, "daemonize").args(["20000", &word]))?;
    seen.told()?;
    let left = wait_until_none(&word, Duration::from_secs(1));
    if !left.is_empty() {
        left.iter().for_each(|pid| signal(*pid, Signal::KILL));
        return Ok(Verdict::broke(format!("{} processes are left", left.len())));
    }
    stage.outside(Unprotected::Directly, ["daemonize", "20000", &word])?.told()?;
    let left = wait_until_none(&word, Duration::from_millis(100));
    left.iter().for_each(|pid| signal(*pid, Signal::KILL));
    let stayed = wait_until_none(&word, Duration::from_secs(2));
    if left.is_empty() || !stayed.is_empty() {
        return Ok(Verdict::no_control("outside, no process was left either"));
    }
    Ok(Verdict::held("no process was left"))
}

/// Only processes that have our word among their arguments, or are our own children, come here.
fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal); // gone already is as good
    }
}

//! Attacks that try to outlive the run.

use std::path::Path;
use std::time::{Duration, Instant};

use belljar_spec::Clause;
use rustix::process::{Pid, Signal, kill_process};

use crate::case::{Case, Severity, Verdict};
use crate::testbed::{Run, Running, TestBed, TestBedError, Unprotected, wait_until_none};

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

/// What a probe that counts has counted so far.
fn beats(file: &Path) -> u64 {
    std::fs::read_to_string(file).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// It counts in a file while it lives, which the host sees also where it sees no process.
fn still_counts(file: &Path) -> bool {
    let before = beats(file);
    // A busy machine gets to it later.
    (0..25).any(|_| {
        std::thread::sleep(Duration::from_millis(200));
        beats(file) != before
    })
}

/// The verdict if a process of the run is left, or was never there.
fn left_behind(marker: &str, file: &Path) -> Option<Verdict> {
    if !file.exists() {
        return Some(Verdict::no_control("inside, it never got to work"));
    }
    let left = wait_until_none(marker, Duration::from_secs(1));
    if !left.is_empty() {
        left.iter().for_each(|pid| signal(*pid, Signal::KILL));
        return Some(Verdict::broke(format!("{} processes are left", left.len())));
    }
    still_counts(file).then(|| Verdict::broke("it still counts in its file"))
}

fn ignore_signals(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let (workspace, marker) = (testbed.workspace()?, testbed.unique_name()?);
    let probe = Run::of(&workspace, "stubborn").args(["30000", &marker, "/workspace/beats"]);
    let run = ["--timeout", "500ms", "--stop-timeout", "500ms"]
        .iter()
        .fold(probe, |run, flag| run.flag(flag));
    let mut running = testbed.start_inside(&run)?;
    // From its first output on: the start does not count.
    let was_ready = running.wait_for_line("ready").is_ok();
    let since = Instant::now();
    let seen = running.end()?.started()?;
    let took = if was_ready { since.elapsed() } else { seen.took };
    if let Some(verdict) = left_behind(&marker, &workspace.join("beats")) {
        return Ok(verdict);
    }
    if seen.code != Some(124) {
        return Ok(Verdict::broke(format!("it ended with {}, not with 124", seen.end())));
    }
    // Limit, grace, a second, and what a busy machine takes to clean up.
    if took > Duration::from_secs(5) {
        return Ok(Verdict::broke(format!("it ended after {} ms", took.as_millis())));
    }
    let beats = testbed.place()?.join("beats");
    let argv = ["stubborn".as_ref(), "30000".as_ref(), marker.as_ref(), beats.as_os_str()];
    let mut control =
        Running::start(&mut testbed.control(Unprotected::Directly, argv), "the control")?;
    control.wait_for_line("ready")?;
    signal(control.pid(), Signal::TERM);
    std::thread::sleep(Duration::from_millis(300));
    if !control.is_alive() || !still_counts(&beats) {
        return Ok(Verdict::no_control("outside, it ended by itself"));
    }
    Ok(Verdict::held(format!("124 after {} ms, nothing left", took.as_millis())))
}

fn daemonize(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let (workspace, marker) = (testbed.workspace()?, testbed.unique_name()?);
    let run = Run::of(&workspace, "daemonize").args(["20000", &marker, "/workspace/beats"]);
    testbed.inside(&run)?.report()?;
    if let Some(verdict) = left_behind(&marker, &workspace.join("beats")) {
        return Ok(verdict);
    }
    let beats = testbed.place()?.join("beats");
    let argv = ["daemonize".as_ref(), "20000".as_ref(), marker.as_ref(), beats.as_os_str()];
    testbed.outside(Unprotected::Directly, argv)?.report()?;
    let counts = still_counts(&beats);
    let left = wait_until_none(&marker, Duration::from_millis(100));
    left.iter().for_each(|pid| signal(*pid, Signal::KILL));
    let stayed = wait_until_none(&marker, Duration::from_secs(2));
    if left.is_empty() || !stayed.is_empty() || !counts {
        return Ok(Verdict::no_control("outside, no process was left either"));
    }
    Ok(Verdict::held("no process was left"))
}

/// Only for processes with this case's argument, and for child processes.
fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal); // gone already is as good
    }
}

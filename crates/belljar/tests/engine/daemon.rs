//! An engine that dies, is restarted or hangs while a run lives in it: the run is lost and says so, and
//! nothing of it stays.

use std::time::{Duration, Instant};

use belljar::spec::env::TEST_LEASE_MS;
use belljar_testkit::{
    Held, Lab, Live, PrivateDocker, marker, processes_with, until, wait_until_gone,
};

/// A short lease: nobody waits two minutes for a test.
const LEASE: &str = "4000";

fn sleeper(lab: &Lab, marker: &str) -> Live {
    let script = format!("(setsid sleep {marker} &); echo started; exec sleep {marker}");
    let run = lab.run(["--result", "result.json", "--", "sh", "-c", &script]);
    let live = run.env(TEST_LEASE_MS, LEASE).spawn();
    live.wait_for_output("started");
    live
}

fn result(lab: &Lab) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(lab.work().join("result.json")).unwrap()).unwrap()
}

/// Reason, and whose end it was: a program that was killed has 137 too.
fn assert_lost(lab: &Lab) {
    let result = result(lab);
    assert_eq!(result["reason"], "lost", "{result:#}");
    assert_eq!(result["exit"]["source"], "sandbox", "{result:#}");
}

fn assert_nothing_left(lab: &Lab) {
    lab.sh(&[], "true").expect(0); // and it works again
    assert_eq!(lab.reconcile().left, Vec::<String>::new());
    assert_eq!(lab.live(), Vec::<String>::new());
    assert_eq!(lab.containers(), Vec::<Held>::new());
    let stage = std::path::Path::new("/run/belljar/mounts");
    for run in lab.runs() {
        assert!(!stage.join(&run).exists(), "the stage of {run} is still there");
    }
    lab.assert_all_sound();
}

#[test]
fn a_killed_engine_loses_the_run_and_nothing_lives_on() {
    let Some(mut docker) = PrivateDocker::start() else { return };
    let lab = docker.lab();
    let marker = marker();
    let live = sleeper(&lab, &marker);
    docker.kill();
    let done = live.done();
    done.expect(137).says(&["lost"]);
    assert_lost(&lab);
    wait_until_gone(Duration::from_secs(10), &marker, &lab.exe);
    docker.start_again();
    assert_nothing_left(&lab);
}

/// The launcher is gone too, so nobody is left who could end it: the lease does.
#[test]
fn without_engine_and_launcher_the_lease_ends_the_run() {
    let Some(mut docker) = PrivateDocker::start() else { return };
    let lab = docker.lab();
    let marker = marker();
    let live = sleeper(&lab, &marker);
    docker.kill();
    // At once, before it has seen that the channel is gone.
    live.signal(rustix::process::Signal::KILL);
    wait_until_gone(Duration::from_secs(30), &marker, &lab.exe);
    docker.start_again();
    assert_nothing_left(&lab);
}

#[test]
fn an_engine_that_is_stopped_in_order_loses_the_run() {
    let Some(mut docker) = PrivateDocker::start() else { return };
    let lab = docker.lab();
    let marker = marker();
    let live = sleeper(&lab, &marker);
    docker.stop();
    live.done().expect(137);
    assert_lost(&lab);
    wait_until_gone(Duration::from_secs(10), &marker, &lab.exe);
    docker.start_again();
    assert_nothing_left(&lab);
}

/// A run that began before keeps its deadline, and a new one is refused in time.
#[test]
fn an_engine_that_hangs_holds_up_no_deadline() {
    let Some(docker) = PrivateDocker::start() else { return };
    let lab = docker.lab();
    let marker = marker();
    let script = format!("echo started; sleep {marker}");
    // Long enough for what comes before the control, on a busy machine.
    let run = lab.run(["--timeout", "8", "--stop-timeout", "1", "--", "sh", "-c", &script]);
    let live = run.spawn();
    live.wait_for_output("started");
    docker.freeze();
    let launcher = live.pid();
    let inside = || processes_with(&marker).into_iter().filter(|pid| *pid != launcher).count();
    assert!(inside() > 0, "the control: it lives");
    assert!(until(Duration::from_secs(30), || inside() == 0), "its deadline was not kept");
    let begun = Instant::now();
    let refused = lab.sh(&[], "true");
    refused.expect(125).says(&["did not answer within 5 seconds"]);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    docker.thaw();
    live.done().expect(124);
    assert_nothing_left(&lab);
}

/// Killed while it starts: at every moment either nothing is there, or it is found again.
#[test]
fn a_launcher_killed_at_any_moment_of_a_start_leaves_nothing() {
    let Some(docker) = PrivateDocker::start() else { return };
    let lab = docker.lab();
    lab.sh(&[], "true").expect(0); // the control, and the copy of belljar is made
    let marker = marker();
    let script = format!("sleep {marker}");
    for step in 0..12 {
        let live = lab.run(["--", "sh", "-c", &script]).spawn();
        std::thread::sleep(Duration::from_millis(step * 25));
        live.signal(rustix::process::Signal::KILL);
        drop(live);
    }
    assert!(until(Duration::from_secs(20), || {
        lab.reconcile();
        lab.live().is_empty() && lab.containers().is_empty() && processes_with(&marker).is_empty()
    }));
    assert_nothing_left(&lab);
}

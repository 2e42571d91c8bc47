//! A run lives no longer than its launcher, and ends the way it was told to.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use belljar_testkit::{
    Input, Lab, alive, cgroups_named, each_actor, in_the_guest, marker, processes_with, send,
    until, wait_until_gone,
};
use rustix::process::Signal;
use serde_json::Value;

/// What a launcher that was killed may leave: its entry, its directory, empty cgroups.
fn assert_only_a_trace_is_left(lab: &Lab, marker: &str) {
    wait_until_gone(Duration::from_secs(if in_the_guest() { 5 } else { 1 }), marker, &lab.exe);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let home = lab.home();
    assert!(!mounts.contains(home.to_str().unwrap()), "a mount of the run is left: {mounts}");
    for id in lab.live().iter().chain(&lab.runs()) {
        assert!(!mounts.contains(id.as_str()), "a mount of run {id} is left");
    }
    for group in cgroups_named(&lab.live()) {
        // A process leaves its group a moment after its end; where another process cleans up, the group goes too.
        let procs = || fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        let empty = until(Duration::from_secs(1), || procs().is_empty());
        assert!(empty, "{} still holds {:?}", group.display(), procs());
    }
}

/// The next belljar takes the trace away, and says in the record how the run ended.
fn assert_the_next_one_tidies_up(lab: &Lab) {
    let lost = lab.live();
    lab.run(["--", "true"]).done().expect(0);
    assert_eq!(lab.live(), Vec::<String>::new(), "an entry of a dead run is left");
    assert_eq!(cgroups_named(&lost), Vec::<PathBuf>::new());
    for id in lost {
        if lab.home().join("runs").join(&id).join("run.json").exists() {
            let record = lab.record(&id);
            assert_eq!(record["outcome"]["reason"], "lost", "{record:#}");
        } else {
            assert!(
                !lab.home().join("runs").join(&id).exists(),
                "a directory without a record is left: {id}"
            );
        }
    }
}

#[test]
fn a_launcher_killed_at_any_moment_leaves_nothing_that_lives() {
    each_actor(|lab| {
        // Most of it where the processes are being made. The guest is emulated, and slower by much.
        let (tries, step) = if in_the_guest() {
            (12, Duration::from_millis(30))
        } else {
            (80, Duration::from_micros(500))
        };
        for attempt in 0..tries {
            let marker = marker();
            let script = format!("(setsid sleep {marker} &); trap '' TERM HUP INT; sleep {marker}");
            let live = lab.run(["--", "sh", "-c", &script]).spawn();
            std::thread::sleep(step * attempt);
            live.signal(Signal::KILL);
            drop(live);
            assert_only_a_trace_is_left(lab, &marker);
        }
        assert_the_next_one_tidies_up(lab);
    });
}

#[test]
fn a_launcher_killed_while_the_command_runs_takes_it_along() {
    each_actor(|lab| {
        let marker = marker();
        let script = format!("(setsid sleep {marker} &); echo ready; exec sleep {marker}");
        let live = lab
            .run(["-m", "200m", "--waive", "limit.memory=a test", "--", "sh", "-c", &script])
            .spawn();
        live.wait_for_output("ready");
        // The control: all of it is there before.
        assert!(until(Duration::from_secs(5), || processes_with(&format!("sleep\0{marker}"))
            .len()
            == 2));
        assert_eq!(lab.live().len(), 1);
        live.signal(Signal::KILL);
        drop(live);
        assert_only_a_trace_is_left(lab, &marker);
        assert_eq!(lab.live().len(), 1, "the entry that leads the next one to it");
        assert_the_next_one_tidies_up(lab);
    });
}

/// Tidying up is for the dead only.
#[test]
fn a_run_that_lives_is_not_tidied_up_by_another() {
    each_actor(|lab| {
        let mut live = lab
            .run(["--", "sh", "-c", "echo ready; read line; echo $line"])
            .input(Input::Open)
            .spawn();
        live.wait_for_output("ready");
        let ids = lab.live();
        lab.run(["--", "true"]).done().expect(0);
        assert_eq!(lab.live(), ids);
        live.type_in(b"still here\n");
        let done = live.done();
        assert_eq!(done.expect(0).out(), "ready\nstill here\n");
        assert_eq!(lab.live(), Vec::<String>::new());
    });
}

fn result_of(lab: &Lab) -> Value {
    serde_json::from_slice(&fs::read(lab.work().join("result.json")).unwrap()).unwrap()
}

#[test]
fn the_first_interrupt_is_the_commands_to_answer() {
    each_actor(|lab| {
        let script =
            "trap 'echo interrupted; exit 17' INT; echo ready; while :; do sleep 0.05; done";
        let live = lab.run(["--result", "result.json", "--", "sh", "-c", script]).spawn();
        live.wait_for_output("ready");
        live.signal(Signal::INT);
        let done = live.done();
        assert_eq!(done.expect(17).out(), "ready\ninterrupted\n");
        assert_eq!(result_of(lab)["reason"], "exited");
    });
}

#[test]
fn an_interrupt_that_nobody_answers_ends_the_command() {
    each_actor(|lab| {
        let live = lab
            .run(["--result", "result.json", "--", "sh", "-c", "echo ready; exec sleep 50"])
            .spawn();
        live.wait_for_output("ready");
        live.signal(Signal::INT);
        live.done().expect(130);
        assert_eq!(result_of(lab)["exit"]["signal"], 2);
    });
}

#[test]
fn the_second_interrupt_kills() {
    each_actor(|lab| {
        let marker = marker();
        let script =
            format!("trap 'echo no' INT TERM; echo ready; while :; do sleep 0.05; done # {marker}");
        let mut live = lab.run(["--result", "result.json", "--", "sh", "-c", &script]).spawn();
        live.wait_for_output("ready");
        live.signal(Signal::INT);
        live.wait_for_output("no");
        std::thread::sleep(Duration::from_millis(200));
        assert!(live.is_running(), "the first interrupt ended a command that answers it");
        live.signal(Signal::INT);
        live.done().expect(137);
        assert_eq!(result_of(lab)["reason"], "stopped", "{:#}", result_of(lab));
        wait_until_gone(Duration::from_secs(2), &marker, &lab.exe);
    });
}

#[test]
fn to_terminate_or_hang_up_stops_the_run() {
    each_actor(|lab| {
        for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
            let marker = marker();
            let script = format!("(setsid sleep {marker} &); echo ready; exec sleep {marker}");
            let live = lab.run(["--result", "result.json", "--", "sh", "-c", &script]).spawn();
            live.wait_for_output("ready");
            live.signal(signal);
            live.done().expect(code);
            assert_eq!(result_of(lab)["reason"], "stopped", "{:#}", result_of(lab));
            wait_until_gone(Duration::from_secs(2), &marker, &lab.exe);
        }
    });
}

#[test]
fn a_command_that_will_not_stop_is_killed_after_grace() {
    each_actor(|lab| {
        let script = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
        let live = lab
            .run(["--stop-timeout", "1s", "--result", "result.json", "--", "sh", "-c", script])
            .spawn();
        live.wait_for_output("ready");
        live.signal(Signal::TERM);
        let done = live.done();
        assert!(done.took >= Duration::from_secs(1), "no grace: {done}");
        done.expect(137);
        assert_eq!(result_of(lab)["reason"], "stopped");
    });
}

/// A signal while the sandbox is still being made must not be lost, and nothing may stay.
#[test]
fn a_request_to_stop_before_the_start_is_heard() {
    each_actor(|lab| {
        for attempt in 0..20_u64 {
            let marker = marker();
            let live = lab.run(["--", "sleep", &marker]).spawn();
            std::thread::sleep(Duration::from_millis(attempt * 3));
            live.signal(Signal::TERM);
            drop_when_over(live);
            wait_until_gone(Duration::from_secs(3), &marker, &lab.exe);
        }
        lab.run(["--", "true"]).done().expect(0);
        assert_eq!(lab.live(), Vec::<String>::new());
    });
}

/// Whatever code it has: ended by the signal, refused, or stopped.
fn drop_when_over(mut live: belljar_testkit::Live) {
    assert!(until(Duration::from_secs(30), || !live.is_running()), "the request to stop was lost");
}

#[test]
fn a_killed_pid_1_is_no_success() {
    each_actor(|lab| {
        let marker = marker();
        let script = format!("echo ready; exec sleep {marker}");
        let live = lab.run(["--result", "result.json", "--", "sh", "-c", &script]).spawn();
        live.wait_for_output("ready");
        let inits = lab.inits();
        assert_eq!(inits.len(), 1, "PID 1 of the run: {inits:?}");
        send(inits[0], Signal::KILL);
        let done = live.done();
        assert_ne!(done.code(), 0, "{done}");
        assert_eq!(result_of(lab)["reason"], "lost", "{:#}", result_of(lab));
        assert_eq!(result_of(lab)["outcome"], "failed");
        wait_until_gone(Duration::from_secs(2), &marker, &lab.exe);
        assert!(!alive(inits[0]));
    });
}

/// Nothing inside may end PID 1 or make it leave, whatever it sends.
#[test]
fn signals_from_inside_do_not_reach_pid_1() {
    each_actor(|lab| {
        let script = "for s in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 17 18 19 20 24 31; do \
             kill -$s 1 2>/dev/null; done; sleep 0.2; echo alive; exit 4";
        let done = lab.sh(&[], script);
        assert_eq!(done.expect(4).out(), "alive\n");
    });
}

/// The end of the command is the end of all that it started.
#[test]
fn background_children_end_with_the_command() {
    each_actor(|lab| {
        let marker = marker();
        let script =
            format!("(setsid sleep {marker} &); setsid sleep {marker} & echo over; exit 0");
        let done = lab.sh(&[], &script);
        assert_eq!(done.expect(0).out(), "over\n");
        assert!(
            done.took < Duration::from_secs(20),
            "it waited for a child that holds stdout: {done}"
        );
        wait_until_gone(Duration::from_secs(2), &marker, &lab.exe);
    });
}

#[test]
fn many_runs_at_once_end_one_by_one() {
    each_actor(|lab| {
        let lives: Vec<_> = (0..8)
            .map(|code| lab.run(["--", "sh", "-c", &format!("sleep 0.3; exit {code}")]).spawn())
            .collect();
        for (code, live) in lives.into_iter().enumerate() {
            live.done().expect(code as i32);
        }
        assert_eq!(lab.live(), Vec::<String>::new());
        assert_eq!(lab.runs().len(), 8);
        assert_eq!(cgroups_named(&lab.runs()), Vec::<PathBuf>::new());
    });
}

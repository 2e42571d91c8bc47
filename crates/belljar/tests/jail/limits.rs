//! Limits hold for the whole tree of processes, and what cannot be held is refused by name.

use std::time::{Duration, Instant};

use belljar_testkit::{
    Actor, Input, Lab, actors, as_root, each_actor, marker, processes_with, until, wait_until_gone,
};
use serde_json::{Value, json};

const DEADLINE: &str = "1s";

fn reason_and_exit(result: &Value) -> (&str, &Value) {
    (result["reason"].as_str().unwrap(), &result["exit"])
}

#[test]
fn a_deadline_is_124_soon_after_its_time_and_nothing_survives() {
    each_actor(|lab| {
        let marker = marker();
        // Each child leaves the session and the parent, and holds on to stdout.
        let script = format!(
            "(setsid sleep {marker} &) ; (setsid sh -c 'trap \"\" TERM HUP INT; sleep {marker}' &) ; \
             echo ready; sleep {marker}"
        );
        let options = ["--timeout", DEADLINE, "--stop-timeout", "1s", "--", "sh", "-c", &script];
        let begun = Instant::now();
        let live = lab.run(options).spawn();
        live.wait_for_output("ready");
        // The control: from outside, the children can be seen.
        assert!(until(Duration::from_secs(5), || processes_with(&marker).len() >= 4));
        live.done().expect(124);
        let took = begun.elapsed();
        assert!(took >= Duration::from_secs(1), "ended before its time, after {took:?}");
        assert!(took < Duration::from_secs(15), "ended {took:?} after the start");
        wait_until_gone(Duration::from_secs(2), &marker, &lab.exe);
    });
}

#[test]
fn the_deadline_is_named_in_the_result() {
    each_actor(|lab| {
        let result = lab.sh_json(&["--timeout", DEADLINE], "echo before; sleep 60");
        let expected = json!({ "code": 124, "source": "deadline" });
        assert_eq!(reason_and_exit(&result), ("deadline", &expected), "{result:#}");
        assert_eq!(result["stdout"], "before\n");
        // The control: the same with time enough.
        let result = lab.sh_json(&["--timeout", "60s"], "sleep 0.1; exit 5");
        assert_eq!(
            reason_and_exit(&result),
            ("exited", &json!({ "code": 5, "source": "command" }))
        );
    });
}

#[test]
fn a_command_that_answers_the_request_to_stop_can_clean_up() {
    each_actor(|lab| {
        let script = "trap 'echo cleaned up; exit 0' TERM; while :; do sleep 0.05; done";
        let done = lab.sh(&["--timeout", DEADLINE, "--stop-timeout", "20s"], script);
        done.expect(124); // it was the deadline, whatever the command says then
        assert_eq!(done.out(), "cleaned up\n");
        assert!(done.took < Duration::from_secs(15), "it waited for the whole grace: {done}");
    });
}

#[test]
fn a_command_that_ignores_the_request_dies_when_grace_is_over() {
    each_actor(|lab| {
        let script = "trap '' TERM INT HUP QUIT; while :; do sleep 0.05; done";
        let done = lab.sh(&["--timeout", DEADLINE, "--stop-timeout", "1s"], script);
        done.expect(124);
        assert!(done.took >= Duration::from_secs(2), "no grace was given: {done}");
        assert!(done.took < Duration::from_secs(20), "{done}");
    });
}

/// Output that nobody reads must not keep the clock from running.
#[test]
fn a_deadline_holds_while_the_output_is_stuck() {
    let lab = Lab::me();
    let marker = marker();
    let line = format!(
        "{} run --timeout 1s --stop-timeout 1s -- sh -c 'while :; do echo {marker}; done' | sleep 6",
        lab.exe.display()
    );
    let begun = Instant::now();
    let mut shell = std::process::Command::new("sh")
        .args(["-c", &line])
        .env("BELLJAR_HOME", lab.home())
        .current_dir(lab.work())
        .spawn()
        .unwrap();
    // While the reader still sleeps, the command itself must be gone; the launcher may wait to
    // deliver what it holds.
    std::thread::sleep(Duration::from_millis(4500));
    let inside: Vec<u32> = processes_with(&marker)
        .into_iter()
        .filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with(b"sh\0-c\0while")
        })
        .collect();
    assert_eq!(inside, Vec::<u32>::new(), "the command outlived its deadline");
    shell.wait().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30));
    wait_until_gone(Duration::from_secs(2), &marker, &lab.exe);
}

/// Fills memory with what cannot be thrown away, in busybox too.
const MEMORY_BOMB: &str = "x=0123456789abcdef; while :; do x=$x$x; done";

#[test]
fn a_memory_bomb_ends_by_oom_where_memory_is_held() {
    for actor in actors().into_iter().filter(|actor| actor.holds_limits()) {
        let lab = Lab::new(actor);
        let done = lab.sh(&["--json", "-m", "64m", "--timeout", "50s"], MEMORY_BOMB);
        let result = done.json();
        let expected = json!({ "signal": 9, "source": "oom" });
        assert_eq!(reason_and_exit(&result), ("oom", &expected), "as {actor:?}: {result:#}");
        done.expect(137);
        assert_eq!(result["posture"]["limit.memory"]["status"], "enforced", "{result:#}");
        // The control: with enough of it, a smaller hunger is fine.
        lab.sh(
            &["-m", "256m"],
            "x=0123456789abcdef; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do x=$x$x; done",
        )
        .expect(0);
    }
}

/// A child that dies of hunger while the command goes on is not the command's end.
#[test]
fn a_child_that_dies_of_hunger_does_not_rename_the_commands_end() {
    for actor in actors().into_iter().filter(|actor| actor.holds_limits()) {
        let lab = Lab::new(actor);
        let script = format!("sh -c '{MEMORY_BOMB}'; echo survived with $?; exit 6");
        let result = lab.sh_json(&["-m", "64m", "--timeout", "50s"], &script);
        assert_eq!(
            reason_and_exit(&result),
            ("exited", &json!({ "code": 6, "source": "command" }))
        );
        assert_eq!(result["stdout"], "survived with 137\n", "{result:#}");
    }
}

#[test]
fn files_in_memory_count_as_memory() {
    for actor in actors().into_iter().filter(|actor| actor.holds_limits()) {
        let lab = Lab::new(actor);
        let script = "dd if=/dev/zero of=/tmp/big bs=1M count=200 2>/dev/null; echo $?";
        let result = lab.sh_json(&["-m", "64m", "--timeout", "50s"], script);
        assert_ne!(result["stdout"], "0\n", "as {actor:?}, 200 MiB fit into 64: {result:#}");
    }
}

/// How many children a shell that wants sixty of them gets.
fn children_with_limit(lab: &Lab, limit: &str) -> usize {
    let marker = marker();
    // The inner shell may give up at the first failure; what it has started stays.
    let script = format!(
        "sh -c 'i=0; while [ $i -lt 60 ]; do sleep {marker} & i=$((i+1)); done' 2>/dev/null; echo ready; read end"
    );
    let options = ["--pids-limit", limit, "--timeout", "50s", "--", "sh", "-c", &script];
    let live = lab.run(options).input(Input::Open).spawn();
    live.wait_for_output("ready");
    let name = format!("sleep\0{marker}");
    let count = || processes_with(&name).len();
    until(Duration::from_secs(10), || count() == 60 || limit == "20"); // a fork has no name of its own yet
    let seen = count();
    drop(live); // ends them all
    wait_until_gone(Duration::from_secs(5), &marker, &lab.exe);
    seen
}

#[test]
fn the_number_of_processes_is_held() {
    each_actor(|lab| {
        let few = children_with_limit(lab, "20");
        assert!(few < 20, "{few} children and their shell with a limit of 20");
        assert!(few > 5, "only {few} children with a limit of 20");
        assert_eq!(children_with_limit(lab, "200"), 60);
    });
}

#[test]
fn a_fork_bomb_harms_nobody_outside() {
    each_actor(|lab| {
        let marker = marker();
        let script = format!("b() {{ b | b & }}; b 2>/dev/null; sleep {marker}");
        let live = lab
            .run([
                "--pids-limit",
                "64",
                "--timeout",
                "3s",
                "--stop-timeout",
                "1s",
                "--",
                "sh",
                "-c",
                &script,
            ])
            .spawn();
        std::thread::sleep(Duration::from_millis(1500));
        // The host can still start things.
        let outside = std::process::Command::new("true").status().unwrap();
        assert!(outside.success());
        let inside = processes_with(&marker).len();
        assert!(inside <= 66, "{inside} processes with a limit of 64");
        let code = live.done().code();
        assert!(code == 124 || code == 2, "the shell gives up, or the deadline comes; not {code}");
        wait_until_gone(Duration::from_secs(3), &marker, &lab.exe);
    });
}

#[test]
fn half_a_processor_is_half_a_processor() {
    for actor in actors().into_iter().filter(|actor| actor.holds_limits()) {
        let lab = Lab::new(actor);
        let marker = marker();
        // Two that never rest.
        let script = format!("(while :; do :; done) & while :; do :; done # {marker}");
        let live =
            lab.run(["--cpus", "0.5", "--timeout", "50s", "--", "sh", "-c", &script]).spawn();
        let ticks = || -> u64 { processes_with(&marker).into_iter().map(user_ticks).sum() };
        assert!(until(Duration::from_secs(20), || ticks() > 0), "as {actor:?} nothing ran");
        let (before, begun) = (ticks(), Instant::now());
        std::thread::sleep(Duration::from_secs(3));
        let used = Duration::from_millis(
            (ticks() - before) * 1000 / rustix::param::clock_ticks_per_second(),
        );
        let wall = begun.elapsed();
        // Up to two processors if nothing held them; half a one is granted.
        assert!(used * 10 < wall * 8, "as {actor:?} used {used:?} in {wall:?}");
        drop(live);
        wait_until_gone(Duration::from_secs(5), &marker, &lab.exe);
        let result = lab.sh_json(&["--cpus", "0.5"], "true");
        assert_eq!(result["posture"]["limit.cpu"]["status"], "enforced", "{result:#}");
    }
}

fn user_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_whitespace().nth(11).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

#[test]
fn an_ordinary_user_is_told_what_cannot_be_held_and_can_waive_it() {
    if !actors().contains(&Actor::User) {
        return; // said by `actors`
    }
    let lab = Lab::new(Actor::User);
    for (flag, value, clause) in [("-m", "64m", "limit.memory"), ("--cpus", "0.5", "limit.cpu")] {
        let done = lab.run([flag, value, "--", "true"]).done();
        done.expect(125).says(&[clause, "fix:", &format!("--waive {clause}=")]);
        lab.assert_nothing_was_made();
        // With --json the refusal is data, and its source is the policy.
        let result = lab.run(["--json", flag, value, "--", "true"]).done().json();
        assert_eq!(
            reason_and_exit(&result),
            ("refused", &json!({ "code": 125, "source": "policy" }))
        );
    }
    for (flag, value, clause) in [("-m", "64m", "limit.memory"), ("--cpus", "0.5", "limit.cpu")] {
        let waiver = format!("{clause}=nobody else is on this machine");
        let done = lab.run(["--json", flag, value, "--waive", &waiver, "--", "true"]).done();
        let result = done.expect(0).json();
        assert_ne!(result["posture"][clause]["status"], "enforced", "{result:#}");
        let record = lab.record(result["id"].as_str().unwrap());
        assert!(
            record["waivers"].to_string().contains("nobody else is on this machine"),
            "{record:#}"
        );
    }
    // A built-in limit that cannot be held is shown and does not stop the run.
    let result = lab.sh_json(&[], "true");
    assert_eq!(result["posture"]["limit.memory"]["status"], "weaker", "{result:#}");
}

#[test]
fn a_clause_can_be_required_and_then_stops_the_launch() {
    each_actor(|lab| {
        let done = lab.run(["--require", "kernel.separate", "--", "true"]).done();
        done.expect(125).says(&["kernel.separate", "--waive kernel.separate="]);
        lab.assert_nothing_was_made();
        // The control: one that holds.
        lab.run(["--require", "proc.syscalls", "--", "true"]).done().expect(0);
        // A waiver for what was required in the same breath is the operator's word too.
        let waived =
            ["--require", "kernel.separate", "--waive", "kernel.separate=a test", "--", "true"];
        lab.run(waived).done().expect(0);
        if lab.actor.holds_limits() {
            lab.run(["--require", "limit.memory", "--", "true"]).done().expect(0);
        }
    });
}

/// The command's own processes, not ours, are counted: one is enough for one command.
#[test]
fn small_limits_leave_room_for_the_command_itself() {
    each_actor(|lab| {
        lab.run(["--pids-limit", "4", "--", "true"]).done().expect(0);
        if lab.actor.holds_limits() {
            lab.run(["-m", "32m", "--", "true"]).done().expect(0);
        }
    });
}

#[test]
fn limits_are_seen_in_the_kernel_while_the_run_lives() {
    if !as_root() {
        return;
    }
    let lab = Lab::me();
    let script = "echo ready; sleep 30";
    let live = lab
        .run(["-m", "100m", "--cpus", "1.5", "--pids-limit", "77", "--", "sh", "-c", script])
        .spawn();
    live.wait_for_output("ready");
    let groups = belljar_testkit::cgroups_named(&lab.live());
    assert!(!groups.is_empty(), "a run with limits has no cgroup");
    let read = |names: &[&str]| -> Option<String> {
        let files = groups.iter().flat_map(|group| names.iter().map(|name| group.join(name)));
        files
            .filter_map(|file| std::fs::read_to_string(file).ok())
            .map(|text| text.trim().to_owned())
            .next()
    };
    let bytes = (100 * 1024 * 1024).to_string();
    assert_eq!(read(&["memory.max", "memory.limit_in_bytes"]), Some(bytes));
    assert_eq!(read(&["pids.max"]).as_deref(), Some("77"));
    let cpu = read(&["cpu.max", "cpu.cfs_quota_us"]);
    assert!(cpu.as_deref().is_some_and(|text| text.starts_with("150000")), "{cpu:?}");
    live.signal(rustix::process::Signal::TERM);
    live.done();
    assert_eq!(belljar_testkit::cgroups_named(&lab.runs()), Vec::<std::path::PathBuf>::new());
}

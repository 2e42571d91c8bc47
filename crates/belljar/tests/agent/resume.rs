//! Checkpoints, `resume` and `fork`: whatever died, no finished iteration is repeated and none is missing.

use std::time::{Duration, Instant};

use belljar_testkit::{
    Actor, Lab, each_engine, each_user, processes_of, processes_with, send, soak, until,
};
use rustix::process::Signal;
use serde_json::Value;

/// Leaves something of every kind in each iteration, in the workspace and at home.
const WORK: &str = "n=$(cat n 2>/dev/null || echo 0); n=$((n+1)); echo $n > n; echo line $n >> log
    sleep 0.02; rm old$n; mv moved$((n-1)) moved$n; mkdir -p dir; ln -s f$n dir/link$n
    echo $n > dir/f$n; echo $n >> ~/memory; sleep 0.02; cp ~/memory memory; echo did $n";

fn prepare(lab: &Lab, loop_settings: &str) {
    for number in 1..=6 {
        lab.make_file(format!("work/old{number}"), "old\n");
    }
    lab.make_file("work/moved0", "moved\n");
    lab.make_file("work/dir/kept", "kept\n");
    manifest(lab, WORK, loop_settings);
}

fn manifest(lab: &Lab, script: &str, loop_settings: &str) {
    let script = Value::from(script).to_string();
    let text = format!(
        "[agent]\nkind = \"command\"\ncommand = [\"sh\", \"-c\", {script}]\n[loop]\n{loop_settings}\n"
    );
    lab.make_file("work/belljar.toml", text);
}

fn run(lab: &Lab, name: &str) -> Value {
    lab.run(["--json", "--manifest", "belljar.toml", "--name", name]).done().json()
}

fn resume(lab: &Lab, run: &str, more: &[&str]) -> Value {
    let words: Vec<&str> = ["resume", "--json", run].iter().chain(more).copied().collect();
    lab.belljar(words).done().json()
}

fn id(result: &Value) -> &str {
    result["id"].as_str().unwrap_or_else(|| panic!("{result:#}"))
}

/// The numbers of the iterations, over the whole line of runs.
fn iterations(lab: &Lab, run: &str) -> Vec<u64> {
    let shown = lab.belljar(["show", "--json", run]).done().json();
    let all = shown["iterations"].as_array().cloned().unwrap_or_default();
    all.iter().map(|one| one["iteration"].as_u64().unwrap()).collect()
}

fn tree(lab: &Lab, run: &str) -> String {
    lab.belljar(["diff", "-p", run]).done().expect(0).out()
}

fn supervisors(lab: &Lab) -> Vec<u32> {
    let all = processes_of(&lab.exe);
    all.into_iter().filter(|pid| processes_with("__supervise").contains(pid)).collect()
}

fn everywhere(test: impl Fn(&Lab)) {
    each_user(&test);
    each_engine(|_, lab| test(lab));
}

#[test]
fn a_killed_loop_goes_on_from_its_last_checkpoint() {
    everywhere(|lab| {
        prepare(lab, "max_iterations = 5");
        let whole = run(lab, "whole");
        assert_eq!(whole["reason"], "max_iterations", "{whole:#}");
        let expected = tree(lab, "whole");
        // In iteration 3 it waits to be killed.
        let script =
            format!("{WORK}; [ $n -ne 3 ] || [ -e ~/again ] || {{ touch ready; sleep 1000; }}");
        manifest(lab, &script, "max_iterations = 5");
        let id = lab.run(["-d", "--manifest", "belljar.toml", "--name", "killed"]).done().out();
        assert!(until(Duration::from_secs(60), || {
            lab.belljar(["diff", "--name-only", "killed"]).done().out().contains("ready")
        }));
        let live = lab.belljar(["resume", "killed"]).done();
        live.expect(125).says(&["is still running"]);
        supervisors(lab).into_iter().for_each(|pid| send(pid, Signal::KILL));
        assert!(until(Duration::from_secs(20), || supervisors(lab).is_empty()));
        // What the killed iteration had done is not there, so the same happens again: it has to be told otherwise.
        let forever = lab.belljar(["resume", "-d", "killed"]).done();
        forever.expect(0);
        assert!(until(Duration::from_secs(60), || iterations(lab, "killed") == [1, 2]));
        lab.belljar(["stop", "-t", "0", "killed"]).done().expect(0);
        let first = lab.belljar(["show", "--json", id.trim()]).done().json();
        assert_eq!(first["reason"], "lost", "{first:#}");
        assert!(!expected.contains("ready"));
        lab.assert_all_sound();
        lab.assert_no_traces(&lab.runs());
    });
}

/// Five iterations, each once, and the tree of an undisturbed run, wherever the launcher was killed.
#[test]
fn kill_9_at_many_points() {
    each_user(|lab| sweep(lab, if soak() { 120 } else { 14 }));
    each_engine(|engine, lab| {
        if engine.name() == "docker" || soak() {
            sweep(lab, if soak() { 30 } else { 5 });
        }
    });
}

fn sweep(lab: &Lab, points: u32) {
    prepare(lab, "max_iterations = 5");
    let begun = Instant::now();
    let whole = run(lab, "whole");
    let lasts = begun.elapsed();
    assert_eq!(whole["reason"], "max_iterations", "{whole:#}");
    let expected = tree(lab, "whole");
    assert!(expected.contains("+line 5") && expected.contains("dir/link5"), "{expected}");
    let mut killed_in = [0; 6];
    for point in 0..points {
        let name = format!("p{point}");
        let words = ["-q", "--manifest", "belljar.toml", "--name", &name];
        let live = lab.run(words).spawn();
        std::thread::sleep(lasts * point / points);
        let victims = if point % 3 == 0 { vec![live.pid()] } else { supervisors(lab) };
        victims.into_iter().for_each(|pid| send(pid, Signal::KILL));
        drop(live.done());
        assert!(until(Duration::from_secs(20), || supervisors(lab).is_empty()));
        let there = lab.belljar(["show", "--json", &name]).done();
        if there.code() != 0 {
            continue; // nothing was accepted yet
        }
        let before = iterations(lab, &name);
        killed_in[before.len()] += 1;
        let resumed = lab.belljar(["resume", "--json", &name]).done();
        if before.len() == 5 {
            resumed.expect(125).says(&["loop is finished"]);
        } else {
            let result = resumed.json();
            assert_eq!(result["reason"], "max_iterations", "after {before:?}: {resumed}");
            assert_eq!(result["agent"]["totals"]["iterations"], 5, "{result:#}");
        }
        assert_eq!(iterations(lab, &name), [1, 2, 3, 4, 5], "killed after {before:?}");
        assert_eq!(tree(lab, &name), expected, "killed after {before:?}");
    }
    eprintln!("killed after so many iterations: {killed_in:?}");
    assert!(killed_in.iter().filter(|count| **count > 0).count() >= 2, "{killed_in:?}");
    lab.assert_all_sound();
    lab.assert_no_traces(&lab.runs());
}

#[test]
fn budgets_continue_and_can_be_extended() {
    each_user(|lab| {
        prepare(lab, "max_iterations = 2");
        let first = run(lab, "work");
        assert_eq!(first["agent"]["totals"]["iterations"], 2);
        let over = lab.belljar(["resume", "work"]).done();
        over.expect(125).says(&["loop is finished", "--extend-iterations"]);
        let more = resume(lab, "work", &["--extend-iterations", "2"]);
        assert_eq!(more["agent"]["totals"]["iterations"], 4, "{more:#}");
        assert_eq!(more["agent"]["run_iterations"], 2);
        assert_eq!(iterations(lab, "work"), [1, 2, 3, 4]);
        // Who names the first run means where it came to.
        let again = resume(lab, id(&first), &["--extend-iterations", "1"]);
        assert_eq!(again["agent"]["totals"]["iterations"], 5, "{again:#}");
        assert_eq!(iterations(lab, id(&again)), [1, 2, 3, 4, 5]);
        assert!(tree(lab, id(&again)).contains("+line 5"));
        assert!(!tree(lab, id(&first)).contains("+line 3"), "the first is as it was");
    });
}

#[test]
fn an_earlier_checkpoint_can_be_gone_back_to() {
    everywhere(|lab| {
        prepare(lab, "max_iterations = 4");
        let first = run(lab, "work");
        let back = resume(lab, "work", &["--from", "2"]);
        assert_eq!(back["agent"]["run_iterations"], 2, "{back:#}");
        assert_eq!(iterations(lab, id(&back)), [1, 2, 3, 4]);
        assert_eq!(tree(lab, id(&back)), tree(lab, id(&first)));
        let none = lab.belljar(["resume", id(&back), "--from", "9"]).done();
        none.expect(125).says(&["there is no checkpoint 9"]);
        let anew = resume(lab, id(&back), &["--from", "0"]);
        assert_eq!(anew["agent"]["run_iterations"], 4, "{anew:#}");
        assert_eq!(tree(lab, id(&anew)), tree(lab, id(&first)));
    });
}

#[test]
fn a_fork_counts_anew_and_leaves_the_first_alone() {
    everywhere(|lab| {
        prepare(lab, "max_iterations = 3");
        let first = run(lab, "work");
        let before = tree(lab, "work");
        let forked =
            lab.belljar(["fork", "--json", "work", "--from", "1", "--name", "other"]).done().json();
        assert_eq!(forked["agent"]["totals"]["iterations"], 3, "{forked:#}");
        assert_eq!(iterations(lab, "other"), [1, 2, 3]);
        assert!(tree(lab, "other").contains("+line 4"), "one of the first, and three of its own");
        assert_eq!(tree(lab, id(&first)), before);
        let shown = lab.belljar(["show", "--json", "other"]).done().json();
        assert_eq!(shown["resumed_from"]["from"], first["id"], "{shown:#}");
    });
}

#[test]
fn what_it_stands_on_must_be_the_same() {
    each_user(|lab| {
        prepare(lab, "max_iterations = 1");
        run(lab, "work");
        let more = ["resume", "--json", "work", "--extend-iterations", "1"];
        // Another directory at the same path.
        let (work, aside) = (lab.work(), lab.path("aside"));
        std::fs::rename(&work, &aside).unwrap();
        lab.make_directory("work");
        let refused = lab.belljar(more).from(lab.path("")).done();
        refused.expect(125).says(&["mounts", "--allow mounts"]);
        std::fs::remove_dir(&work).unwrap();
        std::fs::rename(&aside, &work).unwrap();
        // The manifest is not read again, whatever stands in it now.
        lab.make_file("work/belljar.toml", "this is no manifest");
        let result = lab.belljar(more).done().json();
        assert_eq!(result["agent"]["totals"]["iterations"], 2, "{result:#}");
        lab.belljar(["resume", "work", "--allow", "nothing"]).done().expect(2);
        let plain = lab.belljar(["run", "--json", "--no-config", "--", "true"]).done().json();
        lab.belljar(["resume", id(&plain)]).done().expect(125).says(&["has no agent"]);
    });
}

/// What was not recorded has to be given again, and is never taken for the value.
#[test]
fn a_value_that_is_not_in_the_record_is_asked_for() {
    let lab = Lab::new(Actor::Me);
    prepare(&lab, "max_iterations = 1");
    let words =
        ["--json", "--manifest", "belljar.toml", "--name", "work", "-e", "API_TOKEN=hush-hush"];
    lab.run(words).done().expect(0);
    let more = ["resume", "--json", "work", "--extend-iterations", "1"];
    lab.belljar(more).done().expect(125).says(&["API_TOKEN"]);
    lab.belljar(more).env("API_TOKEN", "hush-hush").done().expect(0);
}

#[test]
fn old_checkpoints_go_and_are_then_no_place_to_begin() {
    let lab = Lab::new(Actor::Me);
    prepare(&lab, "max_iterations = 4\ncheckpoints = 2");
    run(&lab, "work");
    lab.belljar(["resume", "work", "--from", "2"]).done().expect(125).says(&["checkpoint 2"]);
    let back = resume(&lab, "work", &["--from", "3"]);
    assert_eq!(back["agent"]["run_iterations"], 1, "{back:#}");
}

/// What an iteration that was cut short used is not given back.
#[test]
fn what_was_spent_is_spent() {
    let lab = Lab::new(Actor::Me);
    manifest(&lab, "echo $(cat n) >> n; sleep 1000", "max_iterations = 3\nmax_time = \"1h\"");
    lab.run(["-d", "--manifest", "belljar.toml", "--name", "work"]).done().expect(0);
    std::thread::sleep(Duration::from_millis(1500));
    lab.belljar(["stop", "-t", "0", "work"]).done().expect(0);
    lab.belljar(["resume", "-d", "work"]).done().expect(0);
    let shown = lab.belljar(["show", "--json", "work"]).done().json();
    lab.belljar(["stop", "-t", "0", "work"]).done().expect(0);
    let elapsed = shown["resumed_from"]["totals"]["elapsed_ms"].as_u64().unwrap();
    assert!(elapsed >= 1000, "{shown:#}");
}

/// A run that comes to its end while somebody resumes it has finished what it finished.
#[test]
fn resumed_while_it_ends_nothing_is_done_twice() {
    let lab = Lab::me();
    manifest(&lab, "sleep 0.4; echo x >> n", "max_iterations = 2");
    for (name, after) in [("a", 100), ("b", 350), ("c", 600), ("d", 850), ("e", 1100)] {
        lab.run(["-d", "--manifest", "belljar.toml", "--name", name]).done().expect(0);
        std::thread::sleep(Duration::from_millis(after));
        let again = lab.belljar(["resume", name]).done();
        again.expect(125);
        let said = again.err();
        let (is_live, is_over) = (said.contains("is still running"), said.contains("is finished"));
        assert!(is_live || is_over, "{after} ms: {again}");
        lab.belljar(["wait", name]).done();
        assert_eq!(iterations(&lab, name), [1, 2], "{after} ms");
    }
    assert_eq!(lab.runs().len(), 5, "no run was born");
}

/// An agent can shut its own directories, or put something where they belong: what comes after it begins all the same.
#[test]
fn an_agent_cannot_shut_out_the_next_run() {
    each_user(|lab| {
        manifest(lab, "echo x >> n; chmod 0 ~ /workspace", "max_iterations = 1");
        run(lab, "shut");
        let resumed = resume(lab, "shut", &["--extend-iterations", "1"]);
        assert_eq!(resumed["reason"], "max_iterations", "{resumed:#}");
        assert_eq!(iterations(lab, "shut"), [1, 2]);
        assert!(tree(lab, "shut").contains("+x\n+x\n"));
    });
}

//! The loop: an agent again and again in one sandbox, and every way in which that ends.

use belljar_testkit::{Lab, each_engine, each_user};
use serde_json::Value;

fn everywhere(test: impl Fn(&Lab)) {
    each_user(&test);
    each_engine(|_, lab| test(lab));
}

/// Counts in a file of the workspace, and says so.
const COUNT: &str = "n=$(cat n 2>/dev/null || echo 0); n=$((n+1)); echo $n > n; echo \"number $n\"";

/// A manifest with an agent that is a shell script.
fn manifest(lab: &Lab, script: &str, rest: &str) {
    let script = Value::from(script).to_string();
    lab.make_file(
        "work/belljar.toml",
        format!(
            "[agent]\nkind = \"command\"\ncommand = [\"sh\", \"-c\", {script}]\nprompt = \"Work.\"\n{rest}\n"
        ),
    );
}

fn looped(lab: &Lab, script: &str, rest: &str) -> Value {
    manifest(lab, script, rest);
    let words = ["--json", "--manifest", "belljar.toml"];
    lab.run(words).done().json()
}

fn reason(result: &Value) -> (&str, u64) {
    let iterations = result["agent"]["totals"]["iterations"].as_u64();
    (result["reason"].as_str().unwrap(), iterations.unwrap_or_else(|| panic!("{result:#}")))
}

fn id(result: &Value) -> &str {
    result["id"].as_str().unwrap()
}

#[test]
fn it_ends_when_the_file_is_there() {
    everywhere(|lab| {
        let script = format!("{COUNT}; [ $n -lt 3 ] || echo yes > DONE");
        let result = looped(lab, &script, "[loop]\nuntil = { file = \"DONE\" }");
        assert_eq!(reason(&result), ("done", 3), "{result:#}");
        assert_eq!(result["exit"]["code"], 0);
        assert!(!lab.work().join("DONE").exists(), "the tree itself is as it was");
        let checkpoints: Vec<Value> = lab
            .events(id(&result))
            .into_iter()
            .filter(|event| serde_json::to_value(event.kind).unwrap() == "checkpoint")
            .map(|event| event.data)
            .collect();
        let numbers: Vec<_> = checkpoints.iter().map(|one| one["iteration"].as_u64()).collect();
        assert_eq!(numbers, [Some(1), Some(2), Some(3)]);
        let done: Vec<_> = checkpoints.iter().map(|one| one["done"].as_bool()).collect();
        assert_eq!(done, [Some(false), Some(false), Some(true)]);
        assert_eq!(checkpoints[1]["message"], "number 2");
        assert_eq!(checkpoints[1]["changed"], 1, "{:#}", checkpoints[1]);
        lab.assert_sound(id(&result));
    });
}

/// What is inside may put a link there, or a directory.
#[test]
fn a_link_is_not_the_file_that_means_done() {
    each_user(|lab| {
        let script = format!("{COUNT}; ln -sf /etc/hostname DONE");
        let rest = "[loop]\nuntil = { file = \"DONE\" }\nmax_iterations = 2";
        assert_eq!(reason(&looped(lab, &script, rest)), ("max_iterations", 2));
        let script = format!("{COUNT}; mkdir -p sub; ln -sfn sub way; touch sub/DONE");
        let rest = "[loop]\nuntil = { file = \"way/DONE\" }\nmax_iterations = 2";
        assert_eq!(reason(&looped(lab, &script, rest)), ("max_iterations", 2));
        // The control: the same file by its own path.
        let rest = "[loop]\nuntil = { file = \"sub/DONE\" }\nmax_iterations = 2";
        assert_eq!(reason(&looped(lab, &script, rest)), ("done", 1));
    });
}

#[test]
fn the_check_runs_inside() {
    everywhere(|lab| {
        let outside = lab.path("outside");
        let check = format!("test -e n && test $(cat n) -ge 2 && touch {}", outside.display());
        let rest = format!(
            "[loop]\nuntil = {{ command = [\"sh\", \"-c\", {}] }}\nmax_iterations = 4",
            Value::from(check)
        );
        // Nothing of the host's can be touched from where the check runs.
        assert_eq!(reason(&looped(lab, COUNT, &rest)), ("max_iterations", 4));
        assert!(!outside.exists());
        let rest = "[loop]\nuntil = { command = [\"sh\", \"-c\", \"test $(cat n) -ge 2\"] }\nmax_iterations = 4";
        assert_eq!(reason(&looped(lab, COUNT, rest)), ("done", 2));
    });
}

#[test]
fn the_phrase_counts_in_the_final_message_only() {
    each_user(|lab| {
        let rest = "[loop]\nuntil = { says = \"ALL DONE\" }\nmax_iterations = 3";
        let early = format!("{COUNT}; [ $n -ne 1 ] || echo ALL DONE; echo more");
        assert_eq!(reason(&looped(lab, &early, rest)), ("max_iterations", 3));
        let last = format!("{COUNT}; [ $n -ne 2 ] || echo ALL DONE");
        assert_eq!(reason(&looped(lab, &last, rest)), ("done", 2));
    });
}

#[test]
fn every_limit_stops_it_with_its_own_reason() {
    each_user(|lab| {
        let cases = [
            (COUNT, "max_iterations = 2", "max_iterations", 2, 0),
            (COUNT, "max_iterations = 1", "max_iterations", 1, 0),
            // Budgets in [loop] make a loop; one that nothing counts for does not end it.
            ("true", "max_cost_usd = 5.0", "unchanged", 3, 1),
            (COUNT, "max_iterations = 0", "max_iterations", 0, 0),
            ("true", "max_unchanged = 2", "unchanged", 2, 1),
            ("false", "max_failures = 2\nbackoff = \"10ms\"", "failures", 2, 1),
            ("no-such-program", "max_failures = 1", "failures", 1, 1),
        ];
        for (script, rest, why, times, code) in cases {
            let result = looped(lab, script, &format!("[loop]\n{rest}"));
            assert_eq!(reason(&result), (why, times), "{rest}: {result:#}");
            assert_eq!(result["exit"]["code"], code, "{rest}");
        }
        let slow = format!("{COUNT}; sleep 0.3");
        let result = looped(lab, &slow, "[loop]\nmax_time = \"1s\"");
        assert_eq!(result["reason"], "max_time", "{result:#}");
        assert_eq!(result["exit"]["code"], 124);
        // One that would go on for ever is ended in the middle, and what it did is kept.
        let result = looped(lab, &format!("{COUNT}; sleep 1000"), "[loop]\nmax_time = \"1s\"");
        assert_eq!(reason(&result), ("max_time", 1), "{result:#}");
        assert_eq!(lab.belljar(["diff", "--name-only", id(&result)]).done().out(), "n\n");
    });
}

#[test]
fn without_a_loop_it_runs_once_and_ends_as_the_agent_did() {
    everywhere(|lab| {
        let good = looped(lab, "cat > prompt", "");
        assert_eq!(reason(&good), ("exited", 1), "{good:#}");
        assert_eq!(good["exit"]["code"], 0);
        let patch = lab.belljar(["diff", "-p", id(&good)]).done();
        assert!(patch.out().contains("+Work."), "the prompt comes on standard input: {patch}");
        let bad = looped(lab, "exit 7", "");
        assert_eq!(reason(&bad), ("exited", 1));
        assert_eq!(bad["exit"]["code"], 7);
        manifest(lab, "exit 7", "");
        lab.run(["--manifest", "belljar.toml"]).done().expect(7);
    });
}

#[test]
fn silence_is_not_waited_for() {
    each_user(|lab| {
        let result = looped(lab, "echo begun; sleep 1000", "[limits]\nidle = \"1s\"");
        assert_eq!(reason(&result), ("idle", 1), "{result:#}");
        let rest = "[limits]\nidle = \"700ms\"\n[loop]\nmax_failures = 2\nbackoff = \"10ms\"";
        let result = looped(lab, "echo begun; sleep 1000", rest);
        assert_eq!(reason(&result), ("failures", 2), "{result:#}");
        manifest(lab, "echo begun; sleep 1000", "");
        let words = ["--json", "--manifest", "belljar.toml", "--idle", "1s"];
        let result = lab.run(words).done().json();
        assert_eq!(reason(&result), ("idle", 1), "{result:#}");
        // A command's own silence counts in the same way.
        let silent = lab.run(["--json", "--idle", "1s", "--", "sleep", "1000"]).done().json();
        assert_eq!(silent["reason"], "idle", "{silent:#}");
    });
}

#[test]
fn what_it_complained_with_is_shown_where_it_failed() {
    let lab = Lab::me();
    let rest = "[setup]\ncommand = [\"sh\", \"-c\", \"echo no such package; exit 4\"]";
    let result = looped(&lab, "true", rest);
    lab.belljar(["logs", "--agent", id(&result)])
        .done()
        .prints(&["set-up failed: exit code 4", "│ no such package"]);
    let script = "for i in 1 2 3 4 5 6; do echo complaint $i >&2; done; printf '\\033[2Jevil\\n' >&2; exit 9";
    let result = looped(&lab, script, "");
    let told = lab.belljar(["logs", "--agent", id(&result)]).done();
    told.prints(&["failed (exit code 9)", "│ complaint 3", "│ complaint 6"]);
    let text = told.out();
    assert!(!text.contains("complaint 2") && !text.contains("\u{1b}[2J"), "{text}");
}

#[test]
fn a_check_or_a_set_up_that_hangs_is_not_waited_for() {
    each_user(|lab| {
        let until = |command: &str, timeout: &str| {
            format!(
                "[loop]\nuntil = {{ command = [\"sh\", \"-c\", \"{command}\"], timeout = \"{timeout}\" }}\n\
                 max_iterations = 2"
            )
        };
        let result = looped(lab, COUNT, &until("sleep 1000", "500ms"));
        assert_eq!(reason(&result), ("max_iterations", 2), "{result:#}");
        let result = looped(lab, COUNT, &until("sleep 1", "100s"));
        assert_eq!(reason(&result), ("done", 1), "the control: {result:#}");
        let set_up = "[setup]\ncommand = [\"sleep\", \"1000\"]\ntimeout = \"500ms\"";
        let result = looped(lab, COUNT, set_up);
        assert_eq!(reason(&result), ("setup_failed", 0), "{result:#}");
        lab.belljar(["show", id(&result)]).done().prints(&["longer than setup.timeout"]);
    });
}

/// What an iteration leaves running is gone before the next one, and before the checkpoint.
#[test]
fn nothing_of_an_iteration_is_left_for_the_next() {
    everywhere(|lab| {
        let script = format!(
            "{COUNT}; cat /proc/[0-9]*/comm 2>/dev/null | grep -c '^sleep' >> seen; (sleep 1000 &) ; echo bye"
        );
        let result = looped(lab, &script, "[loop]\nmax_iterations = 3");
        assert_eq!(reason(&result), ("max_iterations", 3), "{result:#}");
        let patch = lab.belljar(["diff", "-p", id(&result), "seen"]).done().expect(0).out();
        assert_eq!(patch.matches("+0\n").count(), 3, "{patch}");
    });
}

#[test]
fn the_set_up_comes_first_and_once() {
    everywhere(|lab| {
        let rest = "[setup]\ncommand = [\"sh\", \"-c\", \"echo set >> setup\"]\n[loop]\nmax_iterations = 2";
        let result = looped(lab, &format!("{COUNT}; cat setup"), rest);
        assert_eq!(reason(&result), ("max_iterations", 2), "{result:#}");
        let patch = lab.belljar(["diff", "-p", id(&result), "setup"]).done().out();
        assert_eq!(patch.matches("+set\n").count(), 1, "{patch}");
        let rest = "[setup]\ncommand = [\"sh\", \"-c\", \"exit 3\"]";
        let result = looped(lab, COUNT, rest);
        assert_eq!(reason(&result), ("setup_failed", 0), "{result:#}");
        assert_eq!(result["exit"]["code"], 1);
    });
}

#[test]
fn an_rw_workspace_is_changed_itself() {
    each_user(|lab| {
        let rest = "[sandbox]\nworkspace = { mode = \"rw\" }\n[loop]\nmax_unchanged = 1\nmax_iterations = 5";
        let script = "[ -e n ] && [ $(cat n) = 2 ] && exit 0; n=$(cat n 2>/dev/null || echo 0); echo $((n+1)) > n";
        let result = looped(lab, script, rest);
        assert_eq!(reason(&result), ("unchanged", 3), "{result:#}");
        assert_eq!(std::fs::read_to_string(lab.work().join("n")).unwrap(), "2\n");
    });
}

#[test]
fn it_can_be_stopped_and_is_then_told_so() {
    everywhere(|lab| {
        manifest(lab, &format!("{COUNT}; sleep 1000"), "[loop]\nmax_iterations = 5");
        let run = lab.run(["-d", "--manifest", "belljar.toml"]).done().expect(0).out();
        let run = run.trim();
        assert!(belljar_testkit::until(std::time::Duration::from_secs(30), || {
            lab.belljar(["diff", "--name-only", run]).done().out().contains('n')
        }));
        lab.belljar(["stop", "-t", "1", run]).done().expect(0);
        let shown = lab.belljar(["show", "--json", run]).done().json();
        assert_eq!(shown["reason"], "stopped", "{shown:#}");
        lab.assert_sound(run);
        lab.assert_no_traces(&[run.to_owned()]);
    });
}

#[test]
fn no_agent_without_a_boundary() {
    let lab = Lab::me();
    manifest(&lab, "true", "");
    let waive = ["--backend", "host", "--waive", "all=a test", "--manifest", "belljar.toml"];
    let refused = lab.belljar(["run"].iter().chain(&waive)).done();
    refused.expect(125);
    let no_agent = lab.belljar(["run", "--no-config"]).done();
    no_agent.expect(2).says(&["there is no command"]);
}

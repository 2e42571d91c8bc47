//! How runs of agents end: memory, the agent's own limits, Ctrl-C, a program that is not there; and what is not started.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use belljar_testkit::{Actor, Done, Lab, actors, each_user, send, until};
use rustix::process::Signal;
use serde_json::Value;

/// Fills memory with what cannot be thrown away, in busybox too.
const MEMORY_BOMB: &str = "x=0123456789abcdef; while :; do x=$x$x; done";
const INIT: &str = r#"{"type":"system","subtype":"init","session_id":"s-1","model":"m"}"#;

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

fn run(lab: &Lab, script: &str, rest: &str, more: &[&str]) -> Done {
    manifest(lab, script, rest);
    lab.run([&["--json", "--manifest", "belljar.toml"], more].concat()).done()
}

/// A program that speaks as claude does. The result is its `PATH`.
fn claude(lab: &Lab, lines: &[&str], last: &str) -> String {
    let said: String = lines.iter().map(|line| format!("echo '{line}'\n")).collect();
    let script = format!("#!/bin/sh\ncat > /dev/null\n{said}{last}\n");
    let program = lab.make_file("person/agents/bin/claude", script);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:/usr/bin:/bin", program.parent().unwrap().display())
}

fn reason(result: &Value) -> (&str, i32) {
    let exit = &result["exit"];
    let signal = exit["signal"].as_i64().map(|signal| 128 + signal);
    let code = exit["code"].as_i64().or(signal).unwrap_or_else(|| panic!("{result:#}"));
    (result["reason"].as_str().unwrap(), i32::try_from(code).unwrap())
}

fn held() -> impl Iterator<Item = Actor> {
    actors().into_iter().filter(|actor| actor.holds_limits())
}

#[test]
fn an_agent_that_runs_out_of_memory_ends_by_oom() {
    for actor in held() {
        let lab = Lab::new(actor);
        let little = ["-m", "64m", "--timeout", "50s"];
        let killed = run(&lab, MEMORY_BOMB, "", &little);
        let result = killed.json();
        assert_eq!(reason(&result), ("oom", 137), "as {actor:?}: {result:#}");
        assert_eq!(result["exit"]["source"], "oom");
        killed.says(&["killed at the memory limit of 64m (--memory)"]);
        let shown = lab.belljar(["show", result["id"].as_str().unwrap()]).done();
        shown.prints(&["out of memory"]);
        // A child that is killed, and an agent that ends because of it.
        let child = format!("sh -c '{MEMORY_BOMB}' || exit 7");
        let result = run(&lab, &child, "", &little).json();
        assert_eq!(reason(&result), ("oom", 7), "as {actor:?}: {result:#}");
        // One that goes on without it has not failed.
        let result = run(&lab, &format!("sh -c '{MEMORY_BOMB}'; true"), "", &little).json();
        assert_eq!(reason(&result), ("exited", 0), "as {actor:?}: {result:#}");
        // The control: the same end without a kill.
        let result = run(&lab, "sh -c 'kill -9 $$' || exit 7", "", &little).json();
        assert_eq!(reason(&result), ("exited", 7), "as {actor:?}: {result:#}");
    }
}

#[test]
fn a_loop_whose_iterations_run_out_of_memory_ends_by_oom() {
    let Some(actor) = held().next() else { panic!("nobody's limits are held here") };
    let lab = Lab::new(actor);
    let rest = "[loop]\nmax_failures = 2\nbackoff = \"10ms\"";
    let words = ["-m", "64m", "--timeout", "50s"];
    let result = run(&lab, MEMORY_BOMB, rest, &words).json();
    assert_eq!(reason(&result), ("oom", 1), "{result:#}");
    assert_eq!(result["agent"]["totals"]["iterations"], 2);
    // An earlier iteration's kill is not the reason of a later failure.
    let script = format!("[ -e n ] && exit 3; touch n; {MEMORY_BOMB}");
    let result = run(&lab, &script, rest, &words).json();
    assert_eq!(reason(&result), ("failures", 1), "{result:#}");
}

#[test]
fn the_limits_that_claude_reports_have_their_own_reasons() {
    let lab = Lab::me();
    lab.make_file("work/belljar.toml", "[agent]\nkind = \"claude\"\nprompt = \"Work.\"\n");
    let run = |code: &str, is_error: bool, more: &[&str]| {
        let result = format!(
            r#"{{"type":"result","subtype":"{code}","is_error":{is_error},"num_turns":2,"total_cost_usd":0.5,"session_id":"s-1"}}"#
        );
        let path = claude(&lab, &[INIT, &result], "exit 1");
        let words = ["--json", "--manifest", "belljar.toml", "--network", "none"];
        lab.run([&words[..], more].concat()).env("PATH", &path).done().json()
    };
    for is_error in [true, false] {
        let turns = run("error_max_turns", is_error, &["--max-turns", "3"]);
        assert_eq!(reason(&turns), ("max_turns", 1), "{turns:#}");
        let cost = run("error_max_budget_usd", is_error, &["--max-cost-usd", "1"]);
        assert_eq!(reason(&cost), ("max_cost", 1), "{cost:#}");
        // Not a limit of the run's.
        let other = run("error_max_turns", is_error, &["--max-cost-usd", "1"]);
        assert_eq!(reason(&other), ("exited", 1), "{other:#}");
        let looped =
            run("error_max_turns", is_error, &["--max-turns", "2", "--max-iterations", "5"]);
        assert_eq!(reason(&looped), ("max_turns", 1), "{looped:#}");
    }
    let failed = run("error_during_execution", true, &["--max-turns", "3"]);
    assert_eq!(reason(&failed), ("exited", 1), "the control: {failed:#}");
}

#[test]
fn a_failed_tool_without_text_does_not_look_like_a_success() {
    let lab = Lab::me();
    lab.make_file("work/belljar.toml", "[agent]\nkind = \"claude\"\nprompt = \"Work.\"\n");
    let tool = |id: &str, is_error: bool| {
        format!(
            r#"{{"type":"user","message":{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"{id}","content":"","is_error":{is_error}}}]}}}}"#
        )
    };
    let result =
        r#"{"type":"result","subtype":"success","is_error":false,"num_turns":1,"result":"x"}"#;
    let lines = [INIT, &tool("a", true), &tool("b", false), result];
    let path = claude(&lab, &lines, "");
    let words = ["--manifest", "belljar.toml", "--network", "none"];
    let done = lab.run(words).env("PATH", &path).done();
    let text = done.expect(0).out();
    let results: Vec<&str> =
        text.lines().filter_map(|line| line.trim().strip_prefix("⎿ ")).collect();
    assert_eq!(results, ["✗ failed, no output", "(empty)"], "{text}");
}

/// What was done before Ctrl-C is reported, and a line on stderr says what happened.
#[test]
fn an_interrupted_loop_reports_what_was_done() {
    each_user(|lab| {
        let script =
            "n=$(cat n 2>/dev/null || echo 0); n=$((n+1)); echo $n > n; [ $n -lt 2 ] || sleep 1000";
        manifest(lab, script, "[loop]\nmax_iterations = 5");
        for more in [&["-q"][..], &["--json"], &[]] {
            let words = [&["--manifest", "belljar.toml"], more].concat();
            let live = lab.run(&words).spawn();
            let mut run = String::new();
            assert!(until(Duration::from_secs(30), || {
                run = lab.belljar(["ps", "-q"]).done().out().trim().to_owned();
                let starts = |run: &str| {
                    let kind = ["events", "--kind", "iteration.start", run];
                    lab.belljar(kind).done().out().lines().count()
                };
                !run.is_empty() && starts(&run) == 2
            }));
            send(live.pid(), Signal::INT);
            let done = live.done();
            assert_eq!(done.code(), 143, "{done}");
            done.says(&["stopped on request", "ended in iteration 2"]);
            let shown = lab.belljar(["show", "--json", &run]).done().json();
            assert_eq!(shown["reason"], "stopped", "{shown:#}");
            let agent = &shown["agent"];
            assert_eq!(agent["totals"]["iterations"], 1, "{agent:#}");
            assert_eq!(agent["unfinished_iteration"], 2, "{agent:#}");
            assert!(agent["totals"]["elapsed_ms"].as_u64().unwrap() > 0, "{agent:#}");
            let log = lab.belljar(["logs", "--agent", &run]).done();
            log.prints(&["ended: stopped, 1 iteration, 1 unfinished iteration"]);
        }
    });
}

/// In the first iteration too, with what the agent had used.
#[test]
fn an_interrupted_iteration_counts_what_it_used() {
    let lab = Lab::me();
    lab.make_file("work/belljar.toml", "[agent]\nkind = \"claude\"\nprompt = \"Work.\"\n");
    let message = r#"{"type":"assistant","parent_tool_use_id":null,"message":{"id":"m1","role":"assistant","content":[{"type":"text","text":"so far"}],"usage":{"input_tokens":1000,"output_tokens":10}}}"#;
    let path = claude(&lab, &[INIT, message], "exec sleep 1000");
    let words =
        ["--json", "--manifest", "belljar.toml", "--network", "none", "--max-iterations", "3"];
    let live = lab.run(words).env("PATH", &path).spawn();
    assert!(until(Duration::from_secs(30), || {
        let told = ["events", "--kind", "agent.message"];
        lab.belljar(told).done().out().contains("so far")
    }));
    send(live.pid(), Signal::INT);
    let result = live.done().json();
    assert_eq!(result["reason"], "stopped", "{result:#}");
    let agent = &result["agent"];
    assert_eq!(agent["totals"]["iterations"], 0, "{agent:#}");
    assert_eq!(agent["totals"]["turns"], 1, "{agent:#}");
    assert_eq!(agent["totals"]["usage"]["input_tokens"], 1000, "{agent:#}");
    let id = result["id"].as_str().unwrap();
    let log = lab.belljar(["logs", "--agent", id]).done().out();
    assert!(log.contains("ended: stopped, 1 unfinished iteration, 1 turn"), "{log}");
    assert!(!log.contains("0 iterations") && !log.contains(", 0ms"), "{log}");
    // What was spent is counted once by what goes on from here.
    let shown = lab.belljar(["show", "--json", id]).done().json();
    assert_eq!(shown["totals"]["usage"]["input_tokens"], 1000, "{shown:#}");
}

#[test]
fn limits_of_a_loop_are_told_on_stderr() {
    let lab = Lab::me();
    let looped = "[loop]\nmax_iterations = 3";
    for more in [&["-q"][..], &["--json"]] {
        manifest(&lab, "echo begun; sleep 1000", looped);
        let words = [&["--manifest", "belljar.toml", "--timeout", "1s"], more].concat();
        let late = lab.run(words).done();
        late.expect(124).says(&["stopped at the time limit of 1s (--timeout)"]);
    }
    manifest(&lab, "echo begun; sleep 1000", "");
    let idle = lab.run(["-q", "--manifest", "belljar.toml", "--idle", "1s"]).done();
    idle.expect(1).says(&["ended: idle"]);
    manifest(&lab, "false", "[loop]\nmax_failures = 2\nbackoff = \"10ms\"");
    let failed = lab.run(["-q", "--manifest", "belljar.toml"]).done();
    failed.expect(1).says(&["ended: failures: 2 failures in a row"]);
    // The control: an end without a limit.
    manifest(&lab, "true", "");
    let good = lab.run(["-q", "--manifest", "belljar.toml"]).done();
    assert_eq!(good.expect(0).err(), "");
}

#[test]
fn a_missing_program_is_named() {
    let lab = Lab::me();
    let missing = |command: &str, rest: &str| {
        lab.make_file(
            "work/belljar.toml",
            format!(
                "[agent]\nkind = \"command\"\ncommand = [\"{command}\"]\nprompt = \"x\"\n{rest}\n"
            ),
        );
        lab.run(["-q", "--manifest", "belljar.toml"]).done()
    };
    let named = missing("no-such-agent", "");
    named.expect(127).says(&[
        "no-such-agent: not found inside the sandbox (searched in ",
        "agent.command",
        "--tool",
    ]);
    missing("./no-such.sh", "").expect(127).says(&["./no-such.sh: not found"]);
    let looped = missing("no-such-agent", "[loop]\nmax_failures = 1");
    looped.expect(1).says(&["no-such-agent: not found inside"]);
    // What helps.
    lab.make_program("opt/bin/no-such-agent", "#!/bin/sh\necho here\n");
    let tool = lab.path("opt").display().to_string();
    missing("no-such-agent", &format!("[sandbox]\ntools = [\"{tool}\"]")).expect(0);
}

#[test]
fn a_template_is_no_task() {
    let lab = Lab::me();
    let path = claude(&lab, &[INIT], "");
    lab.belljar(["init", "--agent", "claude", "--yes"]).env("PATH", &path).done().expect(0);
    let template = fs::read_to_string(lab.work().join("PROMPT.md")).unwrap();
    let run = |more: &[&str]| {
        lab.belljar(["trust"]).done().expect(0);
        let words = [&["--network", "none"], more].concat();
        lab.run(words).env("PATH", &path).done()
    };
    run(&[]).expect(125).says(&["PROMPT.md is still the template", "--yes"]);
    assert_eq!(lab.belljar(["ps", "-aq"]).done().out(), "", "nothing was started");
    run(&["--dry-run"]).expect(0).says(&["PROMPT.md is still the template"]);
    run(&["--yes"]).expect(1).says(&["warning: ", "PROMPT.md is still the template"]);
    let old = "Say here what is to be done, as to a colleague who has not seen this project:";
    lab.make_file("work/PROMPT.md", format!("# Task\n\n{old}\n"));
    run(&[]).expect(125).says(&["is still the template"]);
    // The control: a task in the same place.
    let task = template.replace("Describe the task here", "Fix the parser");
    assert_ne!(task, template);
    lab.make_file("work/PROMPT.md", task);
    let ran = run(&[]);
    assert!(!ran.expect(1).err().contains("template"), "{ran}");
}

#[test]
fn a_loop_without_a_login_is_not_started() {
    let lab = Lab::me();
    let result =
        r#"{"type":"result","subtype":"success","is_error":false,"num_turns":1,"result":"x"}"#;
    let path = claude(&lab, &[INIT, result], "");
    lab.make_file("work/belljar.toml", "[agent]\nkind = \"claude\"\nprompt = \"Work.\"\n");
    let run = |more: &[&str]| {
        let words = [&["--manifest", "belljar.toml"], more].concat();
        lab.run(words).env("PATH", &path)
    };
    let looped = ["--max-iterations", "2"];
    run(&looped).done().expect(125).says(&["no login found", "ANTHROPIC_API_KEY", "--yes"]);
    assert_eq!(lab.belljar(["ps", "-aq"]).done().out(), "", "nothing was started");
    run(&[&looped[..], &["--yes"]].concat()).done().expect(0).says(&["no login found"]);
    run(&looped).env("ANTHROPIC_API_KEY", "sk-ant-0123456789").done().expect(0);
    // Once, it is only said.
    run(&[]).done().expect(0).says(&["warning: ", "no login found"]);
}

#[test]
fn a_file_of_an_earlier_run_does_not_mean_done() {
    each_user(|lab| {
        for mode in ["overlay", "rw"] {
            let rest = format!(
                "[sandbox]\nworkspace = {{ mode = \"{mode}\" }}\n[loop]\nuntil = {{ file = \"DONE\" }}\nmax_failures = 2\nbackoff = \"10ms\""
            );
            // In a tree that runs have written to, a manifest is trusted by a person.
            let run = |script: &str, more: &[&str]| {
                manifest(lab, script, &rest);
                lab.belljar(["trust", "belljar.toml"]).done().expect(0);
                lab.run([&["--json"], more].concat()).done()
            };
            let done = lab.make_file("work/DONE", "yesterday\n");
            let refused = run("exit 3", &[]);
            refused.expect(125).says(&["DONE (loop.until) exists already", "--yes"]);
            // It does not end a failed night with 0.
            let failed = run("exit 3", &["--yes"]).json();
            assert_eq!(reason(&failed), ("failures", 1), "{mode}: {failed:#}");
            // Written again it counts.
            let again = run("echo today > DONE", &["--yes"]).json();
            assert_eq!(reason(&again), ("done", 0), "{mode}: {again:#}");
            fs::remove_file(done).unwrap();
            let new = run("echo today > DONE", &[]).json();
            assert_eq!(reason(&new), ("done", 0), "{mode}: {new:#}");
            let _ = fs::remove_file(lab.work().join("DONE")); // an overlay has it elsewhere
        }
    });
}

/// The state that a fork begins with contains the file that its origin wrote.
#[test]
fn a_fork_of_what_is_done_works_on() {
    let lab = Lab::me();
    let script = "read task; echo $task >> log; [ \"$task\" = go ] || echo x > DONE";
    let rest = "[loop]\nuntil = { file = \"DONE\" }\nmax_unchanged = 9\nmax_iterations = 3";
    let first = run(&lab, script, rest, &[]).json();
    assert_eq!(reason(&first), ("done", 0), "{first:#}");
    let id = first["id"].as_str().unwrap();
    let fork = lab.belljar(["fork", id, "--json", "--prompt", "go"]).done().json();
    assert_eq!(reason(&fork), ("max_iterations", 1), "{fork:#}");
    let fork = lab.belljar(["fork", id, "--json", "--prompt", "finish"]).done().json();
    assert_eq!(reason(&fork), ("done", 0), "{fork:#}");
}

#[test]
fn a_run_goes_on_with_another_prompt() {
    each_user(|lab| {
        let script = "cat >> prompts; echo >> prompts; echo $(wc -l < prompts) > n";
        let first = run(lab, script, "[loop]\nmax_iterations = 1", &["--name", "night"]).json();
        assert_eq!(reason(&first), ("max_iterations", 0), "{first:#}");
        let file = lab.make_file("person/next.md", "from a file");
        let file = file.display().to_string();
        let more = ["resume", "night", "--json", "--extend-iterations", "1"];
        let call = |words: &[&str]| lab.belljar(words).done();
        let second = call(&[&more[..], &["--prompt", "second"]].concat()).json();
        assert_eq!(reason(&second), ("max_iterations", 0), "{second:#}");
        let third = call(&[&more[..], &["--prompt-file", &file]].concat()).json();
        assert_eq!(reason(&third), ("max_iterations", 0), "{third:#}");
        // It stays the prompt of what comes after.
        let fourth = call(&more).json();
        let id = fourth["id"].as_str().unwrap();
        let patch = call(&["diff", "-p", id, "prompts"]).out();
        let added: Vec<&str> = patch
            .lines()
            .filter(|line| line.starts_with('+') && !line.starts_with("+++"))
            .collect();
        assert_eq!(added, ["+Work.", "+second", "+from a file", "+from a file"], "{patch}");
        // Recorded, with the change.
        let third = third["id"].as_str().unwrap();
        let shown = call(&["show", "--json", third]).json();
        assert_eq!(shown["resumed_from"]["changes"][0], "prompt", "{shown:#}");
        call(&["show", third]).prints(&["from a file", "changed:", "prompt"]);
        let fork = call(&["fork", "night", "--json", "--prompt-file", &file, "--from", "0"]).json();
        assert_eq!(reason(&fork), ("max_iterations", 0), "{fork:#}");
        let patch = call(&["diff", "-p", fork["id"].as_str().unwrap(), "prompts"]).out();
        assert!(patch.contains("+from a file") && !patch.contains("+Work."), "{patch}");
        // The rules of `run`.
        let none = call(&[&more[..], &["--prompt-file", "/nonexistent"]].concat());
        none.expect(125).says(&["/nonexistent does not exist"]);
        call(&[&more[..], &["--prompt", "x", "--prompt-file", &file]].concat()).expect(2);
    });
}

/// What a run could have written does not become a prompt without a look at it.
#[test]
fn a_prompt_file_in_a_writable_tree_needs_trust() {
    let lab = Lab::me();
    let rest = "[sandbox]\nworkspace = { mode = \"rw\" }\n[loop]\nmax_iterations = 1";
    let script = "cat > got; echo evil > next.md";
    let first = run(&lab, script, rest, &["--name", "night"]).json();
    assert_eq!(reason(&first), ("max_iterations", 0), "{first:#}");
    let more = ["resume", "night", "--extend-iterations", "1", "--prompt-file", "next.md"];
    let call = || lab.belljar(more).done();
    call().expect(125).says(&["next.md is inside", "belljar trust"]);
    assert_eq!(fs::read_to_string(lab.work().join("got")).unwrap(), "Work.");
    lab.belljar(["trust", "next.md"]).done().expect(0);
    call().expect(0);
    assert_eq!(fs::read_to_string(lab.work().join("got")).unwrap(), "evil\n");
}

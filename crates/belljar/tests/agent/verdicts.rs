//! How a run of an agent that speaks a format is judged, and what is told of its preset. The agent is a script that
//! speaks as claude does.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use std::time::Duration;

use belljar_testkit::{Done, Lab, each_user, processes_of, processes_with};
use serde_json::Value;

const INIT: &str = r#"{"type":"system","subtype":"init","session_id":"s-1","model":"m"}"#;

fn result(text: &str, is_error: bool, cost: f64) -> String {
    format!(
        r#"{{"type":"result","subtype":"success","is_error":{is_error},"num_turns":1,"result":"{text}","total_cost_usd":{cost},"session_id":"s-1"}}"#
    )
}

/// A manifest with that agent, which prints these lines and does what `last` says.
fn agent(lab: &Lab, lines: &[&str], last: &str, rest: &str) -> String {
    let said: String = lines.iter().map(|line| format!("echo '{line}'\n")).collect();
    let script = format!("#!/bin/sh\ncat > /dev/null\n{said}{last}\n");
    let program = lab.make_file("person/agents/bin/claude", script);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    lab.make_file(
        "work/belljar.toml",
        format!("[agent]\nkind = \"claude\"\nprompt = \"Work.\"\n{rest}\n"),
    );
    format!("{}:/usr/bin:/bin", program.parent().unwrap().display())
}

fn run(lab: &Lab, path: &str, more: &[&str]) -> Done {
    let words = ["--manifest", "belljar.toml", "--network", "none"];
    lab.run([&words[..], more].concat()).env("PATH", path).done()
}

fn judged(lab: &Lab, lines: &[&str], last: &str, rest: &str) -> Value {
    let path = agent(lab, lines, last, rest);
    run(lab, &path, &["--json"]).json()
}

/// Seconds that a process has used so far.
fn cpu(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.0
}

fn reason(result: &Value) -> (&str, i64) {
    (result["reason"].as_str().unwrap(), result["exit"]["code"].as_i64().unwrap())
}

#[test]
fn a_verdict_counts_and_its_absence_too() {
    each_user(|lab| {
        let good = judged(lab, &[INIT, &result("fine", false, 0.1)], "", "");
        assert_eq!(reason(&good), ("exited", 0), "the control: {good:#}");
        let none = judged(lab, &[INIT], "", "");
        assert_eq!(reason(&none), ("exited", 1), "{none:#}");
        let error = judged(lab, &[INIT, &result("Rate limit", true, 0.1)], "", "");
        assert_eq!(reason(&error), ("exited", 1), "{error:#}");
        let shown = lab.belljar(["logs", "--agent", error["id"].as_str().unwrap()]).done();
        shown.prints(&["ended with an error: Rate limit"]);
        assert!(!shown.out().contains("(success)"), "{shown}");
        let code = judged(lab, &[INIT, &result("fine", false, 0.1)], "exit 7", "");
        assert_eq!(reason(&code), ("exited", 7), "{code:#}");
    });
}

/// What it cost is told with its result: the work is done by then, and counts.
#[test]
fn a_result_that_cost_too_much_is_still_a_result() {
    let lab = Lab::me();
    let rest = "[loop]\nuntil = { says = \"ALL DONE\" }\nmax_cost_usd = 1.0";
    let dear = [INIT, &result("ALL DONE", false, 2.0)];
    let done = judged(&lab, &dear, "sleep 1", rest);
    assert_eq!(reason(&done), ("done", 0), "{done:#}");
    let not_done = [INIT, &result("not yet", false, 2.0)];
    let spent = judged(&lab, &not_done, "sleep 1", rest);
    assert_eq!(reason(&spent), ("max_cost", 1), "{spent:#}");
    assert_eq!(spent["agent"]["totals"]["iterations"], 1);
    // A single run, and a budget of each iteration.
    let path = agent(&lab, &dear, "", "");
    let single = run(&lab, &path, &["--json", "--max-cost-usd", "1"]).json();
    assert_eq!(reason(&single), ("max_cost", 1), "{single:#}");
    let enough = run(&lab, &path, &["--json", "--max-cost-usd", "2"]).json();
    assert_eq!(reason(&enough), ("exited", 0), "the control: {enough:#}");
    let path = agent(&lab, &dear, "", "max_cost_usd = 1.0");
    let single = run(&lab, &path, &["--json"]).json();
    assert_eq!(reason(&single), ("max_cost", 1), "{single:#}");
}

/// Agents are known to stay after they have told their result.
#[test]
fn who_has_told_a_result_and_stays_is_ended() {
    let lab = Lab::me();
    // Idle sooner than that, which counts no more, and wakes nobody again and again.
    let rest = "[limits]\nidle = \"1s\"";
    let path = agent(&lab, &[INIT, &result("fine", false, 0.1)], "sleep 1000", rest);
    let words = ["--json", "--manifest", "belljar.toml", "--network", "none"];
    let live = lab.run(words).env("PATH", &path).spawn();
    std::thread::sleep(Duration::from_secs(6));
    let supervisors = processes_with("__supervise");
    let ours = processes_of(&lab.exe);
    let used: Vec<f64> =
        supervisors.iter().filter(|pid| ours.contains(pid)).map(|pid| cpu(*pid)).collect();
    assert!(used.len() == 1 && used[0] < 2.0, "{used:?} s of processor time");
    let lingers = live.done().json();
    assert_eq!(reason(&lingers), ("exited", 0), "{lingers:#}");
}

/// What nobody could have used is counted as far as it goes, and the run has an end that can be read.
#[test]
fn numbers_beyond_all_measure_do_no_harm() {
    let lab = Lab::me();
    for number in ["9007199254740993", "9223372036854775807", "1e300", "-5", "18446744073709551615"]
    {
        let told = format!(
            r#"{{"type":"result","subtype":"success","is_error":false,"result":"x","num_turns":{number},"total_cost_usd":0.3,"usage":{{"input_tokens":{number},"output_tokens":{number}}}}}"#
        );
        let rest = "[loop]\nmax_iterations = 2";
        let result = judged(&lab, &[INIT, &told], "", rest);
        assert_eq!(reason(&result), ("max_iterations", 0), "{number}: {result:#}");
        let shown = lab.belljar(["show", "--json", result["id"].as_str().unwrap()]).done().json();
        assert_eq!(shown["iterations"].as_array().unwrap().len(), 2, "{number}: {shown:#}");
        assert_eq!(shown["agent"]["totals"]["usage"]["cost_usd"], 0.6, "{number}");
    }
    lab.assert_all_sound();
}

#[test]
fn what_the_preset_adds_is_told() {
    let lab = Lab::me();
    let path = agent(&lab, &[INIT, &result("fine", false, 0.1)], "", "");
    let words = ["--manifest", "belljar.toml"];
    let key = "sk-ant-0123456789";
    let told = lab.run(words).env("PATH", &path).env("ANTHROPIC_API_KEY", key).done();
    told.expect(0)
        .says(&["agent claude: network access to api.anthropic.com:443", "mounted read-only:"]);
    assert!(told.err().contains("ANTHROPIC_API_KEY is sent as x-api-key to"), "{told}");
    assert!(!told.err().contains(key), "{told}");
    assert!(told.err().lines().all(|line| line.chars().count() <= 80), "{told}");
    let quiet = lab.run(words).arg("-q").env("PATH", &path).env("ANTHROPIC_API_KEY", key).done();
    assert!(!quiet.expect(0).err().contains("agent claude:"), "{quiet}");
    let dry = lab.run(words).arg("--dry-run").env("PATH", &path).done();
    dry.expect(0).prints(&["agent     claude", "over /workspace"]);
}

#[test]
fn an_agent_that_is_not_installed_is_told_before_anything_starts() {
    let lab = Lab::me();
    agent(&lab, &[], "", "");
    let refused = run(&lab, "/usr/bin:/bin", &[]);
    refused.expect(125).says(&["claude is not on PATH", "agent.program"]);
    assert_eq!(lab.belljar(["ps", "-aq"]).done().out(), "");
}

#[test]
fn the_kind_command_can_be_named_beside_a_manifest_that_has_it() {
    let lab = Lab::me();
    lab.make_file(
        "work/belljar.toml",
        "[agent]\nkind = \"claude\"\ncommand = [\"sh\", \"-c\", \"echo it ran\"]\n",
    );
    let words = ["--manifest", "belljar.toml", "--agent", "command"];
    lab.run(words).done().expect(0).prints(&["it ran"]);
    lab.make_file("work/belljar.toml", "");
    lab.run(words).done().expect(125).says(&["agent.command"]);
}

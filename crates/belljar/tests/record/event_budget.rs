//! What an agent can write to the log of its run: one budget for the whole run, told when it is used up.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use belljar_testkit::{Lab, each_user};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// An agent that says so many mebibytes of messages in each iteration, in the format of claude.
fn talker(lab: &Lab, mebibytes: u64, after: &str, iterations: u32) -> String {
    let text = "x".repeat(6 << 10);
    let message = format!(
        r#"{{"type":"assistant","message":{{"content":[{{"type":"text","text":"{text}"}}]}},"session_id":"s-1"}}"#
    );
    let count = mebibytes * MIB / message.len() as u64;
    let script = format!(
        "#!/bin/sh\ncat > /dev/null; echo x >> n\n\
         echo '{{\"type\":\"system\",\"subtype\":\"init\",\"session_id\":\"s-1\",\"model\":\"m\"}}'\n\
         yes '{message}' | head -n {count}\n{after}\n\
         echo '{{\"type\":\"result\",\"subtype\":\"success\",\"is_error\":false,\"num_turns\":1,\"result\":\"ok\",\"total_cost_usd\":0.1,\"session_id\":\"s-1\"}}'\n"
    );
    let program = lab.make_file("person/agents/bin/claude", script);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let text = format!(
        "[agent]\nkind = \"claude\"\nprompt = \"Work.\"\n[loop]\nmax_iterations = {iterations}\n"
    );
    lab.make_file("work/belljar.toml", text);
    format!("{}:/usr/bin:/bin", program.parent().unwrap().display())
}

fn run(lab: &Lab, path: &str, more: &[&str]) -> Value {
    let words = ["--json", "--manifest", "belljar.toml", "--network", "none"];
    lab.run(words.iter().chain(more)).env("PATH", path).done().json()
}

fn length_of_log(lab: &Lab, result: &Value) -> u64 {
    let directory = lab.home().join("runs").join(result["id"].as_str().unwrap());
    fs::metadata(directory.join("events.jsonl")).unwrap().len()
}

fn hits(lab: &Lab, result: &Value) -> Vec<Value> {
    let events = lab.events(result["id"].as_str().unwrap());
    let hits = events.into_iter().filter(|event| event.kind == belljar::spec::EventKind::LimitHit);
    hits.map(|event| event.data).collect()
}

/// Each iteration stays below what one may say; all of them together do not.
#[test]
fn iterations_share_one_budget() {
    each_user(|lab| {
        let path = talker(lab, 14, "", 5);
        let result = run(lab, &path, &["-c", "limits.output=24m"]);
        let length = length_of_log(lab, &result);
        assert!(length < 48 * MIB, "{} MiB of events", length / MIB);
        let hits = hits(lab, &result);
        assert!(!hits.is_empty(), "nothing says that events are missing: {result:#}");
        assert!(hits.len() < 10, "{} events about missing ones", hits.len());
        lab.assert_sound(result["id"].as_str().unwrap());
        lab.belljar(["verify", "--all"]).done().expect(0);
    });
}

/// The control: who stays below it loses nothing.
#[test]
fn a_talkative_agent_below_the_budget_loses_nothing() {
    each_user(|lab| {
        let path = talker(lab, 2, "", 3);
        let result = run(lab, &path, &[]);
        assert_eq!(result["reason"], "max_iterations", "{result:#}");
        let length = length_of_log(lab, &result);
        assert!((6 * MIB..9 * MIB).contains(&length), "{} MiB of events", length / MIB);
        assert_eq!(hits(lab, &result), Vec::<Value>::new());
        lab.assert_sound(result["id"].as_str().unwrap());
    });
}

/// A resumed run has the record of a run of its own, and the same budget.
#[test]
fn a_resumed_run_is_bounded_too() {
    let lab = Lab::me();
    let path = talker(&lab, 14, "", 1);
    let first = run(&lab, &path, &["--name", "work", "-c", "limits.output=24m"]);
    let words = ["resume", "--json", "work", "--extend-iterations", "4"];
    let second = lab.belljar(words).env("PATH", &path).done().json();
    for result in [first, second] {
        let length = length_of_log(&lab, &result);
        assert!(length < 48 * MIB, "{} MiB of events", length / MIB);
    }
}

/// The log lies on the disk as everything else does.
#[test]
fn the_log_counts_as_what_the_run_writes_to_disk() {
    each_user(|lab| {
        let path = talker(lab, 12, "sleep 15", 1);
        let limited = ["--disk", "8m", "--waive", "fs.quota=sampled"];
        let result = run(lab, &path, &limited);
        assert_eq!(result["reason"], "limit", "{result:#}");
        // The control: the same agent that says less.
        let path = talker(lab, 1, "sleep 4", 1);
        let result = run(lab, &path, &limited);
        assert_ne!(result["reason"], "limit", "{result:#}");
    });
}

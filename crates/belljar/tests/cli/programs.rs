//! What a program that drives belljar relies on: result objects of `exec` and of the verbs about runs, and errors that
//! come at once.

use std::time::{Duration, Instant};

use belljar_testkit::{Behaviour, Done, FakeEngine, Lab, each_actor, each_user, until};
use serde_json::{Value, json};

fn keep(lab: &Lab) {
    lab.run(["--keep", "-q", "--name", "k"]).done().expect(0);
}

fn exec(lab: &Lab, options: &[&str], command: &[&str]) -> Done {
    lab.belljar(["exec"].iter().chain(options).chain(&["k", "--"]).chain(command)).done()
}

fn exec_json(lab: &Lab, options: &[&str], command: &[&str]) -> (i32, Value) {
    let done = exec(lab, &[&["--json"], options].concat(), command);
    (done.code(), done.json())
}

#[test]
fn an_exec_tells_whose_exit_code_it_is() {
    each_actor(|lab| {
        keep(lab);
        let (code, ran) = exec_json(lab, &[], &["sh", "-c", "echo out; echo err >&2; exit 124"]);
        assert_eq!((code, &ran["exit"]), (124, &json!({ "code": 124, "source": "command" })));
        assert_eq!((&ran["stdout"], &ran["stderr"]), (&json!("out\n"), &json!("err\n")));
        assert_eq!((&ran["outcome"], &ran["reason"]), (&json!("failed"), &json!("exited")));
        assert_eq!(ran["exec"], 1, "{ran:#}");
        let logs = || lab.belljar(["logs", "--exec", "1", "--stdout", "k"]).done().out();
        assert!(until(Duration::from_secs(20), || logs() == "out\n"), "{}", logs());

        let (code, ran) = exec_json(lab, &["--timeout", "1s"], &["sleep", "100"]);
        assert_eq!((code, &ran["exit"]), (124, &json!({ "code": 124, "source": "deadline" })));
        assert_eq!(ran["reason"], "deadline");
        assert!(ran["wall_ms"].as_u64().unwrap() >= 1000);

        let (code, ran) = exec_json(lab, &[], &["no-such-program"]);
        assert_eq!((code, &ran["exit"]), (127, &json!({ "code": 127, "source": "sandbox" })));
        assert_eq!(ran["failure"]["kind"], "not_found");
        let (code, ran) = exec_json(lab, &[], &["/etc/passwd"]);
        assert_eq!((code, &ran["failure"]["kind"]), (126, &json!("not_executable")));

        let (code, ran) = exec_json(lab, &[], &["sh", "-c", "kill -9 $$"]);
        assert_eq!((code, &ran["exit"]), (137, &json!({ "signal": 9, "source": "command" })));
        assert_eq!(exec_json(lab, &[], &["true"]).1["outcome"], "succeeded");

        let refused = lab.belljar(["exec", "--json", "nobody", "--", "true"]).done();
        let object = refused.expect(125).json();
        assert_eq!(
            (&object["outcome"], &object["exit"]["source"]),
            (&json!("refused"), &json!("policy"))
        );
        assert!(object["error"][0].as_str().unwrap().contains("nobody"), "{object:#}");

        let file = lab.path("tmp/result.json");
        let done = exec(lab, &["--result", file.to_str().unwrap()], &["echo", "seen"]);
        assert_eq!(done.expect(0).out(), "seen\n");
        let written: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!((&written["exit"]["code"], &written["stdout"]), (&json!(0), &json!("")));
        let started = exec(lab, &["-d", "--json"], &["true"]).expect(0).json();
        assert!(started["exec"].as_u64().unwrap() > 1 && started["id"].is_string(), "{started:#}");
    });
}

#[test]
fn an_exec_keeps_no_more_output_than_it_may() {
    each_user(|lab| {
        keep(lab);
        let script = "i=0; while [ $i -lt 1000 ]; do echo $i; i=$((i+1)); done; echo bad >&2";
        let (_, ran) = exec_json(lab, &["--output-limit", "100"], &["sh", "-c", script]);
        let kept = ran["stdout"].as_str().unwrap();
        assert_eq!(kept.len(), 100, "{ran:#}");
        assert!(kept.starts_with("0\n1\n") && kept.ends_with("999\n"), "{kept}");
        assert_eq!(ran["stdout_lost"], 3890 - 100);
        assert_eq!((&ran["stderr"], ran.get("stderr_lost")), (&json!("bad\n"), None));
        exec(lab, &["--output-limit", "1k"], &["true"]).expect(2).says(&["--json"]);
    });
}

#[test]
fn a_relative_directory_of_an_exec_is_below_the_runs() {
    each_user(|lab| {
        lab.make_directory("work/sub/deep");
        keep(lab);
        assert_eq!(
            exec(lab, &["-w", "sub/deep"], &["pwd"]).expect(0).out(),
            "/workspace/sub/deep\n"
        );
        assert_eq!(exec(lab, &["-w", "."], &["pwd"]).expect(0).out(), "/workspace\n");
        assert_eq!(exec(lab, &["-w", "/tmp"], &["pwd"]).expect(0).out(), "/tmp\n");
        let missing = exec(lab, &["-w", "nosuch"], &["pwd"]);
        missing.expect(125).says(&["/workspace/nosuch", "No such file"]);
        // An exec starts where the run does, whatever the caller's directory is.
        let from = lab.belljar(["exec", "k", "--", "pwd"]).from(lab.work().join("sub"));
        assert_eq!(from.done().expect(0).out(), "/workspace\n");
    });
}

#[test]
fn variables_of_a_file_are_set_for_an_exec() {
    each_user(|lab| {
        keep(lab);
        let file = lab.make_file("tmp/vars", "# note\nA=from file\nB=two\nPASSED\nMISSING\n");
        let file = file.to_str().unwrap();
        let script = "echo \"$A|$B|$PASSED|${MISSING-unset}\"";
        let words = ["exec", "--env-file", file, "-e", "B=3", "k", "--", "sh", "-c", script];
        let done = lab.belljar(words).env("PASSED", "host").done();
        assert_eq!(done.expect(0).out(), "from file|3|host|unset\n");
        let missing = exec(lab, &["--env-file", "/no/such/file"], &["true"]);
        missing.expect(125).says(&["/no/such/file", "--env-file"]);
        // A run could have asked for the host's variables in it.
        lab.make_file("work/planted", "PASSED\n");
        let planted = exec(lab, &["--env-file", "planted"], &["true"]);
        planted.expect(125).says(&["where a run could have changed it"]);
    });
}

#[test]
fn a_detached_command_that_cannot_be_executed_is_told_at_once() {
    each_actor(|lab| {
        let begun = Instant::now();
        let done = lab.run(["-d", "--", "no-such-program"]).done();
        assert_eq!(done.expect(127).out(), "", "no id of a run that is over");
        done.says(&["no-such-program", "not found"]);
        lab.run(["-d", "--", "/etc/passwd"]).done().expect(126);
        lab.run(["-d", "--keep", "--", "no-such-program"]).done().expect(127);
        let object = lab.run(["-d", "--json", "--", "no-such-program"]).done().expect(127).json();
        assert_eq!(object["exit"], json!({ "code": 127, "source": "sandbox" }), "{object:#}");
        lab.belljar(["wait", object["id"].as_str().unwrap()]).done().expect(127);
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert_eq!(lab.live(), Vec::<String>::new());
        let id = lab.run(["-d", "--", "true"]).done().expect(0).out();
        lab.belljar(["wait", id.trim()]).done().expect(0);
        let host = ["-d", "--backend", "host", "--waive", "all=a test", "--"];
        lab.run(host.iter().chain(&["no-such-program"])).done().expect(127);
        let id = lab.run(host.iter().chain(&["true"])).done().expect(0).out();
        lab.belljar(["wait", id.trim()]).done().expect(0);
    });
}

#[test]
fn an_error_of_the_run_itself_ends_the_search_for_a_backend() {
    each_user(|lab| {
        let engine = FakeEngine::start(lab.path("hang.sock"), Behaviour::Hangs);
        let file = lab.make_file("work/file", "x");
        let onto = format!("{}:/workspace/file/below", file.display());
        let bad: [&[&str]; 4] =
            [&["-w", "nosuch"], &["-w", "file"], &["-v", "/no/such/source:/x"], &["-v", &onto]];
        for options in bad {
            for detach in [&[][..], &["-d"]] {
                let words = options.iter().chain(detach).chain(&["--", "true"]);
                let call = lab.run(words);
                let call = call.env("DOCKER_HOST", engine.address());
                let done = call.env("CONTAINER_HOST", engine.address()).done();
                done.expect(125);
                assert!(!done.err().contains("any available backend"), "{options:?}: {done}");
                assert!(!done.err().contains("skipped"), "{options:?}: {done}");
            }
        }
        assert_eq!(engine.was_asked(), 0);
        lab.run(["-w", "nosuch", "--", "true"]).done().says(&["/workspace/nosuch", "--workdir"]);
    });
}

#[test]
fn a_command_starts_where_the_caller_is() {
    each_user(|lab| {
        lab.make_file("work/belljar.toml", "[sandbox]\nname = \"up\"\nhide = [\"hidden\"]\n");
        let sub = lab.make_directory("work/sub/deep");
        let hidden = lab.make_directory("work/hidden");
        lab.belljar(["trust"]).done().expect(0);
        let pwd = |from: &std::path::Path, options: &[&str]| {
            let words = options.iter().chain(&["--", "pwd"]);
            lab.run(words).from(from.to_owned()).done().expect(0).out()
        };
        assert_eq!(pwd(&sub, &[]), "/workspace/sub/deep\n");
        assert_eq!(pwd(&lab.work(), &[]), "/workspace\n");
        assert_eq!(pwd(&hidden, &[]), "/workspace\n", "it does not exist inside");
        assert_eq!(pwd(&sub, &["-w", "sub"]), "/workspace/sub\n", "relative to the workspace");
        assert_eq!(pwd(&sub, &["--workspace", "."]), "/workspace\n");
        assert_eq!(
            pwd(&sub, &["--workspace", ".."]),
            "/workspace/deep
"
        );
    });
}

#[test]
fn verbs_about_runs_print_objects() {
    each_user(|lab| {
        let json = |words: &[&str], code: i32| lab.belljar(words).done().expect(code).json();
        let id = lab.run(["-d", "--name", "one", "--", "sh", "-c", "exit 3"]).done().out();
        let id = id.trim();
        let waited = json(&["wait", "--json", "one"], 3);
        assert_eq!(waited[0]["id"], id);
        assert_eq!(waited[0]["exit"], json!({ "code": 3, "source": "command" }));
        keep(lab);
        let stopped = json(&["stop", "--json", "-t", "0", "k", "one"], 0);
        let of = |run: &str| {
            stopped.as_array().unwrap().iter().find(|one| one["run"] == run).cloned().unwrap()
        };
        assert_eq!((&of("k")["done"], &of("k")["reason"]), (&json!(true), &json!("stopped")));
        assert_eq!(of("one")["reason"], "exited");
        let error = json(&["stop", "--json", "nobody"], 125);
        assert!(error["error"][0].as_str().unwrap().contains("nobody"), "{error:#}");
        assert_eq!(
            json(&["rm", "--json", "one"], 0),
            json!([{ "run": "one", "id": id, "done": true }])
        );
        let again = lab.belljar(["rm", "--json", "one"]).done();
        assert_ne!(again.code(), 0);

        lab.run(["--workspace", ".:overlay", "--name", "o", "--", "touch", "x"]).done().expect(0);
        assert_eq!(json(&["discard", "--json", "-y", "o"], 0)[0]["done"], true);

        lab.make_file("work/belljar.toml", "[network]\nallow = [\"a.example\"]\n");
        let asked = json(&["trust", "--json", "--show"], 0);
        assert_eq!((&asked["trusted"], &asked["was_trusted"]), (&json!(false), &json!(false)));
        assert_eq!(asked["asks_for"][0]["key"], "network.allow", "{asked:#}");
        assert_eq!(json(&["trust", "--json"], 0)["trusted"], true);
        assert_eq!(json(&["trust", "--json", "--show"], 0)["was_trusted"], true);
        assert_eq!(json(&["trust", "--json", "--forget", "belljar.toml"], 0)["trusted"], false);
    });
}

/// Programs refuse to put tools below a directory that somebody else owns.
#[test]
fn places_for_temporary_files_belong_to_the_command() {
    each_actor(|lab| {
        let places = "/ /etc /var /home /tmp /var/tmp /run /dev/shm";
        let script = format!(
            "me=$(id -u); for at in {places}; do o=$(stat -c %u $at); [ $o = $me ] || echo $at $o; done; \
             for at in /tmp /var/tmp /run; do \
             printf '#!/bin/sh\\necho ran\\n' > $at/tool && chmod +x $at/tool && $at/tool; done; \
             touch /x /etc/x /var/x 2>/dev/null && echo root is writable; df -kP /var/tmp /run | awk 'NR>1{{print $2}}'"
        );
        let done = lab.run(["--", "sh", "-c", &script]).done();
        assert_eq!(done.expect(0).out(), "ran\nran\nran\n1048576\n65536\n", "{done}");
        // One that was asked for is the one there is.
        let words =
            ["--tmpfs", "/run:size=1m", "--", "sh", "-c", "df -kP /run | awk 'NR>1{print $2}'"];
        assert_eq!(lab.run(words).done().expect(0).out(), "1024\n");
    });
}

#[test]
fn a_kept_sandbox_ends_when_it_is_not_renewed() {
    each_user(|lab| {
        let words = ["--keep", "-q", "--name", "k", "--ttl", "6s", "--stop-timeout", "1s"];
        lab.run(words).done().expect(0);
        let renewed = lab.belljar(["renew", "--json", "--ttl", "1h", "k"]).done().expect(0).json();
        assert!(renewed["ttl_ms"].as_u64().unwrap() > 3_500_000, "{renewed:#}");
        std::thread::sleep(Duration::from_secs(7));
        exec(lab, &[], &["true"]).expect(0); // the first time is over, the second is not
        let unlimited = lab.belljar(["renew", "--json", "--ttl", "none", "k"]).done();
        assert_eq!(unlimited.expect(0).json()["ttl_ms"], Value::Null);
        lab.belljar(["renew", "--ttl", "1s", "k"]).done().expect(0).says(&["ends in"]);
        let waited = lab.belljar(["wait", "--json", "k"]).done().json();
        assert_eq!(waited[0]["reason"], "expired", "{waited:#}");
        let events = lab.belljar(["events", "k"]).done().out();
        assert_eq!(events.lines().filter(|line| line.contains("run.renewed")).count(), 3);
        lab.belljar(["verify", "k"]).done().expect(0);

        lab.run(["--ttl", "1h", "--", "true"]).done().expect(2).says(&["--ttl", "--keep"]);
        let id = lab.run(["-d", "--name", "d", "--", "sleep", "100"]).done().expect(0).out();
        lab.belljar(["renew", "--ttl", "1h", id.trim()]).done().expect(125).says(&["--keep"]);
        lab.belljar(["stop", "-t", "0", "d"]).done().expect(0);
    });
}

#[test]
fn a_kept_sandbox_is_forked_from_a_checkpoint() {
    each_user(|lab| {
        lab.make_file("work/file", "first");
        lab.run(["--keep", "-q", "--name", "k", "--workspace", ".:overlay"]).done().expect(0);
        exec(lab, &[], &["sh", "-c", "echo second > file; echo mine > ~/mine"]).expect(0);
        let taken = lab.belljar(["checkpoint", "--json", "--note", "a test", "k"]).done();
        assert_eq!(taken.expect(0).json()["checkpoint"], 1);
        exec(lab, &[], &["sh", "-c", "echo third > file"]).expect(0);
        assert_eq!(lab.belljar(["checkpoint", "k"]).done().expect(0).out(), "2\n");
        lab.belljar(["fork", "-q", "--from", "1", "--name", "f", "k"]).done().expect(0);
        let read = lab.belljar(["exec", "f", "--", "sh", "-c", "cat file ~/mine"]).done();
        assert_eq!(read.expect(0).out(), "second\nmine\n");
        assert_eq!(exec(lab, &[], &["cat", "file"]).out(), "third\n", "the first goes on");
        exec(lab, &["-d"], &["sleep", "100"]).expect(0);
        lab.belljar(["checkpoint", "k"]).done().expect(125).says(&["running"]);
        lab.belljar(["stop", "-t", "0", "k", "f"]).done().expect(0);
    });
}

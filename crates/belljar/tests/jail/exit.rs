//! The command's own end comes back as it was: every code, every signal, and whose it is.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use belljar_testkit::{Lab, as_root, each_actor, in_the_guest};
use serde_json::Value;

/// Signals that end a process by default.
const DEADLY: [i32; 23] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 25, 26, 27, 29, 30, 31];
/// Child ended, continue, urgent data, window size: ignored by default.
const IGNORED: [i32; 4] = [17, 18, 23, 28];
/// Stop, from a program or from a terminal.
const STOPPING: [i32; 4] = [19, 20, 21, 22];

fn assert_exit(result: &Value, reason: &str, exit: &Value) {
    assert_eq!(result["reason"], reason, "{result:#}");
    assert_eq!(&result["exit"], exit, "{result:#}");
}

#[test]
fn every_exit_code_is_the_commands_own() {
    let lab = Lab::me();
    // The guest is emulated and slow; 15 divides 255, so both ends are among them.
    let step = if in_the_guest() { 15 } else { 1 };
    for code in (0..=255).step_by(step) {
        lab.sh(&[], &format!("exit {code}")).expect(code);
    }
}

#[test]
fn exit_codes_that_belljar_uses_too_are_told_apart() {
    each_actor(|lab| {
        for code in [0, 1, 2, 124, 125, 126, 127, 128, 137, 255] {
            let result = lab.sh_json(&[], &format!("exit {code}"));
            assert_exit(
                &result,
                "exited",
                &serde_json::json!({ "code": code, "source": "command" }),
            );
            let outcome = if code == 0 { "succeeded" } else { "failed" };
            assert_eq!(result["outcome"], outcome, "{result:#}");
        }
    });
}

#[test]
fn every_deadly_signal_is_reported_by_its_number() {
    let lab = Lab::me();
    for signal in DEADLY {
        // As a program of its own: some shells do not mind all of them.
        let script = format!("(sleep 0.2; kill -{signal} $$) & exec sleep 60");
        let done = lab.sh(&["--json"], &script);
        done.expect(128 + signal);
        assert_exit(
            &done.json(),
            "signal",
            &serde_json::json!({ "signal": signal, "source": "command" }),
        );
    }
}

/// What the caller ignores, as `nohup` does, is its own affair.
#[test]
fn signals_that_the_caller_ignores_work_inside() {
    each_actor(|lab| {
        let wrapper = ["sh", "-c", "trap '' HUP INT QUIT PIPE TERM USR1 CHLD; exec \"$0\" \"$@\""];
        let script = "grep -E 'Sig(Blk|Ign)' /proc/self/status | cut -f 2; kill -TERM $$; sleep 60";
        let done = lab.run(["--", "sh", "-c", script]).through(&wrapper).done();
        let out = done.expect(143).out();
        // The C library keeps 32 and 33 to itself.
        let sets = out.lines().map(|set| u64::from_str_radix(set, 16).unwrap() & !(3 << 31));
        assert_eq!(sets.collect::<Vec<_>>(), [0, 0], "{out}");
    });
}

#[test]
fn kill_9_is_137_for_everybody() {
    each_actor(|lab| {
        let done = lab.sh(&[], "kill -9 $$");
        done.expect(137);
        let result = lab.sh_json(&[], "kill -9 $$");
        assert_exit(&result, "signal", &serde_json::json!({ "signal": 9, "source": "command" }));
        assert_eq!(result["outcome"], "failed");
    });
}

#[test]
fn ignored_signals_end_nothing() {
    let lab = Lab::me();
    for signal in IGNORED {
        lab.sh(&[], &format!("kill -{signal} $$; exit 42")).expect(42);
    }
}

/// A stopped command is not over: it goes on when it is told to, and its true code comes back.
#[test]
fn a_stopped_command_goes_on_and_ends_as_itself() {
    let lab = Lab::me();
    for signal in STOPPING {
        // The terminal's stop signals are lost in an orphaned process group, as on any Linux.
        let script = format!("me=$$; (sleep 0.3; kill -CONT $me) & kill -{signal} $$; exit 43");
        lab.sh(&[], &script).expect(43);
    }
}

/// A stopped command holds no deadline up.
#[test]
fn a_command_that_stopped_itself_still_has_a_deadline() {
    let lab = Lab::me();
    let result = lab.sh_json(&["--timeout", "1s", "--stop-timeout", "1s"], "kill -STOP $$; exit 0");
    assert_exit(&result, "deadline", &serde_json::json!({ "code": 124, "source": "deadline" }));
}

#[test]
fn a_command_that_is_not_there_is_127_and_not_its_own() {
    each_actor(|lab| {
        for name in ["no-such-program", "/no/such/program", "./no-such-program", "/etc/passwd/x"] {
            let done = lab.run(["--", name]).done();
            done.expect(127).says(&["not found inside the sandbox"]);
            let result = lab.run(["--json", "--", name]).done().json();
            assert_exit(&result, "error", &serde_json::json!({ "code": 127, "source": "sandbox" }));
            assert_eq!(result["failure"]["kind"], "not_found", "{result:#}");
        }
    });
}

#[test]
fn a_command_that_cannot_be_executed_is_126_and_not_its_own() {
    each_actor(|lab| {
        lab.make_file("work/plain", "echo hello\n");
        lab.make_program("work/without-interpreter-line", "\u{1}\u{2}\u{3}\n");
        for name in ["./plain", "./without-interpreter-line", "/tmp", "/workspace"] {
            let done = lab.run(["--", name]).done();
            done.expect(126);
            assert!(done.err().contains(name), "{done}");
            let result = lab.run(["--json", "--", name]).done().json();
            assert_exit(&result, "error", &serde_json::json!({ "code": 126, "source": "sandbox" }));
            assert_eq!(result["failure"]["kind"], "not_executable", "{result:#}");
        }
        // The control: the same file, executable and with its first line.
        lab.make_program("work/plain", "#!/bin/sh\nexit 9\n");
        lab.run(["--", "./plain"]).done().expect(9);
    });
}

#[test]
fn a_missing_interpreter_is_not_the_commands_own_127() {
    let lab = Lab::me();
    lab.make_program("work/script", "#!/no/such/interpreter\n");
    let result = lab.run(["--json", "--", "./script"]).done().json();
    assert_eq!(result["exit"]["source"], "sandbox", "{result:#}");
    assert_eq!(result["exit"]["code"], 127, "{result:#}");
}

#[test]
fn a_program_of_the_host_that_is_not_inside_comes_with_a_hint() {
    let lab = Lab::me();
    // Beside the system's directories, as /opt is: there the hint can be followed.
    let somewhere = if as_root() { PathBuf::from("/") } else { lab.work() };
    let prefix = tempfile::Builder::new().prefix("belljar-tool-").tempdir_in(somewhere).unwrap();
    fs::set_permissions(prefix.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let bin = prefix.path().join("bin");
    let tool = bin.join("only-here");
    fs::create_dir(&bin).unwrap();
    fs::write(&tool, "#!/bin/sh\necho from the tool\n").unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();

    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display());
    let prefix = prefix.path().to_str().unwrap();
    let done = lab.run(["--", "only-here"]).env("PATH", &path).done();
    if lab.engine.is_some() {
        // A program of the host need not run in an image.
        done.expect(127).says(&["hint:", "the image does not contain only-here"]);
        return;
    }
    done.expect(127).says(&["hint:", &format!("--tool {prefix}")]);
    if as_root() {
        let done = lab.run(["--tool", prefix, "--", "only-here"]).env("PATH", &path).done();
        assert_eq!(done.expect(0).out(), "from the tool\n");
    }
}

#[test]
fn the_result_file_tells_the_same_and_leaves_the_streams_alone() {
    each_actor(|lab| {
        let file = lab.work().join("result.json");
        let options = ["--result", "result.json"];
        let done = lab.sh(&options, "echo out; echo err >&2; exit 7");
        done.expect(7);
        assert_eq!((done.out().as_str(), done.err().as_str()), ("out\n", "err\n"));
        let result: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_exit(&result, "exited", &serde_json::json!({ "code": 7, "source": "command" }));
        assert_eq!(lab.runs(), [result["id"].as_str().unwrap()]);

        // A refusal is told there too.
        lab.run(["--result", "result.json", "--backend", "docker", "--", "true"])
            .done()
            .expect(125);
        let result: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(result["outcome"], "refused", "{result:#}");
        assert_eq!(result["exit"]["code"], 125, "{result:#}");
        let left: Vec<_> =
            fs::read_dir(lab.work()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["result.json"], "no draft stays");
    });
}

#[test]
fn the_record_says_what_the_caller_was_told() {
    each_actor(|lab| {
        let result = lab.sh_json(&[], "exit 3");
        let id = result["id"].as_str().unwrap();
        let record = lab.record(id);
        assert_eq!(record["outcome"]["exit"], result["exit"], "{record:#}");
        assert_eq!(record["outcome"]["reason"], "exited", "{record:#}");
        assert_eq!(record["posture"], result["posture"], "{record:#}");
        assert_eq!(lab.live(), Vec::<String>::new());
    });
}

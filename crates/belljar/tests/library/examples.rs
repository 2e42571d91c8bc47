//! Every example of the library, run for real as root and as an ordinary user, with the executable beside it.

use std::fs;
use std::path::Path;

use belljar_testkit::{Actor, Done, Input, Lab, actors, built};
use serde_json::Value;

/// Runs a test for root and for an ordinary user, with an example in place of the command.
fn each_user_of(example: &str, test: impl Fn(&Lab)) {
    for actor in actors().into_iter().filter(|actor| *actor != Actor::Delegated) {
        eprintln!("--- {example} as {actor:?}");
        let mut lab = Lab::new(actor);
        let program = lab.exe.with_file_name(example);
        let from = built(&format!("examples/{example}"));
        // A link where that works: a copy that another thread's child inherited open for writing cannot be started.
        let placed =
            fs::hard_link(&from, &program).or_else(|_| fs::copy(&from, &program).map(drop));
        placed
            .unwrap_or_else(|error| panic!("{}: {error}; cargo build --examples", from.display()));
        lab.exe = program;
        test(&lab);
    }
}

fn call(lab: &Lab, words: &[&str]) -> Done {
    let done = lab.belljar(words).done();
    done.expect(0);
    done
}

#[test]
fn quickstart_is_what_the_documents_show() {
    each_user_of("quickstart", |lab| {
        lab.make_file("work/here", "x");
        let done = call(lab, &[]);
        assert!(done.out().contains("Some(0) built.txt\nhere\n"), "{done}");
        assert!(done.out().contains("Created built.txt"), "{done}");
        assert!(!lab.work().join("built.txt").exists());
    });
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let example = fs::read_to_string(root.join("examples/quickstart.rs")).unwrap();
    let body = example.split_once("fn main() -> Result<(), Error> {\n").unwrap().1;
    let body = body.strip_suffix("}\n").unwrap();
    let body: String =
        body.lines().map(|line| format!("{}\n", line.strip_prefix("    ").unwrap())).collect();
    for page in ["README.md", "docs/library.md"] {
        let text = fs::read_to_string(root.join("../..").join(page)).unwrap();
        assert!(text.contains(&body), "{page} does not show:\n{body}");
    }
}

#[test]
fn shell_tool() {
    each_user_of("shell_tool", |lab| {
        let lines = concat!(
            r#"{"command": "echo out; echo err >&2; echo made > file; exit 3"}"#,
            "\n",
            r#"{"command": "cat file; head -c 100000 /dev/zero | tr '\\0' x"}"#,
            "\n",
            r#"{"command": "echo started; sleep 1000", "timeout_s": 1}"#,
            "\n",
            "not json\n"
        );
        let done = lab.belljar([""; 0]).input(Input::Bytes(lines.into())).done();
        done.expect(0);
        let out = done.out();
        let replies: Vec<Value> =
            out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(replies.len(), 4, "{done}");
        assert_eq!((&replies[0]["stdout"], &replies[0]["exit"]), (&"out\n".into(), &3.into()));
        assert_eq!(replies[0]["stderr"], "err\n");
        assert_eq!(replies[1]["truncated"], true);
        assert!(replies[1]["stdout"].as_str().unwrap().starts_with("made\n"), "{done}");
        assert!(replies[1]["stdout"].as_str().unwrap().len() < 40_000);
        assert_eq!(
            (&replies[2]["timed_out"], &replies[2]["stdout"]),
            (&true.into(), &"started\n".into())
        );
        assert!(replies[3]["error"].is_string());
        assert_eq!(fs::read_to_string(lab.work().join("file")).unwrap(), "made\n");
        assert_eq!(lab.live(), Vec::<String>::new());
    });
}

#[test]
fn test_runner() {
    each_user_of("test_runner", |lab| {
        lab.make_file("work/test.sh", "echo checking; echo log > log; exit $1\n");
        let run = |code: &str| lab.belljar([".", "sh", "test.sh", code]).done();
        let report = |done: &Done| serde_json::from_str::<Value>(&done.out()).unwrap();
        let passed = run("0");
        passed.expect(0);
        assert_eq!(report(&passed)["passed"], true);
        assert_eq!(report(&passed)["written"], serde_json::json!(["log"]));
        let failed = run("7");
        assert_eq!(failed.code(), 1, "{failed}");
        assert_eq!(
            (&report(&failed)["exit"], &report(&failed)["stdout"]),
            (&7.into(), &"checking\n".into())
        );
        assert!(!lab.work().join("log").exists());
        assert_eq!(lab.belljar(["."]).done().code(), 2);
    });
}

#[test]
fn agent_loop() {
    each_user_of("agent_loop", |lab| {
        let done = call(lab, &[]);
        assert_eq!(done.out().matches("exit code 0").count(), 3, "{done}");
        assert_eq!(done.out().matches("back to checkpoint").count(), 2, "{done}");
        assert!(!lab.work().join("RESULT").exists());
        let done = call(lab, &["--apply"]);
        assert!(done.out().contains("applied 4 changes"), "{done}");
        assert_eq!(fs::read_to_string(lab.work().join("RESULT")).unwrap(), "it works\n");
        assert_eq!(lab.live(), Vec::<String>::new());
    });
}

#[test]
fn egress_secret() {
    each_user_of("egress_secret", |lab| {
        let done = call(lab, &[]);
        let expected = "the service said: welcome\nthe key is inside: False\nanother host was not reached\n\
                        recorded: allowed\nrecorded: denied\n";
        assert_eq!(done.out(), expected, "{done}");
    });
}

#[test]
fn fleet() {
    each_user_of("fleet", |lab| {
        lab.make_file("work/base", "b\n");
        let script = "echo \"worker $WORKER\"; echo $WORKER > answer; test $WORKER != 2";
        let done = call(lab, &["3", "sh", "-c", script]);
        for (number, code) in [(1, 0), (2, 1), (3, 0)] {
            let line =
                format!("worker {number}: exit code {code}, 1 paths changed: worker {number}\n");
            assert!(done.out().contains(&line), "{done}");
        }
        let best = if done.out().contains("best: worker 1\n") { 1 } else { 3 };
        assert!(done.out().contains(&format!("best: worker {best}\n")), "{done}");
        assert!(done.out().contains(&format!("+{best}\n")), "{done}");
        assert_eq!(fs::read_dir(lab.work()).unwrap().count(), 1);
    });
}

//! The stand-in agent, called as belljar calls the real ones, and what is heard of it.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use belljar_run::agent::replay::{AgentReplay, ReplayedRun};
use belljar_spec::manifest::{AgentKind, Auth, Permissions};
use belljar_spec::{AgentEvent, AgentSpec, Exit, ExitSource, Failure, Money, OsText};
use belljar_testkit::built;

const KINDS: [AgentKind; 3] = [AgentKind::Claude, AgentKind::Codex, AgentKind::Gemini];

struct Stage {
    place: tempfile::TempDir,
    spec: AgentSpec,
    session: AgentReplay,
}

impl Stage {
    fn new(kind: AgentKind) -> Self {
        let place = tempfile::tempdir().unwrap();
        let built = built("examples/stand_in_agent");
        let program: PathBuf = place.path().join(kind.name());
        std::fs::copy(&built, &program).unwrap_or_else(|error| panic!("{built:?}: {error}"));
        std::fs::create_dir(place.path().join(".codex")).unwrap();
        let spec = AgentSpec {
            kind,
            program: vec![OsText::from(program.as_path())],
            format: None,
            prompt: String::new(),
            model: Some("m".into()),
            args: Vec::new(),
            permissions: Permissions::Bypass,
            auth: Auth::Secret,
            max_turns: None,
            max_cost: None,
            max_tokens: None,
        };
        Self { place, spec, session: AgentReplay::default() }
    }

    /// One run of it, in the stage's own directory and home.
    fn play(&mut self, script: &str) -> ReplayedRun {
        self.spec.prompt = script.to_owned();
        let (argv, stdin) =
            self.session.command(&self.spec, Some(9), Some(Money::from_micros(500_000)));
        let words: Vec<_> = argv.iter().map(|word| word.as_path().as_os_str()).collect();
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .current_dir(self.place.path())
            .env_clear()
            .env("HOME", self.place.path())
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&stdin).unwrap();
        let done = child.wait_with_output().unwrap();
        let exit = Exit {
            code: done.status.code(),
            signal: done.status.signal().and_then(|signal| signal.try_into().ok()),
            source: ExitSource::Command,
        };
        self.session.parse(&self.spec, &done.stdout, exit)
    }

    fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.place.path().join(path)).unwrap()
    }
}

#[test]
fn each_format_is_spoken_and_understood() {
    for kind in KINDS {
        let mut stage = Stage::new(kind);
        let heard = stage.play(
            "tokens 100 20\ncost 0.25\nsay I begin\nthink hm\nrun sh -c exit\nwrite a/b one two\n\
             append a/b three\ntool Look around\nsay All is DONE",
        );
        assert_eq!(heard.failure, None, "{kind:?}");
        assert_eq!(heard.unparsed, 0, "{kind:?}");
        assert_eq!((heard.usage.input_tokens, heard.usage.output_tokens), (100, 20), "{kind:?}");
        let cost = if kind == AgentKind::Claude { 250_000 } else { 0 };
        assert_eq!(heard.usage.cost_usd.micros(), cost, "{kind:?}");
        assert_eq!(heard.final_text, "All is DONE", "{kind:?}");
        assert_eq!(heard.turns, 5, "{kind:?}");
        assert_eq!(stage.text("a/b"), "one two\nthree\n");
        let calls =
            heard.events.iter().filter(|event| matches!(event, AgentEvent::ToolCall { .. }));
        let results =
            heard.events.iter().filter(|event| matches!(event, AgentEvent::ToolResult { .. }));
        assert_eq!((calls.count(), results.count()), (4, 4), "{kind:?}");
    }
}

#[test]
fn a_session_goes_on_and_its_sums_are_counted_once() {
    for kind in KINDS {
        let mut stage = Stage::new(kind);
        for _ in 0..3 {
            let heard = stage.play("tokens 1000 10\ncost 0.5\ncount n\nsay next");
            assert_eq!(heard.failure, None, "{kind:?}");
            assert_eq!(heard.usage.input_tokens, 1000, "{kind:?}");
            assert_eq!(heard.turns, 2, "{kind:?}");
            if kind == AgentKind::Claude {
                assert_eq!(heard.usage.cost_usd.micros(), 500_000);
            }
        }
        assert_eq!(stage.text("n"), "3\n");
        assert_eq!(stage.play("done-when n 4 DONE").final_text, "");
        assert_eq!(stage.play("done-when n 3 DONE").final_text, "DONE");
    }
}

#[test]
fn crashes_floods_garbage_and_lies_are_told_apart() {
    for kind in KINDS {
        let mut stage = Stage::new(kind);
        let crashed = stage.play("say hello\ncrash");
        assert!(matches!(crashed.failure, Some(Failure::Exit { exit }) if exit.signal == Some(6)));
        assert_eq!(crashed.final_text, "hello", "{kind:?}");

        let failed = stage.play("error the service is out of reach");
        assert!(matches!(failed.failure, Some(Failure::Reported { .. })), "{kind:?}");

        let code = stage.play("exit 3");
        assert!(matches!(code.failure, Some(Failure::Exit { exit }) if exit.code == Some(3)));

        let garbage = stage.play("garbage\nsay fine");
        assert_eq!((garbage.unparsed, garbage.failure), (4, None), "{kind:?}");

        let flood = stage.play("flood 2\nlong-line 1\nsay over");
        assert_eq!((flood.unparsed, flood.final_text.ends_with("over")), (0, true), "{kind:?}");

        let too_long = stage.play("long-line 17\nrun true\nsay over");
        assert_eq!((too_long.unparsed, too_long.failure), (1, None), "{kind:?}");
    }
    for lie in ["-5", "nan", "1e300"] {
        let lied = Stage::new(AgentKind::Claude).play(&format!("lie-cost {lie}"));
        assert_eq!(lied.usage.cost_usd, Money::ZERO, "{lie}");
        let is_reported = |event: &AgentEvent| matches!(event, AgentEvent::Error { message } if message.contains("not a valid amount"));
        assert!(lied.events.iter().any(is_reported), "{lie}");
    }
}

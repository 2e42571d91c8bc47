//! An agent's own terminal interface with its preset, and a command that prints an agent's format.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use belljar_testkit::{Lab, PtyRun, built, each_user};
use serde_json::Value;

/// The stand-in as a program of the host's, by that name. Returns the `PATH` that has it.
fn install(lab: &Lab, name: &str) -> String {
    let bytes = fs::read(built("examples/stand_in_agent")).unwrap();
    let program = lab.make_file(format!("person/agents/bin/{name}"), bytes);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:/usr/bin:/bin", program.parent().unwrap().display())
}

#[test]
fn an_agent_opens_on_the_terminal_with_its_preset() {
    const QUIET: &str = "-c features.api_key_model_discovery=false -c features.plugins=false -c features.apps=false \
                         -c analytics.enabled=false";
    let codex = format!("--dangerously-bypass-approvals-and-sandbox {QUIET} --model m");
    let kinds = [
        ("claude", "--dangerously-skip-permissions --model m", "ANTHROPIC_API_KEY"),
        ("codex", codex.as_str(), "CODEX_API_KEY"),
        ("gemini", "--approval-mode yolo --model m", "GEMINI_API_KEY"),
    ];
    each_user(|lab| {
        for (kind, arguments, key) in kinds {
            let path = install(lab, kind);
            let words = ["run", "--agent", kind, "-t", "-c", "agent.model=m", "--name", kind];
            let call = lab.belljar(words).env("PATH", &path).env(key, "sk-real-value-0123456789");
            let mut run = PtyRun::start(&call.through(PtyRun::SESSION), 40, 200);
            run.wait_for(&format!("ready: {arguments}\r\n"));
            run.type_in(&format!("env {key}\r"));
            run.wait_for(&format!("{key} is Ok(\"belljar-{}-", key.to_lowercase()));
            run.type_in("write made.txt by-hand\r");
            run.wait_for("wrote made.txt");
            if kind == "codex" {
                run.type_in("read /home/agent/.codex/auth.json\r");
                run.wait_for("OPENAI_API_KEY\\\": \\\"belljar-placeholder");
            }
            if kind == "claude" {
                run.type_in("read /home/agent/.claude/.claude.json\r");
                run.wait_for("hasCompletedOnboarding");
            }
            if kind == "gemini" {
                run.type_in("read /home/agent/.gemini/settings.json\r");
                run.wait_for("selectedType");
            }
            run.type_in("quit 7\r");
            let (code, screen) = run.end();
            assert_eq!(code, 7, "{screen}");
            assert!(!screen.contains("sk-real-value"), "{screen}");
            // One run, recorded as a command; what it made waits for review.
            let shown = lab.belljar(["show", "--json", kind]).done().json();
            assert_eq!(shown["run"]["exit"]["code"], 7, "{shown:#}");
            assert_eq!(shown["iterations"].as_array().map_or(0, Vec::len), 0, "{shown:#}");
            let changed = lab.belljar(["diff", "--name-only", kind]).done();
            assert_eq!(changed.expect(0).out(), "made.txt\n");
            let logged = lab.belljar(["logs", kind]).done();
            assert!(logged.expect(0).out().contains("wrote made.txt"), "{logged}");
        }
        assert!(!lab.work().join("made.txt").exists());
        lab.assert_all_sound();
        lab.assert_nothing_lives(&lab.runs());
    });
}

#[test]
fn what_makes_no_sense_on_a_terminal_is_refused() {
    let lab = Lab::me();
    let path = install(&lab, "claude");
    let run_kind = |kind: &str, words: &[&str]| {
        let words = [&["run", "--agent", kind, "-t"], words].concat();
        let call = lab.belljar(words).env("PATH", &path);
        PtyRun::start(&call.through(PtyRun::SESSION), 24, 300).end()
    };
    let run = |words: &[&str]| run_kind("claude", words);
    for (words, why) in [
        (&["--prompt", "x"][..], "agent.prompt (--prompt) is for an agent that belljar drives"),
        (&["--max-iterations", "2"], "loop.max_iterations (--max-iterations) is for an agent"),
        (&["--max-cost-usd", "2"], "loop.max_cost_usd (--max-cost-usd) is for an agent"),
        (&["-d"], "an agent on a terminal (-t) cannot be used with -d: nobody"),
        (&["--json"], "an agent on a terminal (-t) cannot be used with --json: what"),
    ] {
        let (code, screen) = run(words);
        assert!(code == 2 && screen.contains(why), "{words:?}: {code} {screen}");
    }
    let nobody = lab.run(["--agent", "claude", "-t"]).env("PATH", &path).done();
    nobody.expect(2).says(&["needs standard input and output to be a terminal", "--prompt TEXT"]);
    let (code, screen) = run_kind("command", &["-c", "agent.command=[\"true\"]"]);
    assert!(code == 125 && screen.contains("belljar run -t COMMAND"), "{code} {screen}");
    let host = run(&["--backend", "host", "--waive", "all=x"]);
    assert!(host.0 == 125 && host.1.contains("needs a boundary"), "{host:?}");
    assert_eq!(lab.belljar(["ps", "-aq"]).done().out(), "");
    // What a manifest says about the agent that belljar drives is named, and stays unused.
    lab.make_file(
        "work/belljar.toml",
        "[agent]\nkind = \"claude\"\nprompt = \"Work.\"\n[loop]\nmax_iterations = 3\n",
    );
    let words = ["run", "--manifest", "belljar.toml", "-t", "--network", "none"];
    let call = lab.belljar(words).env("PATH", &path);
    let mut control = PtyRun::start(&call.through(PtyRun::SESSION), 24, 300);
    control.wait_for("not used on a terminal (-t): agent.prompt, loop.max_iterations");
    control.wait_for("ready: ");
    control.type_in("quit 0\r");
    assert_eq!(control.end().0, 0);
    let dry = lab.run(["--agent", "claude", "-t", "--dry-run", "--no-config"]).env("PATH", &path);
    dry.done().expect(0).prints(&["claude --dangerously-skip-permissions", "over /workspace"]);
}

#[test]
fn a_commands_output_is_parsed_in_the_format_that_it_has() {
    let lab = Lab::me();
    install(&lab, "speaker");
    let program = lab.path("person/agents/bin/speaker");
    let run = |speaks: &str, format: &str| -> Value {
        let arguments = match speaks {
            "claude" => "-p --output-format stream-json --verbose",
            "codex" => "exec --json -",
            _ => "--output-format stream-json",
        };
        lab.make_file(
            "work/belljar.toml",
            format!(
                "[agent]\nkind = \"command\"\ncommand = [\"sh\", \"-c\", \"mkdir -p ~/.codex && exec {0} --speak {speaks} {arguments}\"]\n{format}\n\
                 prompt = \"tokens 100 20\\ncost 0.25\\nrun true\\nsay All is DONE\"\n\
                 [sandbox]\nmounts = [{{ source = \"{0}\", target = \"{0}\" }}]\n",
                program.display()
            ),
        );
        lab.run(["--manifest", "belljar.toml", "--json"]).done().json()
    };
    let calls = |result: &Value| {
        let id = result["id"].as_str().unwrap();
        let events = lab.events(id).into_iter();
        events.filter(|event| event.kind == belljar::spec::EventKind::AgentToolCall).count()
    };
    for speaks in ["claude", "codex", "gemini"] {
        let parsed = run(speaks, &format!("format = \"{speaks}\""));
        assert_eq!(parsed["exit"]["code"], 0, "{parsed:#}");
        assert_eq!(parsed["agent"]["message"], "All is DONE", "{parsed:#}");
        let usage = &parsed["agent"]["totals"]["usage"];
        assert_eq!((&usage["input_tokens"], &usage["output_tokens"]), (&100.into(), &20.into()));
        assert_eq!(calls(&parsed), 1, "{speaks}");
        // Without it each line is a message.
        let plain = run(speaks, "");
        assert_eq!(plain["exit"]["code"], 0, "{plain:#}");
        assert_eq!(calls(&plain), 0, "{speaks}");
        assert_ne!(plain["agent"]["message"], "All is DONE", "{plain:#}");
    }
    // An output in another format has no result, and that is a failure.
    let wrong = run("claude", "format = \"codex\"");
    assert_eq!(wrong["exit"]["code"], 1, "{wrong:#}");
}

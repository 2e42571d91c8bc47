//! A run: a tool call that executes inside, an edit that `belljar diff` shows, and what is recorded.

use belljar::spec::EventKind;
use belljar_testkit::{RealAgent, Transport, Turn, WebSockets};

use crate::stage::{Place, Stage, USAGE, with};

fn script() -> [Turn; 4] {
    [
        // No substitution: gemini refuses those in a command.
        Turn::run("expr 6 \\* 7 > made.txt && readlink /proc/self/ns/pid > namespace.txt"),
        Turn::Read("notes.txt"),
        Turn::Edit { path: "notes.txt", old: "second", new: "the second, edited" },
        Turn::say("All is done."),
    ]
}

pub(crate) fn a_tool_call_and_an_edit(stage: &Stage<'_>) {
    stage.model.play(script());
    let done = stage.run(&["--json", "--name", "work", "--prompt", "Please do the work."]).done();
    let result = done.json();
    assert_eq!(result["reason"], "exited", "{done}");
    assert_eq!(done.code(), 0, "{done}");
    stage.assert_script_is_played();
    stage.assert_only_its_service_was_used();
    let by = stage.model.conversation().iter().map(|one| one.transport).collect::<Vec<_>>();
    let expected = match stage.agent {
        RealAgent::Codex => Transport::WebSocket,
        RealAgent::Claude | RealAgent::Gemini => Transport::Http,
    };
    assert!(by.iter().all(|transport| *transport == expected), "{by:?}");

    let patch = stage.patch("work");
    assert!(patch.contains("-second\n+the second, edited\n"), "{patch}");
    assert!(patch.contains("made.txt") && patch.contains("+42\n"), "{patch}");
    let work = stage.lab.work();
    assert!(!work.join("made.txt").exists(), "the workspace is an overlay");
    // The command ran in the sandbox: in another pid namespace than this test.
    let mine = std::fs::read_link("/proc/self/ns/pid").unwrap();
    assert!(patch.contains("+pid:["), "{patch}");
    assert!(!patch.contains(mine.to_str().unwrap()), "{patch}");

    let id = result["id"].as_str().unwrap();
    let calls = stage.events(id, EventKind::AgentToolCall);
    let results = stage.events(id, EventKind::AgentToolResult);
    assert_eq!((calls.len(), results.len()), (3, 3), "{calls:#?} {results:#?}");
    assert!(results.iter().all(|one| one["is_error"] == false), "{results:#?}");
    assert!(calls[0].to_string().contains("expr 6"), "{calls:#?}");
    let shown = stage.show("work");
    let used = &shown["agent"]["totals"]["usage"];
    let turns = 4;
    assert_eq!(used["input_tokens"], turns * USAGE.input_tokens, "{shown:#}");
    assert_eq!(used["output_tokens"], turns * USAGE.output_tokens, "{shown:#}");
    if stage.agent == RealAgent::Claude {
        assert!(used["cost_usd"].as_f64().unwrap() > 0.0, "{shown:#}");
    }
    let logged = stage.belljar(&["logs", "--agent", "work"]).done();
    logged.expect(0).prints(&["All is done."]);
    stage.lab.assert_all_sound();
    stage.lab.assert_nothing_lives(&stage.lab.runs());
}

/// The agent's own report decides.
pub(crate) fn a_service_that_fails(stage: &Stage<'_>) {
    stage.model.play(std::iter::repeat_n(Turn::Fail(400), 12));
    let done = stage.run(&["--json", "--name", "work", "--prompt", "Please do the work."]).done();
    assert_ne!(done.code(), 0, "{done}");
    let id = done.json()["id"].as_str().unwrap().to_owned();
    let results = stage.events(&id, EventKind::AgentResult);
    let failed = stage.lab.events(&id).into_iter().any(|event| event.kind == EventKind::AgentError);
    assert!(failed || results.iter().any(|one| one["is_error"] == true), "{results:#?}");
    stage.lab.assert_all_sound();
}

/// Without a WebSocket codex uses HTTP.
#[test]
#[ignore = "needs the real agents: cargo xtask test agents"]
fn real_codex_over_server_sent_events() {
    with(RealAgent::Codex, Place::JailAsRoot, |stage| {
        stage.model.set_websockets(WebSockets::Refused);
        stage.model.play(script());
        let words = ["--json", "--name", "work", "--prompt", "Please do the work."];
        let done = stage.run(&words).done();
        assert_eq!(done.json()["reason"], "exited", "{done}");
        assert_eq!(done.code(), 0, "{done}");
        stage.assert_script_is_played();
        let conversation = stage.model.conversation();
        assert!(conversation.iter().all(|one| one.transport == Transport::Http));
        let patch = stage.patch("work");
        assert!(patch.contains("+the second, edited\n") && patch.contains("+42\n"), "{patch}");
    });
}

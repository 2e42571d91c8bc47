//! The command line of each agent.

use belljar_spec::manifest::{AgentKind, Auth, Permissions};
use belljar_spec::{AgentSpec, Money, OsText};

use super::super::{Remaining, SessionUse, adapter};

/// What keeps codex from requests that the run denies.
const QUIET: &str = "-c features.api_key_model_discovery=false -c features.plugins=false -c features.apps=false \
                     -c analytics.enabled=false";
const ID: &str = "0b9c5b43-5f7e-4b67-9d53-0f0b8f5b1a11";

fn spec(kind: AgentKind) -> AgentSpec {
    AgentSpec {
        kind,
        program: vec![OsText::from(kind.name())],
        format: None,
        prompt: "do it; $(rm -rf /)".into(),
        model: None,
        args: Vec::new(),
        permissions: Permissions::Bypass,
        auth: Auth::Secret,
        max_turns: None,
        max_cost: None,
        max_tokens: None,
    }
}

fn called(spec: &AgentSpec, session: &SessionUse, remaining: Remaining) -> String {
    let called = adapter(spec.kind).invocation(spec, session, remaining);
    assert_eq!(called.stdin, spec.prompt.as_bytes());
    let argv: Vec<String> = called.argv.iter().map(ToString::to_string).collect();
    assert!(
        !argv.iter().any(|argument| argument.contains("rm -rf")),
        "the prompt is not an argument"
    );
    argv.join(" ")
}

fn sessions() -> [SessionUse; 3] {
    let id = ID.to_owned();
    [
        SessionUse::New { id: id.clone() },
        SessionUse::Continue { id: id.clone() },
        SessionUse::Fork { id },
    ]
}

#[test]
fn a_session_is_begun_continued_and_forked() {
    let called =
        |kind| sessions().map(|session| called(&spec(kind), &session, Remaining::default()));
    let claude = "claude -p --output-format stream-json --verbose";
    assert_eq!(
        called(AgentKind::Claude),
        [
            format!("{claude} --session-id {ID} --dangerously-skip-permissions"),
            format!("{claude} --resume {ID} --dangerously-skip-permissions"),
            format!("{claude} --resume {ID} --fork-session --dangerously-skip-permissions"),
        ]
    );
    let codex = format!(
        "codex exec --json --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox {QUIET}"
    );
    assert_eq!(
        called(AgentKind::Codex),
        [format!("{codex} -"), format!("{codex} resume {ID} -"), format!("{codex} fork {ID} -"),]
    );
    let gemini = "gemini --output-format stream-json --approval-mode yolo";
    assert_eq!(
        called(AgentKind::Gemini),
        [gemini.to_owned(), format!("{gemini} --resume {ID}"), format!("{gemini} --resume {ID}"),]
    );
    assert_eq!(called(AgentKind::Command), ["command", "command", "command"]);
}

#[test]
fn model_budgets_permissions_and_further_arguments_are_passed() {
    let remaining = Remaining { turns: Some(7), cost: Some(Money::from_micros(1_250_000)) };
    let called = |kind, permissions| {
        let spec = AgentSpec {
            model: Some("m".into()),
            args: vec!["--extra".into(), "a b".into()],
            permissions,
            ..spec(kind)
        };
        called(&spec, &sessions()[1], remaining)
    };
    let claude = format!("claude -p --output-format stream-json --verbose --resume {ID}");
    let rest = "--model m --max-turns 7 --max-budget-usd 1.25 --extra a b";
    assert_eq!(
        called(AgentKind::Claude, Permissions::AcceptEdits),
        format!("{claude} --permission-mode acceptEdits {rest}")
    );
    assert_eq!(
        called(AgentKind::Claude, Permissions::Ask),
        format!("{claude} --permission-mode default {rest}")
    );
    let codex = "codex exec --json --skip-git-repo-check";
    assert_eq!(
        called(AgentKind::Codex, Permissions::AcceptEdits),
        format!(
            "{codex} -c sandbox_mode=\"workspace-write\" {QUIET} --model m --extra a b resume {ID} -"
        )
    );
    assert_eq!(
        called(AgentKind::Codex, Permissions::Ask),
        format!(
            "{codex} -c sandbox_mode=\"read-only\" {QUIET} --model m --extra a b resume {ID} -"
        )
    );
    let gemini = "gemini --output-format stream-json --approval-mode";
    assert_eq!(
        called(AgentKind::Gemini, Permissions::AcceptEdits),
        format!("{gemini} auto_edit --resume {ID} --model m --extra a b")
    );
    assert_eq!(
        called(AgentKind::Gemini, Permissions::Ask),
        format!("{gemini} default --resume {ID} --model m --extra a b")
    );
    assert_eq!(called(AgentKind::Command, Permissions::Ask), "command --extra a b");
}

#[test]
fn the_operators_settings_of_codex_come_after_ours() {
    let args = vec!["-c".to_owned(), "features.apps=true".to_owned()];
    let spec = AgentSpec { args, ..spec(AgentKind::Codex) };
    let argv = called(&spec, &sessions()[0], Remaining::default());
    let (ours, theirs) = (argv.find("features.apps=false"), argv.find("features.apps=true"));
    assert!(ours.is_some() && ours < theirs, "{argv}");
}

/// A session id comes from the sandbox.
#[test]
fn no_session_name_becomes_an_option() {
    for kind in [AgentKind::Claude, AgentKind::Codex, AgentKind::Gemini] {
        for id in ["--mcp-config=x", "", "a b", "-"] {
            let session = SessionUse::Continue { id: id.to_owned() };
            let argv = called(&spec(kind), &session, Remaining::default());
            assert!(!argv.contains("resume"), "{argv}");
        }
    }
}

//! Parses recorded output of every agent.

#![allow(clippy::unwrap_used, reason = "a test")]

use belljar_spec::manifest::AgentKind;
use belljar_spec::{Failure, Money, TokenUsage};

use super::{SessionTotals, brief, exit, parsed, parser};

#[test]
fn claude_is_understood() {
    let (events, parser) = parsed(AgentKind::Claude, include_str!("../fixtures/claude.jsonl"));
    assert_eq!(
        brief(&events),
        [
            "session 0b9c claude-sonnet-4-5",
            "Thinking: The test fails first.",
            "+1504 2 (500) 0",
            "Assistant: I will run the tests.",
            "toolu_1> Bash make test",
            "+0 58 (0) 0",
            "toolu_1<! 2 failed",
            "error: the service failed: overloaded (status 529); attempt 1 of 10",
            "error: rate limit of the service: allowed_warning",
            "System: the conversation was compacted",
            "toolu_2> Grep fn main in src",
            "toolu_3> Task look around",
            "+1510 40 (1500) 0",
            "Assistant: from below",
            "+7 3 (0) 0",
            "toolu_2< src/main.rs:1\n[image]",
            "User: [a note]",
            "System: the look around is over",
            "Assistant: All is done.",
            "toolu_4> TodoWrite {\"todos\":[{\"content\":\"a\"}]}",
            "+12 20 (0) 0",
            "error: 1 denied: Bash rm -rf /",
            "+0 7 (0) 42100",
            "result success All is done. 4",
        ]
    );
    let summary = parser.summary();
    assert_eq!((summary.turns, summary.unparsed), (4, 0));
    assert_eq!(summary.usage.cost_usd, Money::from_micros(42_100));
    assert_eq!(summary.session.as_deref(), Some("0b9c5b43-5f7e-4b67-9d53-0f0b8f5b1a11"));
    assert_eq!(parser.failure(exit(0)), None);
    assert_eq!(parser.failure(exit(1)), Some(Failure::Exit { exit: exit(1) }));
}

#[test]
fn codex_is_understood() {
    let (events, parser) = parsed(AgentKind::Codex, include_str!("../fixtures/codex.jsonl"));
    assert_eq!(
        brief(&events),
        [
            "session 0199 -",
            "Thinking: **Looking at the tests**",
            "item_1> command_execution bash -lc 'make test'",
            "item_1<! exit code 2\n2 failed\n",
            "item_3> file_change update src/main.rs\nadd new.rs",
            "item_3< ",
            "item_4> docs.search retry",
            "item_4< found",
            "item_5> web_search rust retry",
            "item_5< ",
            "error: a command took long",
            "error: Reconnecting... 1/5",
            "System: [x] fix",
            "Assistant: All is done.",
            "+24763 122 (24448) 0",
            "result - All is done. 5",
        ]
    );
    assert_eq!(parser.failure(exit(0)), None);
}

#[test]
fn gemini_is_understood() {
    let (events, parser) = parsed(AgentKind::Gemini, include_str!("../fixtures/gemini.jsonl"));
    assert_eq!(
        brief(&events),
        [
            "session 3faa gemini-2.5-pro",
            "User: Fix the tests",
            "Assistant: I will run the tests.",
            "run_shell_command-1> run_shell_command make test",
            "run_shell_command-1< ok",
            "read_file-2> read_file /workspace/none",
            "read_file-2<! File not found",
            "error: Loop detected, stopping execution",
            "Assistant: All is done.",
            "+1000 300 (400) 0",
            "result success All is done. 3".replace("success", "-").as_str(),
        ]
    );
    assert_eq!(parser.failure(exit(0)), None);
}

#[test]
fn each_line_of_a_command_is_a_message() {
    let (events, parser) = parsed(AgentKind::Command, "one\n\n{\"two\":2}\nthree");
    assert_eq!(brief(&events), ["Assistant: one", "Assistant: {\"two\":2}", "Assistant: three"]);
    assert_eq!(parser.summary().final_text, "three");
    assert_eq!(parser.failure(exit(0)), None);
    assert_eq!(parser.failure(exit(3)), Some(Failure::Exit { exit: exit(3) }));
}

#[test]
fn the_agents_own_verdict_decides_and_none_at_all_is_a_failure() {
    let reported = |word: &str| Some(Failure::Reported { code: Some(word.to_owned()) });
    for (kind, output, failure) in [
        // With the service out of reach.
        (
            AgentKind::Claude,
            r#"{"type":"result","subtype":"success","is_error":true,"result":"API Error"}"#,
            reported("success"),
        ),
        (
            AgentKind::Claude,
            r#"{"type":"result","subtype":"error_max_turns"}"#,
            reported("error_max_turns"),
        ),
        (AgentKind::Claude, r#"{"type":"result","subtype":"success"}"#, None),
        (
            AgentKind::Codex,
            r#"{"type":"turn.failed","error":{"message":"quota"}}"#,
            reported("turn.failed"),
        ),
        (AgentKind::Codex, r#"{"type":"turn.completed"}"#, None),
        (
            AgentKind::Gemini,
            r#"{"type":"result","status":"error","error":{"type":"FatalTurnLimited","message":"m"}}"#,
            reported("FatalTurnLimited"),
        ),
        (AgentKind::Gemini, r#"{"type":"result","status":"success"}"#, None),
    ] {
        let (_, parser) = parsed(kind, output);
        assert_eq!(parser.failure(exit(0)), failure, "{output}");
    }
    for kind in [AgentKind::Claude, AgentKind::Codex, AgentKind::Gemini] {
        let (_, parser) = parsed(kind, "{\"type\":\"system\"}\n");
        assert_eq!(parser.failure(exit(0)), Some(Failure::Exit { exit: exit(0) }), "{kind:?}");
    }
}

fn claude_run(input: u64, total: u64, cost: f64, turns: u64) -> String {
    let usage = |input: u64| format!(r#"{{"input_tokens":{input},"output_tokens":10}}"#);
    format!(
        "{}\n{}\n",
        format_args!(
            r#"{{"type":"assistant","message":{{"id":"m{total}","content":[],"usage":{}}}}}"#,
            usage(input)
        ),
        format_args!(
            r#"{{"type":"result","subtype":"success","is_error":false,"num_turns":{turns},"total_cost_usd":{cost},"usage":{}}}"#,
            usage(total)
        ),
    )
}

/// Versions differ: some totals are per session, some per process. Each is counted once.
#[test]
fn a_resumed_session_is_counted_once_whichever_totals_it_reports() {
    for (second_total, second_cost, second_turns) in [(2500, 0.25, 5), (1500, 0.15, 3)] {
        let mut first = parser(AgentKind::Claude, SessionTotals::default());
        first.feed(claude_run(1000, 1000, 0.10, 2).as_bytes());
        assert_eq!(first.summary().usage.input_tokens, 1000);
        let mut second = parser(AgentKind::Claude, first.totals());
        second.feed(claude_run(1500, second_total, second_cost, second_turns).as_bytes());
        let summary = second.summary();
        assert_eq!(summary.usage.input_tokens, 1500, "{second_total}");
        assert_eq!(summary.usage.cost_usd, Money::from_micros(150_000), "{second_total}");
        assert_eq!(summary.turns, 3, "{second_total}");
    }
    // A thread's sums go on.
    let turn = |input| format!(r#"{{"type":"turn.completed","usage":{{"input_tokens":{input}}}}}"#);
    let mut first = parser(AgentKind::Codex, SessionTotals::default());
    first.feed(format!("{}\n", turn(700)).as_bytes());
    let mut second = parser(AgentKind::Codex, first.totals());
    second.feed(format!("{}\n", turn(1000)).as_bytes());
    assert_eq!(second.summary().usage.input_tokens, 300);
}

/// Usage that a killed run did not report is in the next total.
#[test]
fn a_run_that_was_killed_loses_nothing() {
    let mut first = parser(AgentKind::Claude, SessionTotals::default());
    let killed = claude_run(1000, 1000, 0.10, 2);
    first.feed(killed.lines().next().map(|line| format!("{line}\n")).unwrap().as_bytes());
    assert_eq!(first.summary().usage.cost_usd, Money::ZERO);
    let mut second = parser(AgentKind::Claude, first.totals());
    second.feed(claude_run(1500, 2500, 0.25, 5).as_bytes());
    let used = TokenUsage {
        input_tokens: 1500,
        output_tokens: 10,
        cost_usd: Money::from_micros(250_000),
        ..TokenUsage::default()
    };
    assert_eq!(second.summary().usage, used);
}

#![allow(clippy::unwrap_used, reason = "a test")]

use super::*;
use serde_json::{Value, json};

/// Lines as they are without colours.
struct Reading {
    log: AgentLog,
    seq: u64,
    seconds: u64,
}

impl Reading {
    fn new() -> Self {
        Self { log: AgentLog::new(80), seq: 0, seconds: 0 }
    }

    fn coloured(&mut self, kind: &str, data: Value) -> Vec<String> {
        self.seq += 1;
        let event = json!({
            "seq": self.seq, "time": "2026-03-01T14:02:11.250Z",
            "mono_ns": self.seconds * 1_000_000_000, "kind": kind, "data": data,
            "prev": "", "hash": "",
        });
        self.log.lines(&serde_json::from_value(event).unwrap())
    }

    fn lines(&mut self, kind: &str, data: Value) -> Vec<String> {
        let lines = self.coloured(kind, data);
        let plain = |line: String| anstream::adapter::strip_str(&line).to_string();
        lines.into_iter().map(plain).collect()
    }

    fn text(&mut self, events: &[(&str, Value)]) -> String {
        let lines: Vec<String> =
            events.iter().flat_map(|(kind, data)| self.lines(kind, data.clone())).collect();
        lines.join("\n")
    }
}

fn report(change: impl FnOnce(&mut Value)) -> Value {
    let mut report = json!({
        "iteration": 3, "exec": 4, "wall_ms": 192_400, "turns": 12,
        "usage": { "input_tokens": 30_000, "output_tokens": 4_567, "cost_usd": 0.42 },
        "changed": 6, "checkpoint": { "files": 1, "bytes": 2, "new_files": 1, "new_bytes": 2, "took_ms": 3 },
        "totals": { "iterations": 3, "turns": 30, "usage": { "input_tokens": 1, "output_tokens": 1 },
            "elapsed_ms": 1, "failures_in_a_row": 0, "unchanged_in_a_row": 0 },
    });
    change(&mut report);
    report
}

fn message(role: &str, text: &str) -> (&'static str, Value) {
    ("agent.message", json!({ "type": "message", "role": role, "text": text, "iteration": 3 }))
}

#[test]
fn an_iteration_reads_like_this() {
    let events = [
        ("iteration.start", json!({ "iteration": 3, "exec": 4 })),
        (
            "agent.session",
            json!({ "type": "session", "id": "3f1c", "model": "m-1", "iteration": 3 }),
        ),
        message(
            "thinking",
            "First I look at the tests. They fail because the parser drops the last line of its input, which has no newline at its end. Then there is the second thing, which is about numbers, and a third one that is about dates and zones and leap seconds, and a fourth one.\nAnd more.",
        ),
        message(
            "assistant",
            "I will fix the parser first, since everything else rests on it, and then run the tests again.\n\n    let last = lines.last();\n\nThen the rest.",
        ),
        (
            "agent.tool_call",
            json!({ "type": "tool_call", "id": "t1", "tool": "Bash", "input": "make test", "iteration": 3 }),
        ),
        (
            "agent.tool_result",
            json!({ "type": "tool_result", "id": "t1", "is_error": true,
            "text": "cc -c parse.c\nparse.c:12: error: expected ;\nmake: *** [test] Error 1\n4\n5\n6" }),
        ),
        ("agent.usage", json!({ "type": "usage", "input_tokens": 5, "output_tokens": 6 })),
        (
            "egress.denied",
            json!({ "host": "evil.example", "port": 443, "via": "connect", "reason": "not_listed", "count": 2 }),
        ),
        message("assistant", "Done."),
        ("agent.result", json!({ "type": "result", "is_error": false, "text": "Done." })),
        ("checkpoint", report(|_| {})),
    ];
    let expected = "\
── iteration 3 ──────────────────────────────────────────────────────── 14:02:11
  session 3f1c, model m-1
  First I look at the tests. They fail because the parser drops the last line of
  its input, which has no newline at its end. Then there is the second thing,
  which is about numbers, and a third one that is about dates and… (+2 lines)

I will fix the parser first, since everything else rests on it, and then run the
tests again.

    let last = lines.last();

Then the rest.

● Bash: make test
  ⎿ ✗ cc -c parse.c
      parse.c:12: error: expected ;
      make: *** [test] Error 1… (+3 lines)
  denied: evil.example:443, 2 times

Done.

── iteration 3 ended: ok, 12 turns, 34k tokens, $0.42, 6 paths changed, 3m 12s";
    let text = Reading::new().text(&events);
    assert_eq!(text, expected, "\n{text}\n");
    assert!(text.lines().all(|line| columns(line) <= 80));
}

#[test]
fn failures_asides_and_the_end_are_told() {
    let mut reading = Reading::new();
    let spec = json!({
        "agent": {
            "agent": { "kind": "command", "program": ["./agent.sh"], "prompt": "", "permissions": "bypass", "auth": "secret" },
            "setup": { "command": ["npm", "ci"] },
            "loop": { "until": { "type": "command", "argv": ["make", "test"] }, "pause": 0, "backoff": 1, "session": "fresh", "checkpoints": 3 },
        },
    });
    let exit = |code: i32| json!({ "code": code, "source": "command" });
    let from = belljar::spec::RunId::from_parts(1_700_000_000_000, 7);
    let resumed_from = json!({ "kind": "resume", "from": from, "continues": from, "iteration": 2, "head": "x",
        "totals": { "iterations": 2, "turns": 0, "usage": { "input_tokens": 0, "output_tokens": 0 },
        "elapsed_ms": 0, "failures_in_a_row": 0, "unchanged_in_a_row": 0 }, "changes": ["max_iterations 5 to 9"] });
    let began = reading.text(&[
        ("run.start", json!({ "spec": spec, "resumed_from": resumed_from })),
        ("exec.start", json!({ "exec": 1, "argv": ["npm", "ci"] })),
        ("exec.exit", json!({ "exec": 1, "exit": exit(0) })),
        ("exec.start", json!({ "exec": 2, "argv": ["somebody", "elses"] })),
        ("exec.exit", json!({ "exec": 2, "exit": exit(1) })),
    ]);
    let expected = format!(
        "  continues run {from} after iteration 2; changed: max_iterations 5 to\n  \
         9\n  set-up: npm ci\n  set-up: done"
    );
    assert_eq!(began, expected);
    let failed = reading.text(&[
        ("agent.error", json!({ "type": "error", "message": "no connection" })),
        ("agent.result", json!({ "type": "result", "is_error": true, "code": "error_max_turns", "text": "too many" })),
        ("exec.start", json!({ "exec": 3, "argv": ["make", "test"] })),
        ("exec.exit", json!({ "exec": 3, "exit": exit(2) })),
        ("checkpoint", report(|report| {
            report["failure"] = json!({ "kind": "reported", "code": "error_max_turns" });
            report["done"] = json!(false);
            report["unparsed"] = json!(2);
            report["changed"] = json!(1);
        })),
    ]);
    assert_eq!(
        failed,
        "✗ no connection\n\
         ✗ the agent ended with error_max_turns: too many\n\
         \x20 until make test: exit code 2\n\n\
         ── iteration 3 ended: failed (error_max_turns), 12 turns, 34k tokens, $0.42, 1\n   \
         path changed, 3m 12s, not done yet, 2 lines not parsed"
    );
    reading.seconds += 90;
    let end = reading.text(&[
        ("iteration.start", json!({ "iteration": 4, "exec": 4 })),
        ("run.stop", json!({ "reason": "failures", "agent": { "run_iterations": 2, "why": "5 failures in a row",
            "totals": { "iterations": 4, "turns": 31, "usage": { "input_tokens": 900, "output_tokens": 1 },
            "elapsed_ms": 4_000_000, "failures_in_a_row": 5, "unchanged_in_a_row": 0 } } })),
    ]);
    let head = format!("── iteration 4 {} 14:02:11", "─".repeat(56));
    assert_eq!(
        end,
        format!(
            "\n  paused for 1m 30s\n\n{head}\n\n\
             ── ended: failures, 4 iterations, 31 turns, 901 tokens, 1h 6m\n   5 failures in a row"
        )
    );
}

#[test]
fn a_reason_that_is_also_the_detail_is_shown_once() {
    let stop = |detail: &str| {
        let totals = json!({ "iterations": 1, "turns": 1, "usage": { "input_tokens": 1, "output_tokens": 1 }, "elapsed_ms": 1000,
            "failures_in_a_row": 0, "unchanged_in_a_row": 0 });
        let agent = json!({ "run_iterations": 1, "why": "the login expired", "totals": totals });
        let stop = json!({ "reason": "login_expired", "agent": agent, "detail": detail });
        Reading::new().text(&[("run.stop", stop)])
    };
    assert_eq!(stop("the login expired").matches("the login expired").count(), 1);
    let both = stop("something else");
    assert!(both.contains("the login expired") && both.contains("something else"), "{both}");
}

#[test]
fn lines_of_a_command_follow_each_other() {
    let events = [message("assistant", "one"), message("assistant", "two")];
    assert_eq!(Reading::new().text(&events), "one\ntwo");
}

#[test]
fn hostile_text_cannot_drive_the_terminal() {
    let hostile = format!(
        "\u{1b}]0;owned\u{7}\u{1b}[2J\r\u{9b}31m\u{202e}evil\u{2066}\u{61c}\u{200f}\0\u{8}\n{}",
        "A".repeat(100_000)
    );
    let mut reading = Reading::new();
    let events = [
        message("assistant", &hostile),
        message("thinking", &hostile),
        message("user", &hostile),
        message("system", &hostile),
        ("agent.tool_call", json!({ "type": "tool_call", "tool": hostile, "input": hostile })),
        ("agent.tool_result", json!({ "type": "tool_result", "is_error": false, "text": hostile })),
        ("agent.session", json!({ "type": "session", "id": hostile, "model": hostile })),
        (
            "agent.result",
            json!({ "type": "result", "is_error": true, "code": hostile, "text": hostile }),
        ),
        ("agent.error", json!({ "type": "error", "message": hostile })),
        (
            "egress.denied",
            json!({ "host": hostile, "via": "connect", "reason": "not_listed", "count": 1, "path": hostile, "method": hostile }),
        ),
        ("limit.hit", json!({ "limit": hostile })),
        (
            "checkpoint",
            report(|report| {
                report["failure"] = json!({ "kind": "not_started", "message": hostile })
            }),
        ),
        (
            "checkpoint",
            report(|report| report["failure"] = json!({ "kind": "reported", "code": hostile })),
        ),
        ("run.stop", json!({ "reason": "error", "detail": hostile })),
    ];
    for (kind, data) in events {
        let lines = reading.coloured(kind, data);
        assert!(!lines.is_empty() && lines.len() <= 62, "{kind}: {} lines", lines.len());
        for line in lines {
            let plain = anstream::adapter::strip_str(&line).to_string();
            let reorders = |c: char| "\u{202e}\u{2066}\u{61c}\u{200f}".contains(c);
            assert!(!plain.chars().any(|c| c.is_control() || reorders(c)), "{kind}: {plain:?}");
            assert!(columns(&plain) <= 80, "{kind}: {plain}");
            // Our own colours and nothing else.
            let codes = line.matches('\u{1b}').count();
            assert!(codes <= 4, "{kind}: {line:?}");
        }
    }
}

#[test]
fn what_makes_no_sense_is_left_out() {
    let mut reading = Reading::new();
    for kind in
        ["agent.message", "checkpoint", "run.stop", "exec.start", "egress.denied", "run.start"]
    {
        assert_eq!(reading.lines(kind, json!({ "type": 7 })), [""; 0], "{kind}");
    }
    assert_eq!(reading.lines("output", json!({})), [""; 0]);
    assert!(!reading.lines("iteration.start", json!({})).is_empty());
}

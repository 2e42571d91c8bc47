//! Hostile output of an agent.

#![allow(clippy::unwrap_used, reason = "a test")]

use belljar_spec::manifest::AgentKind;
use belljar_spec::{AgentEvent, MAX_TEXT, Money};
use proptest::prelude::*;

use super::super::output_parser::MAX_LINE_BYTES;
use super::{ALL, SessionTotals, brief, parsed, parser};

#[test]
fn what_does_not_parse_is_counted_and_the_rest_goes_on() {
    let garbage: &[u8] =
        b"npm warn\n[1,2]\n\"text\"\n{\"type\":\n\xff\xfe\n\n{\"type\":\"new\"}\n{}\n";
    for kind in [AgentKind::Claude, AgentKind::Codex, AgentKind::Gemini] {
        let mut parser = parser(kind, SessionTotals::default());
        assert!(parser.feed(garbage).is_empty());
        assert_eq!(parser.summary().unparsed, 5, "{kind:?}");
    }
    let deep = "[".repeat(100_000);
    let (_, parser) = parsed(AgentKind::Claude, &format!("{{\"type\":{deep}\n"));
    assert_eq!(parser.summary().unparsed, 1);
}

#[test]
fn a_megabyte_line_is_fine_and_an_event_stays_small() {
    let text = "x".repeat(1 << 20);
    let line = format!(
        r#"{{"type":"user","message":{{"content":[{{"type":"tool_result","tool_use_id":"t","content":"{text}"}}]}}}}"#
    );
    let mut parser = parser(AgentKind::Claude, SessionTotals::default());
    let mut events = Vec::new();
    for part in line.as_bytes().chunks(65_536) {
        events.extend(parser.feed(part));
    }
    events.extend(parser.feed(b"\n"));
    let [AgentEvent::ToolResult { text, .. }] = events.as_slice() else {
        panic!("{}", events.len())
    };
    assert!((MAX_TEXT..MAX_TEXT + 8).contains(&text.len()));
    assert_eq!(parser.summary().unparsed, 0);
}

#[test]
fn a_line_without_end_is_dropped_and_the_next_one_is_parsed() {
    let mut parser = parser(AgentKind::Claude, SessionTotals::default());
    let block = vec![b'x'; 1 << 20];
    for _ in 0..(MAX_LINE_BYTES >> 20) + 5 {
        assert!(parser.feed(&block).is_empty());
    }
    assert!(parser.buffered() < MAX_LINE_BYTES / 8, "{}", parser.buffered());
    let events =
        parser.feed(b"rest\n{\"type\":\"result\",\"subtype\":\"success\",\"result\":\"r\"}\n");
    assert_eq!(brief(&events), ["result success r 0"]);
    assert_eq!(parser.summary().unparsed, 1);
}

#[test]
fn the_end_of_a_long_final_message_is_not_lost() {
    let text = format!("{} DONE", "é".repeat(MAX_TEXT));
    let line = format!(r#"{{"type":"result","subtype":"success","result":"{text}"}}"#);
    let (_, parser) = parsed(AgentKind::Claude, &line);
    let summary = parser.summary();
    assert!(summary.final_text.ends_with(" DONE"));
    assert!(summary.message.as_ref().unwrap().ends_with('…'));
}

#[test]
fn an_invalid_cost_counts_as_zero_and_is_reported() {
    let result = |cost: &str| {
        format!(
            r#"{{"type":"result","subtype":"success","is_error":false,"total_cost_usd":{cost}}}"#
        )
    };
    for amount in ["-5", "1e300", "\"NaN\"", "[]"] {
        let (events, parser) = parsed(AgentKind::Claude, &result(amount));
        assert_eq!(parser.summary().usage.cost_usd, Money::ZERO, "{amount}");
        assert!(brief(&events)[0].contains("not a valid amount"), "{amount}");
    }
    // NaN is not JSON, so the whole line is unparsed.
    assert_eq!(parsed(AgentKind::Claude, &result("NaN")).1.summary().unparsed, 1);
    // Nothing gives money back, and an honest amount counts.
    let lines = [result("0.5"), result("0.1"), result("0.7")].join("\n");
    let (_, parser) = parsed(AgentKind::Claude, &lines);
    assert_eq!(parser.summary().usage.cost_usd, Money::from_micros(700_000));
}

#[test]
fn a_session_name_that_looks_like_an_option_is_not_taken() {
    for (kind, line) in [
        (AgentKind::Claude, r#"{"type":"system","subtype":"init","session_id":"--settings=x"}"#),
        (AgentKind::Codex, r#"{"type":"thread.started","thread_id":"a b"}"#),
        (AgentKind::Gemini, r#"{"type":"init","session_id":""}"#),
    ] {
        let (events, parser) = parsed(kind, line);
        assert_eq!(parser.summary().session, None);
        assert!(brief(&events)[0].starts_with("error:"), "{kind:?}");
    }
}

fn any_json() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "type",
        "assistant",
        "user",
        "result",
        "system",
        "init",
        "message",
        "content",
        "usage",
        "id",
        "text",
        "item",
        "item.completed",
        "turn.completed",
        "input_tokens",
        "output_tokens",
        "total_cost_usd",
        "is_error",
        "num_turns",
        "stats",
        "session_id",
        "thread_id",
        "tool_use",
        "tool_result",
        "delta",
        "role",
        "status",
    ]);
    let leaf = prop_oneof![
        word.clone().prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        any::<f64>().prop_map(serde_json::Value::from),
        any::<bool>().prop_map(serde_json::Value::from),
        Just(serde_json::Value::Null),
    ];
    let tree = leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            prop::collection::vec((word.clone(), inner), 0..6).prop_map(|pairs| {
                pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
            }),
        ]
    });
    tree.prop_map(|value| value.to_string())
}

fn any_output() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let line = prop_oneof![
        any_json().prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..200),
        Just(b"\n".to_vec()),
    ];
    prop::collection::vec(line, 0..30)
}

proptest! {
    #[test]
    fn nothing_panics_and_no_use_is_ever_taken_back(output in any_output(), newline in any::<bool>()) {
        for kind in ALL {
            let mut parser = parser(kind, SessionTotals::default());
            let mut before = parser.summary().clone();
            for piece in &output {
                let mut events = parser.feed(piece);
                if newline {
                    events.extend(parser.feed(b"\n"));
                }
                for one in &events {
                    let size = serde_json::to_vec(one).unwrap().len();
                    prop_assert!(size < 16 * MAX_TEXT, "{}", size);
                }
                let now = parser.summary().clone();
                prop_assert!(now.usage.input_tokens >= before.usage.input_tokens);
                prop_assert!(now.usage.output_tokens >= before.usage.output_tokens);
                prop_assert!(now.usage.cost_usd >= before.usage.cost_usd);
                prop_assert!(now.turns >= before.turns && now.unparsed >= before.unparsed);
                before = now;
            }
            parser.finish();
        }
    }
}

//! Memory use of hostile output, measured in a separate process.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;

use belljar_spec::TokenUsage;
use belljar_spec::manifest::AgentKind;

use super::super::output_parser::MAX_LINE_BYTES;
use super::super::usage_meter::UsageMeter;
use super::{OutputParser, SessionTotals, brief, parser};

const MEASURE: &str = "BELLJAR_TEST_MEASURE";
const MARK: &str = "peak KiB: ";

/// The most that the process ever had in memory, in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// By how many MiB `work` raises the peak, measured in a child process that runs the test of that name.
fn growth(test: &str, work: impl FnOnce()) -> Option<u64> {
    if std::env::var_os(MEASURE).is_some() {
        let before = peak();
        work();
        println!("{MARK}{}", peak() - before);
        return None;
    }
    let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let child = Command::new(std::env::current_exe().unwrap())
        .args([name.as_str(), "--exact", "--nocapture"])
        .env(MEASURE, "1")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    let peak_text = output.split_once(MARK).and_then(|(_, rest)| rest.split_whitespace().next());
    Some(peak_text.unwrap_or_else(|| panic!("{output}")).parse::<u64>().unwrap() / 1024)
}

/// Feeds a line of the maximum length in parts, so that the test itself never holds all of it.
fn feed_filled(parser: &mut OutputParser, before: &str, piece: &str, after: &str) {
    parser.feed(before.as_bytes());
    let room = MAX_LINE_BYTES - before.len() - after.len();
    for _ in 0..room / piece.len() {
        parser.feed(piece.as_bytes());
    }
    parser.feed(after.as_bytes());
    parser.feed(b"\n");
}

#[test]
fn no_line_costs_much_memory() {
    let content = r#"{"type":"assistant","message":{"content":["#;
    let call = r#"{"type":"assistant","message":{"content":[{"type":"tool_use","input":["#;
    let result = r#"{"type":"user","message":{"content":[{"type":"tool_result","content":["#;
    let numbers = format!("[{}0],", "0,".repeat(9_000));
    let objects = format!("[{}0],", r#"{"a":0},"#.repeat(9_000));
    let zeros = "0,".repeat(1_000);
    let lines = [
        (content, zeros.as_str(), "0]}}"),
        (content, &"[],".repeat(1_000), "0]}}"),
        (content, &r#"{"a":0},"#.repeat(1_000), "0]}}"),
        (content, &numbers, "0]}}"),
        (content, &objects, "0]}}"),
        (call, &objects, "0]}]}}"),
        (call, &numbers, "0]}]}}"),
        (result, &objects, "0]}]}}"),
        (r#"{"type":"result","total_cost_usd":["#, &objects, "0]}"),
        (r#"{"type":"result","result":""#, &r"\n".repeat(1_000), "\"}"),
        (r#"{"type":"assistant","message":{"id":""#, &"x".repeat(1_000), "\"}}"),
    ];
    let measured = growth("no_line_costs_much_memory", || {
        for (before, piece, after) in lines {
            let mut parser = parser(AgentKind::Claude, SessionTotals::default());
            feed_filled(&mut parser, before, piece, after);
            assert_eq!(parser.summary().unparsed, 0);
            let events = parser.feed(b"{\"type\":\"result\",\"subtype\":\"success\"}\n");
            assert_eq!(brief(&events).len(), 1);
        }
    });
    if let Some(mebibytes) = measured {
        assert!(mebibytes < 64, "{mebibytes} MiB");
    }
}

#[test]
fn no_name_of_a_message_is_kept() {
    let measured = growth("no_name_of_a_message_is_kept", || {
        let (mut meter, mut events) = (UsageMeter::default(), Vec::new());
        let usage = TokenUsage { input_tokens: 1, ..TokenUsage::default() };
        let long = "x".repeat(64 << 10);
        for number in 0..4000 {
            meter.message(&format!("{long}{number}"), usage, &mut events);
        }
        // Long names differ by their ends, and the same one is known.
        assert_eq!(events.len(), 4000);
        assert!(meter.knows(&format!("{long}7")) && !meter.knows(&long));
        meter.message(&format!("{long}7"), usage, &mut events);
        assert_eq!(events.len(), 4000);
    });
    if let Some(mebibytes) = measured {
        assert!(mebibytes < 16, "{mebibytes} MiB");
    }
}

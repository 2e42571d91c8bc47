//! What hostile output costs, measured in a process of its own.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;

use belljar_spec::TokenUsage;
use belljar_spec::manifest::AgentKind;

use super::super::listen::LONGEST_LINE;
use super::super::totals::Meter;
use super::{Listener, SessionTotals, brief, listener};

const MEASURE: &str = "BELLJAR_TEST_MEASURE";
const MARK: &str = "peak KiB: ";

/// The most that the process ever had in memory, in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// By how many MiB the peak goes up when a test of that name does `work`.
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
    let told = output.split_once(MARK).and_then(|(_, rest)| rest.split_whitespace().next());
    Some(told.unwrap_or_else(|| panic!("{output}")).parse::<u64>().unwrap() / 1024)
}

/// A line as long as it may be: the piece again and again, and never all of it in this test's own memory.
fn feed_filled(listener: &mut Listener, before: &str, piece: &str, after: &str) {
    listener.feed(before.as_bytes());
    let room = LONGEST_LINE - before.len() - after.len();
    for _ in 0..room / piece.len() {
        listener.feed(piece.as_bytes());
    }
    listener.feed(after.as_bytes());
    listener.feed(b"\n");
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
            let mut listener = listener(AgentKind::Claude, SessionTotals::default());
            feed_filled(&mut listener, before, piece, after);
            assert_eq!(listener.summary().unparsed, 0);
            let news = listener.feed(b"{\"type\":\"result\",\"subtype\":\"success\"}\n");
            assert_eq!(brief(&news).len(), 1);
        }
    });
    if let Some(mebibytes) = measured {
        assert!(mebibytes < 64, "{mebibytes} MiB");
    }
}

#[test]
fn no_name_of_a_message_is_kept() {
    let measured = growth("no_name_of_a_message_is_kept", || {
        let (mut meter, mut news) = (Meter::default(), Vec::new());
        let usage = TokenUsage { input_tokens: 1, ..TokenUsage::default() };
        let long = "x".repeat(64 << 10);
        for number in 0..4000 {
            meter.message(&format!("{long}{number}"), usage, &mut news);
        }
        // Long names differ by their ends, and the same one is known.
        assert_eq!(news.len(), 4000);
        assert!(meter.knows(&format!("{long}7")) && !meter.knows(&long));
        meter.message(&format!("{long}7"), usage, &mut news);
        assert_eq!(news.len(), 4000);
    });
    if let Some(mebibytes) = measured {
        assert!(mebibytes < 16, "{mebibytes} MiB");
    }
}

//! The log: its lines, its chain, and going on after a crash.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::record_support::Run;
use belljar_record::{EventLog, LogError};
use belljar_spec::{Event, EventKind};
use serde_json::json;

fn log(run: &Run) -> EventLog {
    EventLog::create(&run.directory(), run.key()).unwrap()
}

#[test]
fn a_line_has_its_keys_in_order_and_names_the_line_before() {
    let run = Run::new();
    let mut log = log(&run);
    assert_eq!((log.count(), log.head().hash), (0, "0".repeat(64)));
    log.append(EventKind::RunStart, &json!({"v": 2, "text": "a\nb\u{1b}[2J\""})).unwrap();
    log.append(EventKind::RunStop, &json!({})).unwrap();
    log.flush().unwrap();
    let lines = run.lines();
    assert_eq!(lines.len(), 2, "no newline from inside begins a line");
    let mut before = "0".repeat(64);
    for (at, line) in lines.iter().enumerate() {
        let text = std::str::from_utf8(line).unwrap();
        assert!(text.is_ascii() && !text.trim_end().contains(char::is_control), "{text}");
        let keys = [
            "{\"seq\":",
            ",\"time\":\"",
            ",\"mono_ns\":",
            ",\"kind\":\"",
            ",\"data\":",
            ",\"prev\":\"",
            ",\"hash\":\"",
        ];
        let places: Vec<usize> = keys.iter().map(|key| text.find(key).unwrap()).collect();
        assert!(places.is_sorted() && places[0] == 0, "{text}");
        let event: Event = serde_json::from_str(text).unwrap();
        assert_eq!((event.seq, &event.prev), (at as u64 + 1, &before));
        let time: jiff::Timestamp = event.time.parse().unwrap();
        assert!(event.time.ends_with('Z') && event.time.len() == 24, "{}", event.time);
        assert!(jiff::Timestamp::now().duration_since(time).as_secs() < 60);
        assert!(event.mono_ns < 60_000_000_000, "counted from the log's begin");
        before = event.hash;
    }
    assert_eq!((log.head().seq, log.head().hash), (2, before));
}

#[test]
fn the_file_is_new_private_and_has_room_on_the_disk() {
    let run = Run::new();
    let mut first = log(&run);
    let meta = fs::metadata(run.log_path()).unwrap();
    assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (0, 0o600));
    assert!(meta.blocks() * 512 >= 64 << 10, "{} blocks", meta.blocks());
    let again = EventLog::create(&run.directory(), run.key());
    assert!(matches!(again, Err(LogError::Io { .. })), "never over another one");
    let data = json!({"x": "y".repeat(1000)});
    for _ in 0..300 {
        first.append(EventKind::Checkpoint, &data).unwrap();
    }
    first.flush().unwrap();
    let meta = fs::metadata(run.log_path()).unwrap();
    assert!(meta.len() > 300_000);
    assert!(meta.blocks() * 512 >= meta.len() + (16 << 10), "always ahead of the end");
}

#[test]
fn little_stays_in_memory() {
    let run = Run::new();
    let mut log = log(&run);
    log.append(EventKind::RunStart, &json!({})).unwrap();
    assert_eq!(fs::metadata(run.log_path()).unwrap().len(), 0, "in memory first");
    let data = json!({"x": "y".repeat(1000)});
    for count in 1..200_u64 {
        log.append(EventKind::Checkpoint, &data).unwrap();
        let written = fs::metadata(run.log_path()).unwrap().len();
        assert!(count * 1000 - written.min(count * 1000) <= 66 << 10, "{count} {written}");
    }
}

#[test]
fn data_that_cannot_be_read_back_is_refused_and_harms_nothing() {
    let run = Run::new();
    let mut log = log(&run);
    log.append(EventKind::RunStart, &json!({})).unwrap();
    let long = json!({"x": "y".repeat(32 << 20)});
    let refused = log.append(EventKind::Checkpoint, &long);
    assert!(matches!(refused, Err(LogError::TooLong { .. })));
    let refused = log.append(EventKind::Checkpoint, &json!({"n": 1_u64 << 53}));
    assert!(matches!(refused, Err(LogError::NumberTooLarge { .. })));
    log.append(EventKind::RunStop, &json!({"n": (1_u64 << 53) - 1})).unwrap();
    log.sync().unwrap();
    drop(log);
    let (_, found) = EventLog::reopen(&run.directory(), run.key()).unwrap();
    assert_eq!((found.events, found.cut_bytes, found.has_stop), (2, 0, true));
}

#[test]
fn opened_again_it_goes_on_where_it_was() {
    let run = Run::new();
    let mut log = log(&run);
    log.append(EventKind::RunStart, &json!({"id": "x"})).unwrap();
    log.append(EventKind::Checkpoint, &json!({})).unwrap();
    log.sync().unwrap();
    let head = log.head();
    drop(log);
    let (mut log, found) = EventLog::reopen(&run.directory(), run.key()).unwrap();
    assert_eq!(log.head(), head);
    assert_eq!((found.events, found.cut_bytes), (2, 0));
    assert_eq!((found.start_data, found.stop_data), (Some(json!({"id": "x"})), None));
    log.append(EventKind::RunStop, &json!({"reason": "lost"})).unwrap();
    log.sync().unwrap();
    drop(log);
    let (_, after) = EventLog::reopen(&run.directory(), run.key()).unwrap();
    assert_eq!((after.events, after.has_start, after.has_stop), (3, true, true));
    assert_eq!(after.stop_data, Some(json!({"reason": "lost"})));
    assert!(after.last_mono_ns >= found.last_mono_ns && after.last_time >= found.last_time);
}

#[test]
fn a_valid_record_in_the_wrong_place_is_not_adopted() {
    let (run, anchor) = Run::recorded();
    let mut lines = run.lines();
    let count = lines.len();
    lines.push(lines[1].clone());
    run.write_lines(&lines);
    let (log, found) = EventLog::reopen(&run.directory(), run.key()).unwrap();
    assert_eq!((found.events, log.head().hash), (count as u64, anchor.hash));
    assert_eq!(found.cut_bytes as usize, lines[1].len());
}

#[test]
fn a_link_is_not_opened() {
    let (run, _) = Run::recorded();
    let kept = run.home_path().join("kept");
    fs::rename(run.log_path(), &kept).unwrap();
    std::os::unix::fs::symlink(&kept, run.log_path()).unwrap();
    assert!(EventLog::reopen(&run.directory(), run.key()).is_err());
    assert!(EventLog::create(&run.directory(), run.key()).is_err());
    fs::remove_file(run.log_path()).unwrap();
    fs::rename(&kept, run.log_path()).unwrap();
    assert!(EventLog::reopen(&run.directory(), run.key()).is_ok());
}

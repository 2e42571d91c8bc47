//! Faults that only a descriptor put in the log's place can make.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::fs::{File, OpenOptions};

use belljar_spec::RunId;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::HomeKey;

fn log(temp: &TempDir) -> (EventLog, RunKey) {
    let home = HomeKey::load_or_make(temp.path()).unwrap();
    let key = home.for_run(&RunId::from_parts(1, 2));
    (EventLog::create(temp.path(), key.clone()).unwrap(), key)
}

/// Cannot be synced: a pipe has no disk.
fn pipe() -> File {
    File::from(std::os::fd::OwnedFd::from(std::io::pipe().unwrap().1))
}

#[test]
fn after_a_failed_sync_nothing_is_written_not_even_the_end() {
    let temp = TempDir::new().unwrap();
    let (mut log, _) = log(&temp);
    log.append(EventKind::RunStart, &json!({})).unwrap();
    log.sync().unwrap();
    let good = std::mem::replace(&mut log.file, pipe());
    let first = log.sync().unwrap_err().to_string();
    assert!(first.contains("bring to the disk"), "{first}");
    log.file = good;
    let before = std::fs::read(log.path()).unwrap();
    assert_eq!(log.append(EventKind::Checkpoint, &json!({})).unwrap_err().to_string(), first);
    assert_eq!(log.flush().unwrap_err().to_string(), first);
    assert_eq!(log.sync().unwrap_err().to_string(), first, "no second try");
    assert_eq!(log.append_last(EventKind::RunStop, &json!({})).unwrap_err().to_string(), first);
    assert_eq!(std::fs::read(log.path()).unwrap(), before);
}

#[test]
fn after_a_write_that_failed_for_another_reason_there_is_no_last_event() {
    let temp = TempDir::new().unwrap();
    let (mut log, _) = log(&temp);
    log.append(EventKind::RunStart, &json!({})).unwrap();
    // Reserved already, so that the write itself is the first to fail.
    log.file = OpenOptions::new().read(true).open(log.path()).unwrap();
    let first = log.flush().unwrap_err();
    assert!(!first.is_no_space(), "{first}");
    assert!(log.append_last(EventKind::RunStop, &json!({})).is_err());
}

#[test]
fn a_torn_line_is_written_over_by_the_end() {
    let temp = TempDir::new().unwrap();
    let (mut log, key) = log(&temp);
    log.append(EventKind::RunStart, &json!({})).unwrap();
    log.sync().unwrap();
    log.append(EventKind::Checkpoint, &json!({"n": 1})).unwrap();
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let good = std::mem::replace(&mut log.file, full);
    assert!(log.flush().unwrap_err().is_no_space());
    // As if half of something long had got through.
    good.write_at(&[b'x'; 3000], log.end).unwrap();
    log.file = good;
    assert!(log.append(EventKind::Checkpoint, &json!({})).unwrap_err().is_no_space());
    log.append_last(EventKind::RunStop, &json!({"reason": "error"})).unwrap();
    assert!(matches!(
        log.append_last(EventKind::RunStop, &json!({})),
        Err(LogError::AfterTheLast { .. })
    ));
    assert_eq!(log.dropped(), 0);
    drop(log);
    let (_, found) = EventLog::reopen(temp.path(), key).unwrap();
    assert_eq!((found.events, found.cut_bytes, found.has_stop), (3, 0, true));
}

#[test]
fn integers_that_a_double_cannot_hold_are_refused() {
    for good in [json!(9_007_199_254_740_991_u64), json!("99999999999999999999"), json!(1e300)] {
        assert_eq!(too_large_integer(good.to_string().as_bytes()), None, "{good}");
    }
    for bad in [json!([1, 9_007_199_254_740_992_u64]), json!({"a\"": u64::MAX}), json!(i64::MIN)] {
        assert!(too_large_integer(bad.to_string().as_bytes()).is_some(), "{bad}");
    }
}

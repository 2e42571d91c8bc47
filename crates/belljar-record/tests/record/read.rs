//! Reading a log that grows, that is torn, or that somebody wrote into.

use std::fs;
use std::io::Write;

use crate::record_support::Run;
use belljar_record::{EventLog, EventReader, ReadError};
use belljar_spec::EventKind;
use serde_json::json;

#[test]
fn it_goes_on_after_more_was_written() {
    let run = Run::new();
    let mut log = EventLog::create(&run.directory(), run.key()).unwrap();
    let mut reader = EventReader::open(&run.directory()).unwrap();
    for number in 0..5 {
        assert!(reader.next().unwrap().is_none());
        log.append(EventKind::Checkpoint, &json!({"n": number})).unwrap();
        log.flush().unwrap();
        assert_eq!(reader.next().unwrap().unwrap().data["n"], number);
    }
    let mut later = EventReader::open_at(&run.directory(), reader.offset()).unwrap();
    assert!(later.next().unwrap().is_none());
    log.append(EventKind::RunStop, &json!({})).unwrap();
    log.flush().unwrap();
    assert_eq!(later.next().unwrap().unwrap().seq, 6);
}

#[test]
fn half_a_line_is_not_given_out_and_may_be_written_anew() {
    let (run, _) = Run::recorded();
    let lines = run.lines();
    fs::write(run.log_path(), [&lines[0], &lines[1][..40]].concat()).unwrap();
    let mut reader = EventReader::open(&run.directory()).unwrap().checked_with(run.key());
    assert_eq!(reader.next().unwrap().unwrap().seq, 1);
    assert!(reader.next().unwrap().is_none());
    let mut other = lines[0].clone();
    other.extend_from_slice(b"torn and cut, then written over: ");
    fs::write(run.log_path(), &other).unwrap();
    assert!(reader.next().unwrap().is_none());
    run.write_lines(&lines);
    for seq in 2..=lines.len() as u64 {
        assert_eq!(reader.next().unwrap().unwrap().seq, seq);
    }
    assert!(reader.next().unwrap().is_none());
}

#[test]
fn a_foreign_line_is_an_error_with_its_place() {
    let (run, _) = Run::recorded();
    let good = fs::metadata(run.log_path()).unwrap().len();
    let mut file = fs::OpenOptions::new().append(true).open(run.log_path()).unwrap();
    let forged = String::from_utf8(run.lines()[1].clone()).unwrap().replace("started", "leak");
    file.write_all(forged.as_bytes()).unwrap();
    let read_all = |mut reader: EventReader| {
        loop {
            match reader.next() {
                Ok(Some(_)) => {}
                other => break other,
            }
        }
    };
    let unchecked = EventReader::open(&run.directory()).unwrap();
    assert!(matches!(read_all(unchecked), Ok(None)), "it is an event, if nobody asks for more");
    let checked = EventReader::open(&run.directory()).unwrap().checked_with(run.key());
    let found = read_all(checked);
    assert!(matches!(found, Err(ReadError::BadLine { offset, .. }) if offset == good));
    file.write_all(&vec![b'x'; 34 << 20]).unwrap();
    let unchecked = EventReader::open(&run.directory()).unwrap();
    assert!(matches!(read_all(unchecked), Err(ReadError::BadLine { .. })), "bounded");
}

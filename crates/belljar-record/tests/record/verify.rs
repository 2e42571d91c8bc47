//! Every way to damage a record has its own verdict, and the untouched one is sound.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::time::{Duration, Instant};

use crate::record_support::Run;
use belljar_record::{Anchor, EventLog, HomeKey, KeyError, LogState, Report, Verdict};
use belljar_spec::{EventKind, OutputStream, RunId};
use serde_json::{Value, json};

#[test]
fn the_untouched_record_is_sound_and_all_that_is_kept_was_compared() {
    let (run, anchor) = Run::recorded();
    let report = run.verify(Some(&anchor), LogState::Over);
    assert_eq!(report.verdict, Verdict::Sound);
    assert_eq!((report.events, &report.head.hash), (anchor.seq, &anchor.hash));
    assert_eq!(report.events, run.lines().len() as u64);
    // 40 of stdout, the tail's begin compared once more as far as it was one event.
    assert!(report.output_bytes >= 40 + 5 + 5, "{}", report.output_bytes);
    assert_eq!(report.verdict.to_string(), "sound");
    assert_eq!(run.verify(Some(&anchor), LogState::Live).verdict, Verdict::Sound);
}

/// Flips bits of a file one by one; the verdict is never that all is well. Gives how many.
fn flip(
    run: &Run,
    anchor: &Anchor,
    name: &str,
    bits: fn(usize) -> std::ops::Range<usize>,
) -> usize {
    let path = run.directory().join(name);
    let good = fs::read(&path).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let mut tried = 0;
    for at in 0..good.len() {
        for bit in bits(at) {
            file.write_at(&[good[at] ^ (1 << bit)], at as u64).unwrap();
            let verdict = run.verdict(anchor);
            assert_ne!(verdict, Verdict::Sound, "bit {bit} of byte {at} of {name}");
            tried += 1;
        }
        file.write_at(&good[at..=at], at as u64).unwrap();
    }
    assert_eq!(run.verdict(anchor), Verdict::Sound, "put back, it is what it was");
    tried
}

#[test]
fn a_flip_of_any_bit_is_found() {
    let (run, anchor) = Run::recorded_small();
    assert!(flip(&run, &anchor, "events.jsonl", |_| 0..8) > 8 * 1000);
    assert_eq!(flip(&run, &anchor, "stdout.bin", |_| 0..8), 8 * 8);
    // A larger one: a bit of each byte of the log, and all of the output.
    let (run, anchor) = Run::recorded();
    flip(&run, &anchor, "events.jsonl", |at| at % 8..at % 8 + 1);
    for (name, length) in [("stdout.bin", 40), ("stderr.bin", 5), ("exec-3.stdout.bin", 5)] {
        assert_eq!(flip(&run, &anchor, name, |_| 0..8), 8 * length);
    }
}

#[test]
fn a_cut_at_any_byte_is_found_and_opening_again_loses_at_most_the_last_record() {
    let (run, anchor) = Run::recorded_small();
    let good = fs::read(run.log_path()).unwrap();
    let lines = run.lines();
    for length in 0..good.len() {
        fs::write(run.log_path(), &good[..length]).unwrap();
        let mut whole = 0;
        let mut end = 0;
        for line in &lines {
            if end + line.len() > length {
                break;
            }
            end += line.len();
            whole += 1;
        }
        match run.verdict(&anchor) {
            Verdict::Cut { at } => assert_eq!(at, whole),
            Verdict::Restored { at: 1 } => assert_eq!(length, lines[0].len(), "a durable point"),
            other => panic!("{length}: {other:?}"),
        }
        let unanchored = run.verify(None, LogState::Over).verdict;
        assert_ne!(unanchored, Verdict::Sound, "{length}");
        let (log, found) = EventLog::reopen(&run.directory(), run.key()).unwrap();
        assert_eq!((found.events, found.cut_bytes), (whole, (length - end) as u64), "{length}");
        assert_eq!(log.count(), whole);
        assert_eq!(fs::metadata(run.log_path()).unwrap().len(), end as u64);
    }
}

/// Damages the lines of a good log and gives the verdict.
fn after(damage: impl FnOnce(&mut Vec<Vec<u8>>)) -> Verdict {
    let (run, anchor) = Run::recorded();
    let mut lines = run.lines();
    run.write_lines(&lines);
    assert_eq!(run.verdict(&anchor), Verdict::Sound, "the way of writing it back is not seen");
    damage(&mut lines);
    run.write_lines(&lines);
    run.verdict(&anchor)
}

#[test]
fn a_cut_a_dropped_a_moved_a_repeated_and_a_changed_record_are_told_apart() {
    assert_eq!(after(|lines| drop(lines.split_off(4))), Verdict::Cut { at: 4 });
    assert_eq!(after(|lines| drop(lines.remove(2))), Verdict::Dropped { seq: 3 });
    assert_eq!(after(|lines| drop(lines.drain(2..5))), Verdict::Dropped { seq: 3 });
    assert_eq!(after(|lines| drop(lines.remove(0))), Verdict::Dropped { seq: 1 });
    assert_eq!(after(|lines| lines.swap(2, 3)), Verdict::Reordered { seq: 3 });
    assert_eq!(after(|lines| lines[2..6].rotate_left(1)), Verdict::Reordered { seq: 3 });
    assert_eq!(after(|lines| lines.insert(4, lines[1].clone())), Verdict::Replayed { seq: 2 });
    assert_eq!(after(|lines| lines.push(lines[3].clone())), Verdict::Replayed { seq: 4 });
    let changed = after(|lines| {
        let at = lines[2].len() / 2;
        lines[2][at] ^= 1;
    });
    assert_eq!(changed, Verdict::Changed { line: 3, seq: 3 });
}

#[test]
fn what_comes_after_the_end_is_never_taken_for_the_runs_own() {
    let own =
        r#"{"seq":99,"time":"x","mono_ns":1,"kind":"run.stop","data":{},"prev":"","hash":"00"}"#;
    let (run, anchor) = Run::recorded();
    let good = fs::read(run.log_path()).unwrap();
    let line = anchor.seq + 1;
    let huge = vec![b'x'; 3 << 20];
    for tail in [&[0; 4096][..], b"\n", b"garbage", b"garbage\n", own.as_bytes(), &huge] {
        for end in [&b""[..], b"\n"] {
            fs::write(run.log_path(), [&good, tail, end].concat()).unwrap();
            assert_eq!(run.verdict(&anchor), Verdict::Appended { line });
            let (log, found) = EventLog::reopen(&run.directory(), run.key()).unwrap();
            assert_eq!((log.head().seq, log.head().hash), (anchor.seq, anchor.hash.clone()));
            assert_eq!(found.cut_bytes as usize, tail.len() + end.len());
            assert_eq!(fs::read(run.log_path()).unwrap(), good);
            assert_eq!(run.verdict(&anchor), Verdict::Sound);
        }
    }
}

#[test]
fn a_log_of_another_run_is_not_this_runs() {
    let (run, anchor) = Run::recorded();
    let other = RunId::from_parts(1, 1);
    let report = belljar_record::verify_run(
        &run.directory(),
        &other,
        &run.home,
        Some(&anchor),
        LogState::Over,
    );
    assert_eq!(report.verdict, Verdict::Changed { line: 1, seq: 1 });
    assert_eq!(report.events, 0);
}

#[test]
fn an_older_copy_in_its_place_is_restored_and_not_cut() {
    let (run, anchor) = Run::recorded();
    let lines = run.lines();
    // Another file, cut anywhere.
    let copy = run.directory().join("copy");
    fs::write(&copy, lines[..5].concat()).unwrap();
    fs::rename(&copy, run.log_path()).unwrap();
    assert_ne!(fs::metadata(run.log_path()).unwrap().ino(), anchor.inode);
    assert_eq!(run.verdict(&anchor), Verdict::Restored { at: 5 });
    // The same file, as it was when it was last brought to the disk.
    let (run, anchor) = Run::recorded();
    run.write_lines(&run.lines()[..1]);
    assert_eq!(fs::metadata(run.log_path()).unwrap().ino(), anchor.inode);
    assert_eq!(run.verdict(&anchor), Verdict::Restored { at: 1 });
    // A whole copy has lost nothing.
    let (run, anchor) = Run::recorded();
    fs::write(copy_of(&run), fs::read(run.log_path()).unwrap()).unwrap();
    fs::rename(copy_of(&run), run.log_path()).unwrap();
    assert_eq!(run.verdict(&anchor), Verdict::Sound);
}

fn copy_of(run: &Run) -> std::path::PathBuf {
    run.directory().join("copy")
}

#[test]
fn a_record_written_anew_with_the_key_differs_from_the_ledger() {
    let (run, anchor) = Run::recorded();
    fs::remove_file(run.log_path()).unwrap();
    let mut log = EventLog::create(&run.directory(), run.key()).unwrap();
    log.append(EventKind::RunStart, &json!({"v": 2, "forged": true})).unwrap();
    log.append(EventKind::RunStop, &json!({"reason": "exited"})).unwrap();
    log.sync().unwrap();
    assert_eq!(run.verdict(&anchor), Verdict::Changed { line: 1, seq: 1 });
    let head = log.head();
    let last = Anchor { seq: 2, hash: "f".repeat(64), durable: vec![], ..anchor.clone() };
    assert_eq!(run.verdict(&last), Verdict::Changed { line: 2, seq: 2 });
    // Positive control: with its own head it is a record, but for the output it knows nothing of.
    let own = Anchor { seq: 2, hash: head.hash, durable: vec![], ..anchor };
    assert!(matches!(run.verdict(&own), Verdict::OutputChanged { offset: 0, .. }));
    for name in ["stdout.bin", "stderr.bin", "exec-3.stdout.bin"] {
        fs::remove_file(run.directory().join(name)).unwrap();
    }
    run.write_run_json(&json!({"v": 2, "forged": true, "outcome": {"reason": "exited"}}));
    assert_eq!(run.verdict(&own), Verdict::Sound);
}

#[test]
fn a_torn_last_line_is_torn_when_over_and_sound_while_live() {
    let run = Run::new();
    let mut log = EventLog::create(&run.directory(), run.key()).unwrap();
    assert_eq!(run.verify(None, LogState::Live).verdict, Verdict::Sound, "nothing yet");
    assert_eq!(run.verify(None, LogState::Over).verdict, Verdict::NoStart);
    log.append(EventKind::RunStart, &json!({})).unwrap();
    log.append(EventKind::Checkpoint, &json!({})).unwrap();
    log.sync().unwrap();
    assert_eq!(run.verify(None, LogState::Over).verdict, Verdict::NoStop);
    let good = fs::read(run.log_path()).unwrap();
    fs::write(run.log_path(), &good[..good.len() - 1]).unwrap();
    assert_eq!(run.verify(None, LogState::Over).verdict, Verdict::Torn { line: 2 });
    assert_eq!(run.verify(None, LogState::Live).verdict, Verdict::Sound);
}

#[test]
fn starts_and_stops_are_counted() {
    let made = |kinds: &[EventKind]| {
        let run = Run::new();
        let mut log = EventLog::create(&run.directory(), run.key()).unwrap();
        for kind in kinds {
            log.append(*kind, &json!({})).unwrap();
        }
        log.sync().unwrap();
        run.write_run_json(&json!({"outcome": {}}));
        run.verify(None, LogState::Over).verdict
    };
    use EventKind::{Checkpoint, RunStart, RunStop};
    assert_eq!(made(&[RunStart, Checkpoint, RunStop]), Verdict::NotAnchored);
    assert_eq!(made(&[Checkpoint, RunStop]), Verdict::NoStart);
    assert_eq!(made(&[RunStart, Checkpoint]), Verdict::NoStop);
    assert_eq!(made(&[RunStart, RunStart, RunStop]), Verdict::TwoStarts { seq: 2 });
    assert_eq!(made(&[RunStart, RunStop, RunStop]), Verdict::TwoStops { seq: 3 });
}

#[test]
fn output_that_is_changed_cut_lengthened_missing_or_new_is_found() {
    let (run, anchor) = Run::recorded();
    let stdout = run.directory().join("stdout.bin");
    let good = fs::read(&stdout).unwrap();
    assert_eq!(good.len(), 40);
    fs::write(&stdout, &good[..39]).unwrap();
    let (exec, stream) = (0, OutputStream::Stdout);
    assert_eq!(run.verdict(&anchor), Verdict::OutputChanged { exec, stream, offset: 39 });
    fs::write(&stdout, [&good[..], b"x"].concat()).unwrap();
    assert_eq!(run.verdict(&anchor), Verdict::OutputChanged { exec, stream, offset: 40 });
    fs::write(&stdout, &good).unwrap();
    assert_eq!(run.verdict(&anchor), Verdict::Sound);
    let third = run.directory().join("exec-3.stdout.bin");
    fs::write(&third, "thirD").unwrap();
    assert_eq!(run.verdict(&anchor), Verdict::OutputChanged { exec: 3, stream, offset: 0 });
    fs::remove_file(&third).unwrap();
    assert_eq!(run.verdict(&anchor), Verdict::OutputMissing { exec: 3, stream });
    symlink(&stdout, &third).unwrap();
    assert!(matches!(run.verdict(&anchor), Verdict::Unreadable { .. }), "a link is not followed");
    fs::remove_file(&third).unwrap();
    fs::write(&third, "third").unwrap();
    assert_eq!(run.verdict(&anchor), Verdict::Sound);
    fs::write(run.directory().join("exec-9.stderr.bin"), "planted").unwrap();
    let planted = Verdict::OutputChanged { exec: 9, stream: OutputStream::Stderr, offset: 0 };
    assert_eq!(run.verdict(&anchor), planted);
}

#[test]
fn run_json_must_say_what_the_log_says() {
    let (run, anchor) = Run::recorded();
    let outcome = json!({"reason": "exited", "exit": {"code": 0}});
    assert_eq!(run.verdict(&anchor), Verdict::Sound, "the control");
    let changed = |what: &str| Verdict::RecordChanged { what: what.into() };
    // Added, missing, and read back by nobody.
    let whole = json!({"v": 2, "spec_hash": "abc", "outcome": outcome});
    for (at, value, what) in [
        ("/more", json!(1), "more"),
        ("/v", Value::Null, "v"),
        ("/attestation", json!({"seccomp_mode": 2}), "attestation"),
        ("/outcome/more", json!(1), "outcome.more"),
        ("/outcome/reason", Value::Null, "outcome.reason"),
        ("/outcome/posture", json!({"net.sealed": "enforced"}), "outcome.posture"),
        (
            "/outcome/workspace",
            json!({"created": 1, "modified": 0, "deleted": 0, "renamed": 0}),
            "outcome.workspace",
        ),
    ] {
        let mut written = whole.clone();
        let (above, name) = at.rsplit_once('/').unwrap();
        written.pointer_mut(above).unwrap()[name] = value;
        run.write_run_json(&written);
        assert_eq!(run.verdict(&anchor), changed(what), "{at}");
    }
    run.write_run_json(&json!({"v": 2, "spec_hash": "xyz", "outcome": outcome}));
    assert_eq!(run.verdict(&anchor), changed("spec_hash"));
    let other = json!({"reason": "exited", "exit": {"code": 1}});
    run.write_run_json(&json!({"v": 2, "spec_hash": "abc", "outcome": other}));
    assert_eq!(run.verdict(&anchor), changed("outcome.exit"));
    run.write_run_json(&json!({"v": 2, "spec_hash": "abc"}));
    assert_eq!(run.verdict(&anchor), Verdict::Restored { at: anchor.seq });
    assert_eq!(
        run.verify(Some(&anchor), LogState::Live).verdict,
        Verdict::Sound,
        "not yet written"
    );
    fs::write(run.directory().join("run.json"), "{").unwrap();
    assert_eq!(run.verdict(&anchor), changed("it is no JSON"));
    fs::remove_file(run.directory().join("run.json")).unwrap();
    assert_eq!(run.verdict(&anchor), changed("it is not there"));
}

#[test]
fn a_log_the_ledger_does_not_know_is_not_anchored() {
    let (run, _) = Run::recorded();
    assert_eq!(run.verify(None, LogState::Over).verdict, Verdict::NotAnchored);
    assert_eq!(run.verify(None, LogState::Live).verdict, Verdict::Sound);
}

#[test]
fn a_missing_log_an_old_run_and_something_that_is_no_file() {
    let (run, anchor) = Run::recorded();
    let kept = copy_of(&run);
    fs::rename(run.log_path(), &kept).unwrap();
    assert_eq!(run.verdict(&anchor), Verdict::LogMissing);
    run.write_run_json(&json!({"v": 1}));
    assert_eq!(run.verdict(&anchor), Verdict::OldFormat);
    symlink(&kept, run.log_path()).unwrap();
    assert!(matches!(run.verdict(&anchor), Verdict::Unreadable { .. }));
    fs::remove_file(run.log_path()).unwrap();
    fs::create_dir(run.log_path()).unwrap();
    assert!(matches!(run.verdict(&anchor), Verdict::Unreadable { .. }));
}

#[test]
fn without_the_key_there_is_a_verdict_too() {
    let run = Run::new();
    fs::remove_file(run.home_path().join("key")).unwrap();
    let missing = HomeKey::load(run.home_path()).unwrap_err();
    assert_eq!(Report::without_key(&missing).verdict, Verdict::KeyMissing);
    fs::write(run.home_path().join("key"), "short").unwrap();
    let unusable: KeyError = HomeKey::load(run.home_path()).unwrap_err();
    assert!(matches!(Report::without_key(&unusable).verdict, Verdict::KeyUnusable { .. }));
}

#[test]
fn a_supervisor_that_died_leaves_output_ahead_of_its_events() {
    // Once with room in the file and once with the ring gone round.
    for (limit, written) in [(1000, 30), (40, 300)] {
        let run = Run::new();
        let mut recorder = run.recorder(limit);
        let now = Instant::now();
        recorder.event(EventKind::RunStart, &json!({})).unwrap();
        recorder.output(0, OutputStream::Stdout, &[b'a'; 30], now).unwrap();
        recorder.tick(now + Duration::from_secs(1)).unwrap();
        recorder.output(0, OutputStream::Stdout, &vec![b'b'; written], now).unwrap();
        assert_eq!(run.verify(None, LogState::Live).verdict, Verdict::Sound);
        std::mem::forget(recorder); // as if killed

        let (mut log, found) = EventLog::reopen(&run.directory(), run.key()).unwrap();
        assert!(found.has_start && !found.has_stop);
        log.append(EventKind::RunStop, &json!({"reason": "lost"})).unwrap();
        log.sync().unwrap();
        run.write_run_json(&json!({"outcome": {"reason": "lost"}}));
        assert_eq!(
            run.verify(None, LogState::Over).verdict,
            Verdict::NotAnchored,
            "no fault in it"
        );

        let stdout = run.directory().join("stdout.bin");
        let mut bytes = fs::read(&stdout).unwrap();
        bytes[5] = b'X'; // what has its event is compared all the same
        fs::write(&stdout, bytes).unwrap();
        let verdict = run.verify(None, LogState::Over).verdict;
        assert!(matches!(verdict, Verdict::OutputChanged { offset: 0, .. }), "{verdict}");
    }
}

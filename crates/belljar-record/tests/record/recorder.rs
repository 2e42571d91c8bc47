//! When events are due, in which order they come, and what is on disk when.

use std::fs;
use std::time::{Duration, Instant};

use crate::record_support::Run;
use belljar_record::{
    Anchor, EventReader, LogState, OutputReader, Piece, RecordError, Secrets, Stopped, Verdict,
    interleaved,
};
use belljar_spec::EventKind::{self, Checkpoint, ExecExit, LimitHit, Output, RunStart, RunStop};
use belljar_spec::OutputStream::{Stderr, Stdout};
use belljar_spec::{Event, OutputStream};
use proptest::prelude::*;
use serde_json::{Value, json};

fn events(run: &Run) -> Vec<Event> {
    let mut reader = EventReader::open(&run.directory()).unwrap().checked_with(run.key());
    std::iter::from_fn(|| reader.next().unwrap()).collect()
}

fn kinds(run: &Run) -> Vec<EventKind> {
    events(run).into_iter().map(|event| event.kind).collect()
}

#[test]
fn bytes_that_come_soon_after_each_other_share_an_event() {
    let run = Run::new();
    let mut recorder = run.recorder(1 << 20);
    let now = Instant::now();
    let after = |millis| now + Duration::from_millis(millis);
    assert_eq!(recorder.next_flush(), None);
    recorder.output(0, Stdout, b"one", now).unwrap();
    recorder.output(0, Stdout, b"two", after(30)).unwrap();
    recorder.output(0, Stderr, b"err", after(40)).unwrap();
    assert_eq!(recorder.next_flush(), Some(after(50)), "from the first byte on");
    recorder.tick(after(49)).unwrap();
    assert_eq!(kinds(&run), []);
    recorder.tick(after(50)).unwrap();
    assert_eq!(kinds(&run), [Output], "stderr is not due");
    assert_eq!(recorder.next_flush(), Some(after(90)));
    recorder.tick(after(90)).unwrap();
    assert_eq!(recorder.next_flush(), None);
    let lengths: Vec<Value> = events(&run).into_iter().map(|e| e.data["length"].clone()).collect();
    assert_eq!(lengths, [6, 3]);
}

#[test]
fn other_events_and_full_ones_are_due_at_once() {
    let run = Run::new();
    let mut recorder = run.recorder(8 << 20);
    recorder.event(RunStart, &json!({})).unwrap();
    let now = Instant::now();
    assert!(recorder.next_flush().unwrap() <= now);
    recorder.tick(now).unwrap();
    assert_eq!(kinds(&run), [RunStart]);
    recorder.output(0, Stdout, &vec![b'x'; (2 << 20) + 1], now).unwrap();
    assert_eq!(recorder.next_flush(), Some(now));
    recorder.tick(now).unwrap();
    assert_eq!(kinds(&run), [RunStart, Output, Output], "the last byte waits");
    assert_eq!(recorder.next_flush(), Some(now + Duration::from_millis(50)));
}

#[test]
fn in_a_long_log_events_come_more_seldom() {
    let run = Run::new();
    let mut recorder = run.recorder(1 << 20);
    let now = Instant::now();
    recorder.output(0, Stdout, b"x", now).unwrap();
    assert_eq!(recorder.next_flush(), Some(now + Duration::from_millis(50)));
    for _ in 0..20_000 {
        recorder.event(Checkpoint, &json!({})).unwrap();
    }
    let later = Instant::now() + Duration::from_millis(50);
    recorder.tick(later).unwrap();
    recorder.output(0, Stdout, b"x", later).unwrap();
    assert_eq!(recorder.next_flush(), Some(later + Duration::from_secs(1)));
}

#[test]
fn the_end_of_a_command_tells_what_was_lost_and_covered() {
    let run = Run::new();
    let mut recorder = run.recorder_hiding(100, Secrets::new([b"hunter2".to_vec()]));
    let now = Instant::now();
    recorder.event(RunStart, &json!({})).unwrap();
    recorder.output(0, Stderr, b"hunter2 and hun", now).unwrap();
    for _ in 0..30 {
        recorder.output(0, Stdout, b"0123456789", now).unwrap();
    }
    recorder.output(1, Stdout, b"of another command", now).unwrap();
    recorder.end_exec(0).unwrap();
    recorder.event(ExecExit, &json!({"exec": 0})).unwrap();
    assert!(matches!(recorder.stop(&json!({"reason": "exited"})).unwrap(), Stopped::Whole));
    run.write_run_json(&json!({"outcome": {"reason": "exited"}}));

    let all = events(&run);
    let loss = all.iter().find(|event| event.kind == LimitHit).unwrap();
    for (name, value) in
        [("limit", json!("output")), ("exec", json!(0)), ("stream", json!("stdout"))]
    {
        assert_eq!(loss.data[name], value);
    }
    assert_eq!((&loss.data["total"], &loss.data["kept"]), (&json!(300), &json!(100)));
    assert_eq!(loss.data["lost"], 200);
    let masked = all.iter().find(|event| event.kind == EventKind::SecretMasked).unwrap();
    assert_eq!(masked.data, json!({"exec": 0, "stream": "stderr", "count": 1}));
    let order: Vec<EventKind> = all.iter().map(|event| event.kind).collect();
    let exit = order.iter().position(|kind| *kind == ExecExit).unwrap();
    assert_eq!(order[exit..], [ExecExit, Output, RunStop], "the other command was still open");
    assert_eq!(fs::read(run.directory().join("stderr.bin")).unwrap(), b"******* and hun");

    let head = recorder.head();
    let inode = recorder.inode().unwrap();
    let anchor = Anchor { seq: head.seq, hash: head.hash, inode, durable: vec![] };
    assert_eq!(run.verdict(&anchor), Verdict::Sound);
}

#[test]
fn all_later_commands_together_keep_only_so_much() {
    let run = Run::new();
    let mut recorder = run.recorder(100);
    let now = Instant::now();
    recorder.event(RunStart, &json!({})).unwrap();
    recorder.output(0, Stdout, &[b'x'; 100], now).unwrap();
    for exec in 1..=50 {
        recorder.output(exec, Stdout, &[b'y'; 30], now).unwrap();
        recorder.output(exec, Stderr, b"z", now).unwrap();
        recorder.end_exec(exec).unwrap();
        recorder.event(ExecExit, &json!({ "exec": exec })).unwrap();
    }
    assert!(matches!(recorder.stop(&json!({"reason": "exited"})).unwrap(), Stopped::Whole));
    run.write_run_json(&json!({"outcome": {"reason": "exited"}}));

    let stored = |name: &str| fs::metadata(run.directory().join(name)).map_or(0, |file| file.len());
    assert_eq!((stored("stdout.bin"), stored("exec-1.stdout.bin")), (100, 30), "the control");
    let later = (1..=50).flat_map(|exec| {
        ["stdout", "stderr"].map(|stream| stored(&format!("exec-{exec}.{stream}.bin")))
    });
    let later: u64 = later.sum();
    assert!((380..=400).contains(&later), "{later}");
    assert_eq!(stored("exec-50.stdout.bin"), 0);
    let all = events(&run);
    let is_last = |event: &&Event| event.data["exec"] == 50 && event.data["stream"] == "stdout";
    let told = all.iter().filter(is_last).find(|event| event.kind == Output).unwrap();
    let hash = blake3::hash(&[b'y'; 30]).to_hex().to_string();
    assert_eq!((&told.data["length"], &told.data["hash"]), (&json!(30), &json!(hash)));
    let loss = all.iter().filter(is_last).find(|event| event.kind == LimitHit).unwrap();
    assert_eq!((&loss.data["total"], &loss.data["lost"]), (&json!(30), &json!(30)));
    let reader = OutputReader::open(&run.directory(), 50, Stdout, 30, 0).unwrap();
    assert_eq!(reader.lost(), 30);

    let head = recorder.head();
    let inode = recorder.inode().unwrap();
    let anchor = Anchor { seq: head.seq, hash: head.hash, inode, durable: vec![] };
    assert_eq!(run.verdict(&anchor), Verdict::Sound);
}

#[test]
fn after_the_end_nothing_can_be_added_to_a_command_that_is_over() {
    let run = Run::new();
    let mut recorder = run.recorder(100);
    let now = Instant::now();
    recorder.output(0, Stdout, b"x", now).unwrap();
    recorder.end_exec(0).unwrap();
    let refused = recorder.output(0, Stdout, b"y", now).unwrap_err();
    assert!(matches!(&refused, RecordError::Output(_)));
    assert!(refused.to_string().contains("stdout.bin"), "{refused}");
    assert_eq!(fs::read(run.directory().join("stdout.bin")).unwrap(), b"x");
}

#[test]
fn a_barrier_leaves_nothing_in_memory() {
    let run = Run::new();
    let mut recorder = run.recorder(100);
    recorder.event(RunStart, &json!({})).unwrap();
    recorder.output(0, Stdout, b"x", Instant::now()).unwrap();
    recorder.barrier().unwrap();
    assert_eq!(kinds(&run), [RunStart, Output]);
    assert_eq!(recorder.next_flush(), None);
    assert_eq!(events(&run).last().unwrap().hash, recorder.head().hash);
    assert_eq!(run.verify(None, LogState::Live).verdict, Verdict::Sound);
}

#[test]
fn hundreds_of_commands_keep_few_files_open() {
    let run = Run::new();
    let mut recorder = run.recorder(100);
    let now = Instant::now();
    recorder.event(RunStart, &json!({})).unwrap();
    for exec in 1..300 {
        recorder.output(exec, Stdout, b"x", now).unwrap();
        recorder.end_exec(exec).unwrap();
    }
    let inside = |entry: std::io::Result<fs::DirEntry>| {
        fs::read_link(entry.unwrap().path()).is_ok_and(|to| to.starts_with(run.directory()))
    };
    let open = fs::read_dir("/proc/self/fd").unwrap().map(inside);
    assert!(open.filter(|inside| *inside).count() < 40);
    recorder.stop(&json!({"reason": "exited"})).unwrap();
    run.write_run_json(&json!({"outcome": {"reason": "exited"}}));
    assert_eq!(run.verify(None, LogState::Over).verdict, Verdict::NotAnchored);
    assert_eq!(run.verify(None, LogState::Over).output_bytes, 299);
}

#[test]
fn output_of_all_streams_comes_back_in_its_order() {
    let run = Run::new();
    let mut recorder = run.recorder(1000);
    let mut now = Instant::now();
    let said: [(u32, OutputStream, &[u8]); 4] =
        [(0, Stdout, b"a"), (0, Stderr, b"bb"), (2, Stdout, b"ccc"), (0, Stdout, b"dddd")];
    let mut pieces = interleaved(&run.directory()).unwrap();
    for (exec, stream, bytes) in said {
        assert_eq!(pieces.next().unwrap(), None, "nothing more so far");
        recorder.output(exec, stream, bytes, now).unwrap();
        now += Duration::from_millis(60);
        recorder.tick(now).unwrap();
        let piece = pieces.next().unwrap().unwrap();
        assert_eq!((piece.exec, piece.stream), (exec, stream));
        let end = piece.offset + piece.length;
        let reader = OutputReader::open(&run.directory(), exec, stream, end, piece.limit).unwrap();
        let mut buffer = [0; 10];
        let read = reader.read_at(piece.offset, &mut buffer).unwrap();
        assert_eq!(read, Piece::Bytes(bytes.len()));
        assert_eq!(&buffer[..bytes.len()], bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn whatever_is_recorded_verifies(
        limit in 0..200_u64,
        steps in prop::collection::vec((0..3_u32, any::<bool>(), 0..90_usize, 0..4_u8), 0..30),
    ) {
        let run = Run::new();
        let mut recorder = run.recorder_hiding(limit, Secrets::new([b"xxxxx".to_vec()]));
        let mut now = Instant::now();
        recorder.event(RunStart, &json!({})).unwrap();
        let mut over = Vec::new();
        for (exec, stdout, length, then) in steps {
            if over.contains(&exec) {
                continue;
            }
            let stream = if stdout { Stdout } else { Stderr };
            recorder.output(exec, stream, &vec![b'x'; length], now).unwrap();
            now += Duration::from_millis(20);
            match then {
                0 => recorder.tick(now).unwrap(),
                1 => recorder.barrier().unwrap(),
                2 => {
                    recorder.end_exec(exec).unwrap();
                    over.push(exec);
                }
                _ => {}
            }
            prop_assert_eq!(run.verify(None, LogState::Live).verdict, Verdict::Sound);
        }
        recorder.stop(&json!({"reason": "exited"})).unwrap();
        run.write_run_json(&json!({"outcome": {"reason": "exited"}}));
        let (head, inode) = (recorder.head(), recorder.inode().unwrap());
        let anchor = Anchor { seq: head.seq, hash: head.hash, inode, durable: vec![] };
        prop_assert_eq!(run.verdict(&anchor), Verdict::Sound);
    }
}

#[test]
fn what_a_run_makes_of_events_has_one_budget() {
    use belljar_record::{Importance, Kept};
    const BUDGET: u64 = 1 << 20;
    let run = Run::new();
    let mut recorder = run.recorder(1 << 20);
    recorder.event(EventKind::RunStart, &json!({})).unwrap();
    let data = json!({ "text": "x".repeat(1 << 14) });
    let message = EventKind::AgentMessage;
    let mut kept = 0_u64;
    while recorder.run_event(message, &data, Importance::Ordinary).unwrap() == Kept::Yes {
        kept += 1;
    }
    assert!(kept << 14 <= BUDGET && kept << 14 > BUDGET / 2, "{kept}");
    for _ in 0..100 {
        recorder.run_event(message, &data, Importance::Ordinary).unwrap();
    }
    // What resuming needs still fits, and not without end either.
    let mut needed = 0;
    let important = Importance::NeededToResume;
    while recorder.run_event(EventKind::AgentResult, &data, important).unwrap() == Kept::Yes {
        needed += 1;
    }
    assert!((1..65).contains(&needed), "{needed}");
    recorder.stop(&json!({})).unwrap();
    let events = events(&run);
    let hits: Vec<_> = events.iter().filter(|event| event.kind == EventKind::LimitHit).collect();
    assert_eq!(hits.len(), 2, "one when it began, one with the count");
    assert_eq!(hits[1].data["dropped"], 102);
}

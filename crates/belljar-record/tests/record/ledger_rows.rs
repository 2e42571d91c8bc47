//! The ledger: rows go in and come out, many write at once, damage is told.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::runs::{Runs, id, row};
use belljar_record::home::Home;
use belljar_record::ledger::{
    AnchorRow, ByName, ByState, Filter, Ledger, LedgerError, LedgerRow, RowOrigin, SandboxKept,
    agent_line, command_line, rebuild,
};
use belljar_spec::{BackendName, Exit, ExitSource, OsText, RunId, RunState, StopReason, Usage};
use proptest::prelude::*;
use rusqlite::Connection;

fn ids(rows: &[LedgerRow]) -> Vec<RunId> {
    rows.iter().map(|row| row.id).collect()
}

#[test]
fn it_is_private_durable_and_opens_again() {
    let runs = Runs::new();
    runs.ledger().upsert(&row(id(1), None)).unwrap();
    for file in ["ledger.db", "ledger.db-wal", "ledger.db-shm"] {
        let mode = fs::metadata(runs.home.path().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    assert_eq!(runs.ledger().ids().unwrap(), [id(1)]);
    let plain = Connection::open(runs.home.ledger_path()).unwrap();
    let journal: String = plain.pragma_query_value(None, "journal_mode", |r| r.get(0)).unwrap();
    assert_eq!(journal, "wal");
    let synchronous: i64 = plain.pragma_query_value(None, "synchronous", |r| r.get(0)).unwrap();
    assert_eq!(synchronous, 2, "FULL is what this SQLite does by itself");
}

#[test]
fn a_row_is_replaced_and_removed() {
    let runs = Runs::new();
    let mut ledger = runs.ledger();
    let mut one = row(id(1), Some("a"));
    ledger.upsert(&one).unwrap();
    one.state = RunState::Running;
    one.name = None;
    ledger.upsert(&one).unwrap();
    assert_eq!(ledger.get(&id(1)).unwrap(), Some(one));
    assert_eq!(ledger.get(&id(2)).unwrap(), None);
    ledger.upsert(&row(id(2), None)).unwrap();
    ledger.remove(&[id(1), id(3)]).unwrap();
    assert_eq!(ledger.ids().unwrap(), [id(2)]);
    ledger.set_sandbox_gone(&id(2)).unwrap();
    ledger.set_sandbox_gone(&id(9)).unwrap();
    assert_eq!(ledger.get(&id(2)).unwrap().unwrap().sandbox, SandboxKept::No);
}

#[test]
fn listings_are_newest_first_and_names_are_exact() {
    let runs = Runs::new();
    let mut ledger = runs.ledger();
    for (number, name) in [(1, Some("ab")), (2, None), (3, Some("abc")), (4, Some("ab"))] {
        ledger.upsert(&row(id(number), name)).unwrap();
    }
    ledger.upsert(&LedgerRow { state: RunState::Running, ..row(id(5), Some("ab")) }).unwrap();
    let list = |name, state| ids(&ledger.list(&Filter { name, state }).unwrap());
    let ab = || ByName::Exactly(Some("ab".to_owned()));
    assert_eq!(list(ByName::Any, ByState::Any), [id(5), id(4), id(3), id(2), id(1)]);
    assert_eq!(list(ab(), ByState::Any), [id(5), id(4), id(1)]);
    assert_eq!(list(ab(), ByState::Is(RunState::Stopped)), [id(4), id(1)]);
    assert_eq!(list(ByName::Exactly(None), ByState::Any), [id(2)]);
    assert_eq!(list(ByName::Any, ByState::Is(RunState::Running)), [id(5)]);
    assert_eq!(ids(&ledger.of_name(&Some("a".to_owned())).unwrap()), []);
    assert_eq!(ledger.ids().unwrap(), [id(1), id(2), id(3), id(4), id(5)]);
}

fn any_row() -> impl Strategy<Value = LedgerRow> {
    let exit = prop_oneof![
        any::<u8>().prop_map(|code| Exit::of_belljar(i32::from(code), ExitSource::Oom)),
        any::<u8>().prop_map(|s| Exit { code: None, signal: Some(s), source: ExitSource::Command }),
    ];
    let anchor =
        (0..1_u64 << 53, ".{0,8}", any::<u32>()).prop_map(|(seq, hash, inode)| AnchorRow {
            seq,
            hash: hash.clone(),
            inode: u64::from(inode),
            durable: vec![(1, hash), (seq, String::new())],
        });
    let text = (
        proptest::option::of(".*"),
        ".*",
        proptest::option::of(proptest::collection::vec(1..=255_u8, 0..40)),
    );
    let ends = (
        proptest::option::of(exit),
        proptest::option::of(anchor),
        proptest::option::of(0..1_u64 << 53),
        proptest::sample::select(vec![StopReason::Lost, StopReason::Oom, StopReason::Exited]),
        proptest::sample::select(RunState::ALL),
        proptest::sample::select(BackendName::ALL),
        any::<bool>(),
    );
    (text, ends, any::<u64>()).prop_map(|((name, command, workspace), ends, random)| LedgerRow {
        id: RunId::from_parts(random >> 20, random),
        name,
        backend: ends.5,
        state: ends.4,
        command,
        workspace: workspace.map(OsText::from_bytes),
        created_ms: random >> 20,
        stopped_ms: ends.2,
        reason: ends.2.map(|_| ends.3),
        exit: ends.0,
        usage: Usage { wall_ms: random >> 11, cpu_ms: ends.2, ..Usage::default() },
        sandbox: if ends.6 { SandboxKept::Yes } else { SandboxKept::No },
        anchor: ends.1,
        origin: if ends.6 { RowOrigin::Supervisor } else { RowOrigin::Reconcile },
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn what_goes_in_comes_out(rows in proptest::collection::vec(any_row(), 1..4)) {
        let runs = Runs::new();
        let mut ledger = runs.ledger();
        for row in &rows {
            ledger.upsert(row).unwrap();
            prop_assert_eq!(ledger.get(&row.id).unwrap(), Some(row.clone()));
        }
    }
}

#[test]
fn eight_threads_make_it_and_write_at_once() {
    let runs = Runs::new();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let home = &runs.home;
            scope.spawn(move || {
                for number in 0..25 {
                    // Opened anew each time, as each run does.
                    let mut ledger = Ledger::open(home).unwrap();
                    ledger.upsert(&row(id(thread * 1000 + number), Some("t"))).unwrap();
                    assert!(ledger.list(&Filter::default()).unwrap().len() as u64 > number);
                }
            });
        }
    });
    assert_eq!(runs.ledger().ids().unwrap().len(), 200);
}

/// The part of the test below that runs in processes of its own.
#[test]
#[ignore = "run by another test"]
fn write_from_a_process() {
    let home = Home::open_at(std::env::var_os("BELLJAR_TEST_LEDGER_HOME").unwrap().into()).unwrap();
    let process: u64 = std::env::var("BELLJAR_TEST_LEDGER_NUMBER").unwrap().parse().unwrap();
    for number in 0..25 {
        let mut ledger = Ledger::open(&home).unwrap();
        ledger.upsert(&row(id(process * 1000 + number), None)).unwrap();
    }
}

#[test]
fn four_processes_make_it_and_write_at_once() {
    let runs = Runs::new();
    let processes: Vec<_> = (0..4)
        .map(|number| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "--ignored", "ledger_rows::write_from_a_process"])
                .env("BELLJAR_TEST_LEDGER_HOME", runs.home.path())
                .env("BELLJAR_TEST_LEDGER_NUMBER", number.to_string())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for process in processes {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    assert_eq!(runs.ledger().ids().unwrap().len(), 100);
}

#[test]
fn opening_and_one_row_are_cheap() {
    let runs = Runs::new();
    let mut ledger = runs.ledger();
    for number in 0..200 {
        ledger.upsert(&row(id(number), Some("x"))).unwrap();
    }
    drop(ledger);
    let mut times: Vec<Duration> = (200..300)
        .map(|number| {
            let row = row(id(number), Some("x"));
            let begin = Instant::now();
            runs.ledger().upsert(&row).unwrap();
            begin.elapsed()
        })
        .collect();
    times.sort();
    let log = fs::metadata(runs.home.path().join("ledger.db-wal")).unwrap().len();
    assert!(log < 512 << 10, "the log does not grow with the number of runs: {log}");
    eprintln!("open, one row, close: p50 {:?}, p90 {:?}", times[50], times[90]);
    assert!(times[50] < Duration::from_millis(50), "a debug build, and perhaps a slow disk");
}

#[test]
fn a_newer_one_is_refused() {
    let runs = Runs::new();
    runs.ledger();
    let plain = Connection::open(runs.home.ledger_path()).unwrap();
    plain.pragma_update(None, "user_version", 2).unwrap();
    let refused = Ledger::open(&runs.home).unwrap_err();
    assert!(matches!(refused, LedgerError::Newer { found: 2, known: 1, .. }), "{refused}");
    plain.pragma_update(None, "user_version", 1).unwrap();
    assert!(Ledger::open(&runs.home).is_ok());
}

#[test]
fn a_damaged_one_names_the_way_out_and_that_works() {
    let runs = Runs::new();
    for number in 0..3 {
        runs.stopped(number, Some("n"));
    }
    let path = runs.home.ledger_path();
    for damage in ["no database at all, but longer than its header is".repeat(4), "xx".to_owned()] {
        fs::write(&path, damage).unwrap();
        let _ = fs::remove_file(runs.home.path().join("ledger.db-wal"));
        let refused = Ledger::open(&runs.home).unwrap_err();
        assert!(matches!(refused, LedgerError::Corrupt { .. }), "{refused:?}");
        assert!(refused.to_string().contains("belljar reconcile --rebuild-ledger"), "{refused}");
        let rebuilt = rebuild(&runs.home).unwrap();
        assert_eq!(rebuilt.added, 3);
        assert!(rebuilt.damaged.unwrap().exists());
        assert_eq!(runs.ledger().ids().unwrap(), [id(0), id(1), id(2)]);
        assert_eq!(rebuild(&runs.home).unwrap().added, 0, "and stays so");
    }
}

#[test]
fn damage_in_the_middle_is_found_by_the_rebuild() {
    let runs = Runs::new();
    let mut ledger = runs.ledger();
    for number in 0..200 {
        ledger.upsert(&row(id(number), Some("n"))).unwrap();
    }
    drop(ledger);
    // Folds the log into the file, which is then the only place.
    Connection::open(runs.home.ledger_path())
        .unwrap()
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .unwrap();
    let mut bytes = fs::read(runs.home.ledger_path()).unwrap();
    assert!(bytes.len() > 3 * 4096);
    bytes[2 * 4096..].fill(0xaa);
    fs::write(runs.home.ledger_path(), bytes).unwrap();
    assert!(matches!(runs.ledger().list(&Filter::default()), Err(LedgerError::Corrupt { .. })));
    runs.directory(id(7), None);
    let rebuilt = rebuild(&runs.home).unwrap();
    assert_eq!((rebuilt.added, rebuilt.damaged.is_some()), (1, true));
    assert_eq!(runs.ledger().ids().unwrap(), [id(7)]);
}

#[test]
fn a_value_that_nobody_wrote_is_damage() {
    let runs = Runs::new();
    runs.ledger().upsert(&row(id(1), None)).unwrap();
    let plain = Connection::open(runs.home.ledger_path()).unwrap();
    for bad in ["state = 'asleep'", "id = '../../etc'", "usage = '{'", "created_ms = -1"] {
        plain.execute(&format!("UPDATE runs SET {bad}"), []).unwrap();
        let refused = runs.ledger().list(&Filter::default()).unwrap_err();
        assert!(matches!(refused, LedgerError::Corrupt { .. }), "{bad}: {refused:?}");
        plain.execute("DELETE FROM runs", []).unwrap();
        runs.ledger().upsert(&row(id(1), None)).unwrap();
        assert_eq!(runs.ledger().list(&Filter::default()).unwrap().len(), 1);
    }
}

#[test]
fn rows_are_made_again_from_the_records() {
    let runs = Runs::new();
    runs.directory(id(1), Some("a"));
    runs.record(id(2), None, None);
    let (live, _held) = runs.live(3, None, "running");
    fs::create_dir(runs.home.run_dir(&id(4))).unwrap();
    let mut other = row(id(5), None);
    other.anchor = Some(AnchorRow { seq: 1, hash: "h".into(), inode: 2, durable: Vec::new() });
    runs.directory(id(5), Some("not in the row"));
    runs.ledger().upsert(&other).unwrap();

    assert_eq!(rebuild(&runs.home).unwrap().added, 2);
    let ledger = runs.ledger();
    let made = ledger.get(&id(1)).unwrap().unwrap();
    let stopped_ms = made.stopped_ms;
    assert!(stopped_ms.is_some());
    let want = LedgerRow { origin: RowOrigin::Rebuilt, stopped_ms, ..row(id(1), Some("a")) };
    assert_eq!(made, want);
    let lost = ledger.get(&id(2)).unwrap().unwrap();
    assert_eq!((lost.reason, lost.state), (Some(StopReason::Lost), RunState::Stopped));
    assert_eq!(ledger.get(&live).unwrap(), None, "its supervisor writes it");
    assert_eq!(ledger.get(&id(4)).unwrap(), None, "there is no record to read");
    assert_eq!(ledger.get(&id(5)).unwrap(), Some(other), "what is there stays");
}

#[test]
fn a_command_is_cut_and_escaped() {
    let words = |words: &[&str]| words.iter().map(|word| OsText::from(*word)).collect::<Vec<_>>();
    assert_eq!(command_line(&words(&["make", "a b"])), "make 'a b'");
    let control = command_line(&words(&["echo", "\u{1b}[2J\n"]));
    assert!(control.chars().all(|c| !c.is_control()), "{control}");
    let exact = "x".repeat(200);
    assert_eq!(command_line(&words(&[&exact])), exact);
    for long in [words(&[&"ä".repeat(201)]), vec![OsText::from("a"); 100_000]] {
        let line = command_line(&long);
        assert_eq!(line.chars().count(), 200);
        assert!(line.ends_with('…'));
    }
}

#[test]
fn an_agent_is_told_by_its_kind_or_its_program() {
    let line = |kind: &str, words: &[&str]| {
        let words: Vec<OsText> = words.iter().map(|word| OsText::from(*word)).collect();
        agent_line(kind, &words)
    };
    assert_eq!(line("claude", &["/opt/claude/bin/claude"]), "agent claude");
    assert_eq!(line("command", &["sh", "two words"]), "agent sh 'two words'");
    assert_eq!(line("\u{1b}[2J", &[]), "agent \\u{1b}[2J");
}

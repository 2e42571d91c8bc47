//! The ledger's rows are part of the evidence: what `ps` and `show` print of a run agrees with its record, or `verify`
//! says so.

use std::fs;
use std::path::Path;
use std::process::Command;

use belljar_testkit::{Lab, each_user, soak};

/// What a person and a program see of the runs. Nothing if the ledger cannot be read at all, which they are told.
fn seen(lab: &Lab, run: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    let listed = lab.belljar(["ps", "-a", "--json"]).done();
    let shown = lab.belljar(["show", "--json", run]).done();
    (listed.code() == 0).then_some((listed.stdout, shown.stdout))
}

/// Folds the write-ahead log into the database, so that the rows are in one file.
fn fold(lab: &Lab) -> Vec<u8> {
    let path = lab.home().join("ledger.db");
    let script = "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1])\n\
                  c.execute('PRAGMA wal_checkpoint(TRUNCATE)').fetchall()\nc.close()\n";
    let done = Command::new("python3").arg("-c").arg(script).arg(&path).status().unwrap();
    assert!(done.success());
    fs::read(&path).unwrap()
}

/// Puts another database in the place of this one, as a broken disk or an editor would.
fn put(lab: &Lab, content: &[u8]) {
    let path = lab.home().join("ledger.db");
    fs::write(&path, content).unwrap();
    for log in ["ledger.db-wal", "ledger.db-shm"] {
        let _ = fs::remove_file(path.with_file_name(log)); // not there where nobody has it open
    }
}

/// Where the row of the run begins and ends in the file: its id and, after it, its command and its anchor.
fn row_of(content: &[u8], id: &str, command: &str) -> std::ops::Range<usize> {
    let find = |needle: &[u8], from: usize| {
        let found = content[from..].windows(needle.len()).position(|window| window == needle);
        found.map(|place| from + place)
    };
    let mut from = 0;
    while let Some(start) = find(id.as_bytes(), from) {
        from = start + 1;
        let near = find(command.as_bytes(), start).filter(|place| place - start < 100);
        if near.is_some() {
            // The header of the record with its types is before the id, the anchor behind the command.
            let end = find(b"\"durable\"", start).unwrap_or(start + 300) + 20;
            return start - 20..end.min(content.len());
        }
    }
    panic!("the row of {id} is not in the file");
}

#[test]
fn no_flipped_bit_of_a_row_is_shown_and_called_sound() {
    each_user(|lab| {
        lab.make_file("work/file", "");
        let command = "echo marked-command";
        lab.run(["-q", "--name", "marked", "--", "sh", "-c", command]).done().expect(0);
        lab.run(["-q", "--", "sh", "-c", "exit 3"]).done().expect(3);
        let id = lab.belljar(["ps", "-a", "--json"]).done().json();
        let id = id.as_array().unwrap().iter().find(|run| run["name"] == "marked").unwrap();
        let id = id["id"].as_str().unwrap().to_owned();
        let sound = fold(lab);
        put(lab, &sound);
        let before = seen(lab, &id).unwrap();
        lab.belljar(["verify", "--all"]).done().expect(0); // the control
        let row = row_of(&sound, &id, "marked-command");
        eprintln!("the row has {} bytes", row.len());
        let bits: Vec<usize> = if soak() { (0..8).collect() } else { vec![0, 4] };
        let (mut told, mut missed) = (0, Vec::new());
        for place in row {
            for bit in bits.iter().map(|bit| (bit + place) % 8) {
                let mut content = sound.clone();
                content[place] ^= 1 << bit;
                put(lab, &content);
                let Some(now) = seen(lab, &id) else { continue };
                if now == before {
                    continue;
                }
                put(lab, &content);
                let verdict = lab.belljar(["verify", "--all"]).done();
                match verdict.code() {
                    0 => missed.push(differs(&before.0, &now.0)),
                    _ => told += 1,
                }
            }
        }
        put(lab, &sound);
        lab.belljar(["verify", "--all"]).done().expect(0);
        eprintln!("{told} changes were noticed");
        assert!(missed.is_empty(), "{} called sound:\n{}", missed.len(), missed.join("\n"));
        assert!(told > 20, "the row was never changed: {told}");
    });
}

/// The first line in which two listings differ.
fn differs(before: &[u8], now: &[u8]) -> String {
    let (before, now) = (String::from_utf8_lossy(before), String::from_utf8_lossy(now));
    let pairs = before.lines().zip(now.lines());
    let pair = pairs.into_iter().find(|(old, new)| old != new);
    pair.map_or("another number of lines".to_owned(), |(old, new)| format!("{old} -> {new}"))
}

/// The same by the database's own hand, one column at a time: whoever can write the file can do that.
#[test]
fn no_changed_column_is_called_sound() {
    each_user(|lab| {
        lab.run(["-q", "--name", "marked", "--", "sh", "-c", "echo x"]).done().expect(0);
        let sound = fold(lab);
        let changes = [
            "name = 'other'",
            "name = NULL",
            "backend = 'docker'",
            "command = 'sh -c ''echo y'''",
            "workspace = CAST('/somewhere/else' AS BLOB)",
            "created_ms = created_ms - 1000000",
            "stopped_ms = stopped_ms + 1000",
            "reason = 'deadline'",
            "exit = replace(exit, ':0', ':1')",
            "usage = replace(usage, 'wall_ms\":', 'wall_ms\":9')",
        ];
        let mut missed = Vec::new();
        for change in changes {
            put(lab, &sound);
            update(&lab.home().join("ledger.db"), change);
            let listed = lab.belljar(["ps", "-a", "--json"]).done();
            let verdict = lab.belljar(["verify", "--all"]).done();
            if verdict.code() == 0 {
                missed.push(format!("{change}: {}", listed.out()));
            }
        }
        put(lab, &sound);
        lab.belljar(["verify", "--all"]).done().expect(0); // the control
        assert!(missed.is_empty(), "{} called sound:\n{}", missed.len(), missed.join("\n"));
    });
}

fn update(path: &Path, change: &str) {
    let script = "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1])\n\
                  n = c.execute('UPDATE runs SET ' + sys.argv[2]).rowcount\nassert n == 1, n\nc.commit()\n\
                  c.execute('PRAGMA wal_checkpoint(TRUNCATE)').fetchall()\nc.close()\n";
    let done =
        Command::new("python3").arg("-c").arg(script).arg(path).arg(change).status().unwrap();
    assert!(done.success(), "{change}");
    for log in ["ledger.db-wal", "ledger.db-shm"] {
        let _ = fs::remove_file(path.with_file_name(log));
    }
}

//! What the record gives back: logs, events, and whether it is what was written.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use belljar_testkit::{Done, Lab, each_user, until};

fn belljar(lab: &Lab, words: &[&str]) -> Done {
    lab.belljar(words).done()
}

fn directory(lab: &Lab, id: &str) -> PathBuf {
    lab.home().join("runs").join(id)
}

#[test]
fn logs_select_by_line_stream_command_and_time() {
    each_user(|lab| {
        lab.run([
            "--keep",
            "-q",
            "--name",
            "k",
            "--",
            "sh",
            "-c",
            "for i in 1 2 3 4 5; do echo line $i; done; sleep 0.2; printf end; echo e >&2",
        ])
        .done()
        .expect(0);
        belljar(lab, &["exec", "k", "--", "sh", "-c", "echo of one"]).expect(0);
        let out = |words: &[&str]| {
            let words: Vec<&str> = ["logs"].iter().chain(words).chain(&["k"]).copied().collect();
            let done = belljar(lab, &words);
            assert_eq!(done.code(), 0, "{done}");
            (done.out(), done.err())
        };
        let all = "line 1\nline 2\nline 3\nline 4\nline 5\nendof one\n";
        assert_eq!(out(&[]), (all.to_owned(), "e\n".to_owned()));
        assert_eq!(out(&["--stdout"]), (all.to_owned(), String::new()));
        assert_eq!(out(&["--stderr"]), (String::new(), "e\n".to_owned()));
        assert_eq!(out(&["--exec", "1"]).0, "of one\n");
        assert_eq!(out(&["--exec", "0", "--tail", "2", "--stdout"]).0, "line 5\nend");
        assert_eq!(out(&["--tail", "0"]), (String::new(), String::new()));
        assert_eq!(out(&["--tail", "1000"]).0, all);
        assert_eq!(out(&["--since", "1h"]).0, all);
        assert_eq!(out(&["--since", "2099-01-01T00:00:00Z"]).0, "");
        belljar(lab, &["logs", "--since", "soon", "k"]).expect(125).says(&["is not a time"]);
        let timed = out(&["-t", "--exec", "0", "--stdout"]).0;
        let is_timed = |line: &str| {
            line.starts_with("20") && line.as_bytes()[10] == b'T' && line.contains("Z ")
        };
        assert!(timed.lines().count() == 6 && timed.lines().all(is_timed), "{timed}");
    });
}

#[test]
fn logs_follow_until_the_run_is_over() {
    each_user(|lab| {
        let script = "echo first; read l < /workspace/go; echo second; exit 3";
        rustix::fs::mknodat(
            rustix::fs::CWD,
            lab.work().join("go"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o666),
            0,
        )
        .unwrap();
        rustix::fs::chmod(lab.work().join("go"), rustix::fs::Mode::from_raw_mode(0o666)).unwrap();
        let id = lab.run(["-d", "-q", "--", "sh", "-c", script]).done().expect(0).out();
        let id = id.trim();
        let mut following = lab.belljar(["logs", "-f", id]).spawn();
        let events = lab.belljar(["events", "-f", "--kind", "run.stop", id]).spawn();
        following.wait_for_output("first\n");
        assert!(following.is_running());
        // Not to wait for ever if nobody reads.
        let to = fs::OpenOptions::new().read(true).write(true).open(lab.work().join("go")).unwrap();
        std::io::Write::write_all(&mut &to, b"now\n").unwrap();
        let done = following.done();
        assert_eq!(done.expect(0).out(), "first\nsecond\n");
        let events = events.done();
        assert_eq!(events.expect(0).out().lines().count(), 1, "{events}");
        assert_eq!(events.json()["kind"], "run.stop");
        assert!(until(Duration::from_secs(5), || lab.live().is_empty()));
    });
}

#[test]
fn what_is_lost_is_told_and_the_rest_is_exact() {
    let lab = Lab::me();
    let script = "i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done";
    lab.run(["-q", "--name", "l", "-c", "limits.output=4k", "--", "sh", "-c", script])
        .done()
        .expect(0);
    let all: String = (0..5000).map(|at| format!("line {at}\n")).collect();
    let done = belljar(&lab, &["logs", "l"]);
    let lost = all.len() - 4096;
    done.expect(0).says(&[&format!("{lost} bytes of stdout were not recorded")]);
    assert_eq!(done.out(), format!("{}{}", &all[..2048], &all[all.len() - 2048..]));
    assert_eq!(belljar(&lab, &["logs", "--tail", "2", "l"]).out(), "line 4998\nline 4999\n");
    // A reader that has enough ends it.
    let exe = lab.exe.display();
    let done = lab
        .belljar(["ps"])
        .through(&["sh", "-c", &format!("{exe} logs l 2>&1 | head -1; exec \"$0\" \"$@\"")])
        .done();
    assert!(done.out().starts_with("line 0\n"), "{done}");
}

#[test]
fn events_are_the_lines_as_they_are_stored() {
    each_user(|lab| {
        lab.run(["-q", "--name", "e", "--", "sh", "-c", "echo x"]).done().expect(0);
        let id = lab.runs()[0].clone();
        let stored = fs::read(directory(lab, &id).join("events.jsonl")).unwrap();
        assert_eq!(belljar(lab, &["events", "e"]).expect(0).stdout, stored);
        let some = belljar(lab, &["events", "--kind", "run.start", "--kind", "output", "e"]);
        assert_eq!(some.out().lines().count(), 2, "{some}");
    });
}

/// A whole, finished run with some output; its id.
fn recorded(lab: &Lab) -> String {
    let before = lab.runs();
    lab.sh(&["-q"], "echo out; echo err >&2; sleep 0.1; echo more").expect(0);
    lab.runs().into_iter().find(|id| !before.contains(id)).unwrap()
}

#[test]
fn every_kind_of_tampering_has_its_own_verdict() {
    let lab = Lab::me();
    let lines = |id: &str| -> Vec<String> {
        let text = fs::read_to_string(directory(&lab, id).join("events.jsonl")).unwrap();
        text.lines().map(|line| format!("{line}\n")).collect()
    };
    let write = |id: &str, lines: &[String]| {
        fs::write(directory(&lab, id).join("events.jsonl"), lines.concat()).unwrap();
    };
    let verdict = |id: &str, word: &str| {
        let done = belljar(&lab, &["verify", id]);
        done.expect(1);
        assert!(done.out().contains(&format!("  {word}")), "not {word}: {done}");
        let object = belljar(&lab, &["verify", "--json", id]).json();
        assert_eq!(object[0]["sound"], false, "{object:#}");
    };
    let tampered = |word: &str, change: &dyn Fn(&mut Vec<String>)| {
        let id = recorded(&lab);
        belljar(&lab, &["verify", &id]).expect(0); // sound before
        let mut all = lines(&id);
        change(&mut all);
        write(&id, &all);
        verdict(&id, word);
    };
    tampered("cut", &|lines| drop(lines.pop()));
    tampered("dropped", &|lines| drop(lines.remove(4)));
    tampered("changed", &|lines| {
        lines[4] = lines[4].replacen("output", "outpux", 1).replacen("exec", "exeC", 1)
    });
    tampered("reordered", &|lines| lines.swap(4, 5));
    tampered("replayed", &|lines| lines.insert(5, lines[4].clone()));
    tampered("appended", &|lines| lines.push("{}\n".to_owned()));

    let id = recorded(&lab);
    fs::write(directory(&lab, &id).join("stdout.bin"), "our\nmore\n").unwrap();
    verdict(&id, "output changed");
    fs::remove_file(directory(&lab, &id).join("stdout.bin")).unwrap();
    verdict(&id, "output missing");
    let id = recorded(&lab);
    let path = directory(&lab, &id).join("run.json");
    fs::write(&path, fs::read_to_string(&path).unwrap().replace("\"exited\"", "\"deadline\""))
        .unwrap();
    verdict(&id, "record changed");
    let id = recorded(&lab);
    fs::remove_file(directory(&lab, &id).join("events.jsonl")).unwrap();
    verdict(&id, "log missing");

    let sound = recorded(&lab);
    belljar(&lab, &["verify", &sound]).expect(0);
    let all = belljar(&lab, &["verify", "--all"]);
    assert_eq!(
        all.expect(1).out().lines().filter(|line| line.contains("  sound")).count(),
        1,
        "{all}"
    );
    fs::remove_file(lab.home().join("key")).unwrap();
    verdict(&sound, "key missing");
    let newest = belljar(&lab, &["verify"]);
    assert!(newest.expect(1).out().contains("key missing"), "{newest}");
}

#[test]
fn a_damaged_ledger_is_made_anew_from_the_records() {
    let lab = Lab::me();
    let id = recorded(&lab);
    fs::write(
        lab.home().join("ledger.db"),
        "this is no database, and long enough to be read as one",
    )
    .unwrap();
    for left in ["ledger.db-wal", "ledger.db-shm"] {
        let _ = fs::remove_file(lab.home().join(left)); // there or not
    }
    belljar(&lab, &["ps", "-a"]).expect(125).says(&["--rebuild-ledger"]);
    let told = belljar(&lab, &["reconcile", "--rebuild-ledger", "--json"]).expect(0).json();
    assert_eq!(told["ledger"]["added"], 1, "{told:#}");
    assert_eq!(belljar(&lab, &["ps", "-aq"]).expect(0).out(), format!("{id}\n"));
    let told = belljar(&lab, &["verify", &id]);
    assert!(told.expect(1).out().contains("not anchored"), "{told}");
}

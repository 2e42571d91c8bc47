//! `run.json` and the ledger's row are written after the exit code is returned. Whoever looks at the run next sees its
//! end all the same, also where the process that writes them was killed.

use std::fs;
use std::process::Stdio;

use belljar::home::Home;
use belljar::ledger::Ledger;
use belljar_testkit::{Lab, each_user, wait_for_index};

/// Runs it without waiting for anything but the exit code.
fn run_and_return(lab: &Lab, name: &str) {
    // What it plants is listed by name.
    let script = "echo out; mkdir -p .git/hooks; echo x > .git/hooks/pre-commit; exit 3";
    let call = lab.run(["-q", "--no-config", "--name", name, "--", "sh", "-c", script]);
    let mut command = call.prepared();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(3));
}

#[test]
fn a_finished_run_is_seen_finished_at_once() {
    each_user(|lab| {
        for round in 0..12 {
            let name = format!("r{round}");
            run_and_return(lab, &name);
            let look: &[&str] = match round % 4 {
                0 => &["show", "--json"],
                1 => &["verify", "--json"],
                2 => &["logs"],
                _ => &["rm", "--json"],
            };
            let call = look.iter().chain(&[name.as_str()]).copied().collect::<Vec<_>>();
            let done = lab.belljar(call.as_slice()).done();
            done.expect(0);
            match round % 4 {
                0 => assert_eq!(done.json()["record"]["outcome"]["exit"]["code"], 3, "{done}"),
                1 => assert!(done.out().contains("sound"), "{done}"),
                2 => assert_eq!(done.out(), "out\n"),
                _ => assert!(lab.home().join("runs").read_dir().unwrap().count() > 0),
            }
        }
        assert!(lab.live().is_empty());
    });
}

/// The same name again, at once: the run of before does not count as alive.
#[test]
fn its_name_is_free_at_once() {
    each_user(|lab| {
        for _ in 0..6 {
            run_and_return(lab, "again");
        }
        wait_for_index(&lab.home());
        lab.assert_all_sound();
    });
}

#[test]
fn what_a_killed_writer_left_undone_is_done_by_whatever_looks_next() {
    for look in
        [&["show", "--json"][..], &["verify", "--json"], &["ps", "-a", "--json"], &["reconcile"]]
    {
        each_user(|lab| {
            run_and_return(lab, "x");
            wait_for_index(&lab.home());
            let [id] = lab.runs().try_into().unwrap();
            let directory = lab.home().join("runs").join(&id);
            let written = fs::read(directory.join("run.json")).unwrap();
            // As it is when the writer is killed at its first step: `run.json` is that of the start.
            let mut begun: serde_json::Value = serde_json::from_slice(&written).unwrap();
            for field in ["outcome", "attestation", "stopped_ms"] {
                begun.as_object_mut().unwrap().remove(field);
            }
            without_index(lab, &id, &begun.to_string());
            let words: Vec<&str> = match look[0] {
                "ps" | "reconcile" => look.to_vec(),
                _ => look.iter().chain(&["x"]).copied().collect(),
            };
            let done = lab.belljar(words.as_slice()).done();
            done.expect(0);
            assert!(!done.out().contains("lost") || look[0] == "reconcile", "{done}");
            assert!(lab.live().is_empty(), "{done}");
            let before: serde_json::Value = serde_json::from_slice(&written).unwrap();
            assert_eq!(
                lab.record(&id),
                before,
                "from the log it is what the writer would have written"
            );
            assert!(written.windows(10).any(|part| part == b"pre-commit"), "the control");
            lab.assert_sound(&id);
        });
    }
}

/// As it is when the writer of the index was killed.
fn without_index(lab: &Lab, id: &str, run_json: &str) {
    lab.as_owner(|| {
        let home = Home::open_at(lab.home()).unwrap();
        Ledger::open(&home).unwrap().remove(&[id.parse().unwrap()]).unwrap();
        fs::write(lab.home().join("runs").join(id).join("run.json"), run_json).unwrap();
        fs::write(lab.home().join("live").join(id), "stopped  \n").unwrap();
    });
}

/// A look is no repair: what was done to the log is found as it is in any other.
#[test]
fn a_changed_log_does_not_become_sound_by_a_look() {
    each_user(|lab| {
        for change in ["append", "cut"] {
            run_and_return(lab, change);
            wait_for_index(&lab.home());
            let id = lab.runs().pop().unwrap();
            let directory = lab.home().join("runs").join(&id);
            let log = fs::read_to_string(directory.join("events.jsonl")).unwrap();
            let changed = match change {
                "append" => format!("{log}{{\"seq\":99,\"kind\":\"run.stop\"}}\n"),
                _ => log.lines().take(5).map(|line| format!("{line}\n")).collect(),
            };
            let run_json = fs::read_to_string(directory.join("run.json")).unwrap();
            without_index(lab, &id, &run_json);
            lab.as_owner(|| fs::write(directory.join("events.jsonl"), &changed).unwrap());
            let done = lab.belljar(["verify", &id]).done();
            assert!(!done.out().contains("  sound ("), "{change}: {done}");
            assert_eq!(fs::read_to_string(directory.join("events.jsonl")).unwrap(), changed);
            lab.belljar(["rm", "-f", &id]).done();
        }
    });
}

/// Reconcile removes the entry of a run that was closed, and neither its log nor its row is made anew.
#[test]
fn a_closed_run_is_not_closed_again() {
    each_user(|lab| {
        run_and_return(lab, "x");
        wait_for_index(&lab.home());
        let [id] = lab.runs().try_into().unwrap();
        let log = lab.home().join("runs").join(&id).join("events.jsonl");
        let short: String =
            fs::read_to_string(&log).unwrap().lines().take(5).map(|l| format!("{l}\n")).collect();
        lab.as_owner(|| {
            fs::write(&log, &short).unwrap();
            fs::write(lab.home().join("live").join(&id), "closed   \n").unwrap();
        });
        lab.belljar(["reconcile"]).done().expect(0);
        assert!(lab.live().is_empty());
        assert_eq!(fs::read_to_string(&log).unwrap(), short);
        assert!(!lab.verify(&id).verdict.is_sound(), "a cut log stays one");
    });
}

/// Nothing is written in the background once reconcile has returned: the home can go.
#[test]
fn a_home_can_be_removed_after_reconcile() {
    each_user(|lab| {
        run_and_return(lab, "x");
        let status = lab.belljar(["reconcile"]).prepared().status().unwrap();
        assert!(status.success());
        fs::remove_dir_all(lab.home()).unwrap();
        assert!(!lab.home().exists());
    });
}

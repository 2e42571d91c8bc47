//! What a command, or somebody beside it, can do to hold up a run's end or to put words into its record.

use std::process::Stdio;
use std::time::{Duration, Instant};

use belljar::record::Verdict;
use belljar_testkit::{Lab, marker, until};
use rustix::process::Signal;

/// The run's outcome, as soon as its record has one.
fn outcome_within(lab: &Lab, id: &str, within: Duration) -> Option<serde_json::Value> {
    let mut found = None;
    until(within, || {
        let record = std::fs::read(lab.home().join("runs").join(id).join("run.json")).ok();
        let record =
            record.and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
        found = record.and_then(|record| record.get("outcome").cloned());
        found.is_some()
    });
    found
}

fn only_run(lab: &Lab) -> String {
    assert!(until(Duration::from_secs(10), || lab.runs().len() == 1));
    lab.runs().remove(0)
}

/// A stopped pager must not keep the run from having an end.
#[test]
fn a_reader_that_stops_holds_up_only_itself() {
    let lab = Lab::me();
    let mut command = lab.run(["--timeout", "2s", "--stop-timeout", "1s", "--", "yes"]).prepared();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let id = only_run(&lab);
    let outcome = outcome_within(&lab, &id, Duration::from_secs(20)).expect("no end was recorded");
    assert_eq!(outcome["reason"], "deadline");
    assert!(child.try_wait().unwrap().is_none(), "the control: its reader has not read");
    assert!(until(Duration::from_secs(5), || lab.live().is_empty()));
    // It waits for its reader without spinning, and a signal ends that.
    let ticks = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<u64> =
            stat.rsplit(')').next().unwrap().split(' ').filter_map(|f| f.parse().ok()).collect();
        fields[10] + fields[11]
    };
    let before = ticks(child.id());
    std::thread::sleep(Duration::from_secs(1));
    assert!(ticks(child.id()) - before < 30, "it spins");
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(until(Duration::from_secs(10), || child.try_wait().unwrap().is_some()));
    lab.assert_sound(&id);
}

/// A descriptor can be handed to another run, over a socket in a workspace they share. What that one
/// writes is not the first one's, and does not keep it alive.
#[test]
fn output_of_a_run_is_what_that_run_wrote() {
    let lab = Lab::me();
    lab.make_file(
        "work/take.py",
        "import socket, os, time\ns = socket.socket(socket.AF_UNIX)\n\
         s.bind('s'); s.listen(); print('ready', flush=True)\nc = s.accept()[0]\n\
         fd = socket.recv_fds(c, 1, 1)[1][0]\nfor i in range(60):\n  os.write(fd, b'FORGED\\n')\n  \
         time.sleep(0.2)\n",
    );
    lab.make_file("work/give.py", "import socket, time\ns = socket.socket(socket.AF_UNIX)\n\
         s.connect('s'); socket.send_fds(s, [b'x'], [1]); print('given', flush=True); time.sleep(0.5)\n");
    let taker = lab.run(["--timeout", "30s", "--", "python3", "take.py"]).spawn();
    taker.wait_for_output("ready");
    let begun = Instant::now();
    let giver = lab.run(["--json", "--", "python3", "give.py"]).done();
    giver.expect(0);
    assert!(begun.elapsed() < Duration::from_secs(8), "it waited for somebody else's descriptor");
    let id = giver.json()["id"].as_str().unwrap().to_owned();
    let stored = lab.home().join("runs").join(&id).join("stdout.bin");
    let at_the_end = std::fs::read(&stored).unwrap();
    assert!(String::from_utf8_lossy(&at_the_end).contains("given"));
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(std::fs::read(&stored).unwrap(), at_the_end, "something was added after the end");
    lab.assert_sound(&id);
    taker.signal(Signal::TERM);
    drop(taker.done());
}

/// A log that was changed is evidence: reconcile neither mends nor removes it.
#[test]
fn a_changed_log_of_a_dead_run_stays_as_it_is() {
    for line in [0, 3] {
        let lab = Lab::me();
        let marker = marker();
        let live = lab.run(["--", "sh", "-c", &format!("echo ready; exec sleep {marker}")]).spawn();
        live.wait_for_output("ready");
        let id = only_run(&lab);
        live.signal(Signal::KILL);
        drop(live);
        let path = lab.home().join("runs").join(&id).join("events.jsonl");
        let mut lines: Vec<Vec<u8>> = std::fs::read(&path)
            .unwrap()
            .split_inclusive(|byte| *byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect();
        lines[line][40] ^= 1;
        let changed = lines.concat();
        std::fs::write(&path, &changed).unwrap();
        let reconciled = lab.reconcile();
        assert_eq!(reconciled.unreadable.len(), 1, "{reconciled:?}");
        assert_eq!(std::fs::read(&path).unwrap(), changed);
        assert!(matches!(lab.verify(&id).verdict, Verdict::Changed { .. }));
        assert!(lab.live().is_empty());
    }
}

/// A power cut can leave zeros where a page did not reach the disk.
#[test]
fn a_hole_in_the_log_of_a_dead_run_is_cut_off_and_kept_aside() {
    let lab = Lab::me();
    let live = lab.run(["--", "sh", "-c", "echo ready; exec sleep 100"]).spawn();
    live.wait_for_output("ready");
    let id = only_run(&lab);
    live.signal(Signal::KILL);
    drop(live);
    let directory = lab.home().join("runs").join(&id);
    let path = directory.join("events.jsonl");
    let mut log = std::fs::read(&path).unwrap();
    let third = log.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(2).unwrap().0;
    log[third + 10..third + 110].fill(0);
    std::fs::write(&path, &log).unwrap();
    assert_eq!(lab.reconcile().lost.len(), 1);
    let stop = lab.assert_sound(&id);
    assert_eq!(stop["reason"], "lost");
    assert_eq!(std::fs::read(directory.join("events.jsonl.cut")).unwrap(), log[third + 1..]);
}

/// Without its key nothing of a home can be told from a forgery, and a new key would hide that.
#[test]
fn a_lost_key_is_an_error_and_not_a_new_key() {
    let lab = Lab::me();
    lab.run(["--", "true"]).done().expect(0);
    let key = lab.home().join("key");
    let before = std::fs::read(&key).unwrap();
    std::fs::rename(&key, lab.path("key")).unwrap();
    lab.run(["--", "true"]).done().expect(125).says(&["key", "restore it"]);
    assert!(!key.exists());
    std::fs::rename(lab.path("key"), &key).unwrap();
    lab.run(["--", "true"]).done().expect(0);
    assert_eq!(std::fs::read(&key).unwrap(), before);
    lab.assert_all_sound();
}

/// A hash over a secret would let it be found by trying.
#[test]
fn the_recorded_hashes_do_not_depend_on_secrets() {
    let lab = Lab::me();
    let hashes = |variable: &str| {
        let done = lab.run(["--json", "-e", variable, "--", "true"]).done();
        let id = done.expect(0).json()["id"].as_str().unwrap().to_owned();
        let record = lab.record(&id);
        (record["spec_hash"].clone(), record["spec"]["env"].clone())
    };
    assert_eq!(hashes("MY_PASSWORD=11111"), hashes("MY_PASSWORD=22222"));
    assert_ne!(hashes("COLOUR=green").0, hashes("COLOUR=blue").0, "the control");
}

//! Many launchers in one home, and tidying up while runs begin.

use std::sync::atomic::{AtomicBool, Ordering};

use belljar_testkit::{Lab, each_user};

#[test]
fn eight_launchers_in_one_home_do_not_fight() {
    each_user(|lab| {
        // The first use of the home too: its key, its format and its ledger are made only once.
        std::thread::scope(|scope| {
            for launcher in 0..8_usize {
                scope.spawn(move || {
                    for number in 0..10_usize {
                        let code = (launcher * 10 + number) % 7;
                        let name = format!("n{launcher}-{number}");
                        let script = format!("echo {name}; exit {code}");
                        let words = ["--no-config", "--name", &name, "--", "sh", "-c", &script];
                        let done = lab.run(words).done();
                        assert_eq!(done.expect(code as i32).out(), format!("{name}\n"));
                        assert_eq!(done.err(), "");
                    }
                });
            }
        });
        assert_eq!(lab.runs().len(), 80);
        assert_eq!(lab.rows(), 80, "the ledger does not have all of them");
        lab.assert_no_traces(&lab.runs());
        assert!(lab.reconcile().is_empty());
        for (id, end) in lab.assert_all_sound() {
            let row = lab.row(&id).unwrap();
            let name = row.name.unwrap();
            let (launcher, number) = name[1..].split_once('-').unwrap();
            let (launcher, number): (i64, i64) =
                (launcher.parse().unwrap(), number.parse().unwrap());
            assert_eq!(end["exit"]["code"], (launcher * 10 + number) % 7, "{name}: {end}");
            let stdout = std::fs::read(lab.home().join("runs").join(&id).join("stdout.bin"));
            assert_eq!(stdout.unwrap(), format!("{name}\n").into_bytes());
        }
    });
}

/// Reconcile goes by locks, and by the run's own id; it has no process number to mistake.
#[test]
fn tidying_up_never_takes_a_run_that_lives() {
    each_user(|lab| {
        let over = AtomicBool::new(false);
        // Something to tidy up as well, or the loop would have nothing to do.
        let dead = lab.run(["--no-config", "--", "sh", "-c", "echo ready; sleep 50"]).spawn();
        dead.wait_for_output("ready");
        dead.signal(rustix::process::Signal::KILL);
        drop(dead);
        let (passes, lost) = std::thread::scope(|scope| {
            let collector = scope.spawn(|| {
                let (mut passes, mut lost) = (0, Vec::new());
                while !over.load(Ordering::Relaxed) {
                    let found = lab.reconcile();
                    lost.extend(found.lost);
                    passes += 1;
                }
                (passes, lost)
            });
            let starters: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        for _ in 0..15 {
                            let words = ["--no-config", "--", "sh", "-c", "echo in; sleep 0.02"];
                            let done = lab.run(words).done();
                            assert_eq!(done.expect(0).out(), "in\n");
                        }
                    })
                })
                .collect();
            let ended: Vec<_> = starters.into_iter().map(|starter| starter.join()).collect();
            over.store(true, Ordering::Relaxed);
            let collected = collector.join().unwrap();
            ended.into_iter().for_each(|end| end.unwrap());
            collected
        });
        eprintln!("{passes} passes beside 60 runs");
        assert!(passes > 60, "only {passes} passes");
        // The dead one, by this loop or by one of the runs.
        assert!(lost.len() <= 1, "live runs were taken for lost: {lost:?}");
        let reasons: Vec<_> =
            lab.assert_all_sound().into_values().map(|end| end["reason"].clone()).collect();
        assert_eq!(reasons.iter().filter(|reason| *reason == "lost").count(), 1, "{reasons:?}");
        assert_eq!(reasons.iter().filter(|reason| *reason == "exited").count(), 60);
        lab.assert_no_traces(&lab.runs());
    });
}

/// A home that another version wrote.
#[test]
fn an_older_home_is_migrated_and_a_newer_one_refused() {
    let lab = Lab::me();
    lab.run(["--no-config", "--", "true"]).done().expect(0);
    let format = lab.home().join("format");
    let current = std::fs::read_to_string(&format).unwrap();
    let number: u32 = current.trim().parse().unwrap();
    assert!(number >= 2);

    // Format 1: no ledger, no key, no log; the run has its `run.json`.
    for name in ["ledger.db", "key"] {
        std::fs::remove_file(lab.home().join(name)).unwrap();
    }
    std::fs::remove_dir(lab.home().join("trash")).unwrap();
    let old = lab.runs()[0].clone();
    for name in ["events.jsonl", "ledger.db-wal", "ledger.db-shm"] {
        let _ = std::fs::remove_file(lab.home().join("runs").join(&old).join(name));
        let _ = std::fs::remove_file(lab.home().join(name));
    }
    std::fs::write(&format, "1\n").unwrap();
    lab.run(["--no-config", "--", "true"]).done().expect(0);
    assert_eq!(std::fs::read_to_string(&format).unwrap(), current);
    assert_eq!(lab.runs().len(), 2, "the old run is still there");
    let new = lab.runs().into_iter().find(|id| *id != old).unwrap();
    lab.assert_sound(&new);

    std::fs::write(&format, format!("{}\n", number + 1)).unwrap();
    let done = lab.run(["--no-config", "--", "sh", "-c", "echo > ran"]).done();
    done.expect(125).says(&["newer belljar", lab.home().to_str().unwrap()]);
    assert!(!lab.work().join("ran").exists());
    assert_eq!(lab.runs().len(), 2, "a refused home got a run");
    std::fs::write(&format, current).unwrap();
    lab.run(["--no-config", "--", "true"]).done().expect(0);
}

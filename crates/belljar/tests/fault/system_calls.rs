//! System calls that fail for want of processes or memory: clear words, and no half run.

use std::fs;

use belljar_testkit::{Fault, Lab, Point, TraceScope, count_calls, each_user, soak};

const WORDS: &[&str] =
    &["--no-config", "-q", "--", "sh", "-c", "echo x >> ran; echo out; sleep 0.01"];

/// Every point at which it can fail, a few of each call unless there is time for all.
fn points(lab: &Lab, scope: TraceScope, calls: &[&str], each: u32) -> Vec<Point> {
    let counts = count_calls(lab, lab.run(WORDS), scope, calls);
    assert!(!counts.is_empty(), "none of {calls:?} is called");
    let mut points = Vec::new();
    for (call, count) in counts {
        let each = if soak() { count } else { each.min(count) };
        let numbers = (0..each).map(|at| 1 + at * (count - 1) / (each - 1).max(1));
        points.extend(numbers.map(|number| Point { call: call.clone(), number, scope }));
    }
    points
}

fn fails_cleanly(lab: &Lab, points: &[Point], error: &'static str, words: &str) {
    let (mut failed, mut told) = (0, 0);
    for point in points {
        eprintln!("{point:?} {error}");
        let before = lab.runs();
        let _ = fs::remove_file(lab.work().join("ran"));
        let done = point.hit(lab.run(WORDS), Fault::Fails(error)).done();
        let ran = lab.work().join("ran").exists();
        lab.assert_nothing_lives(&lab.runs());
        let found = lab.reconcile();
        assert_eq!(found.left, Vec::<String>::new(), "{done}");
        lab.assert_no_traces(&lab.runs());
        let ends = lab.assert_all_sound();
        let new: Vec<_> = ends.iter().filter(|(id, _)| !before.contains(id)).collect();
        assert!(new.len() == 1 || !ran, "it ran and has no record: {done}");
        // Where the command, or a service of the launcher that it can do without, was hit, the run may
        // well go on to its own end. What is told is what was recorded.
        match done.ended_by() {
            Some(signal) => {
                failed += 1;
                // Rust's and C's start-up code end themselves where there is no memory for a stack.
                assert!(matches!(signal, 6 | 11), "ended by {signal}: {done}");
                assert!(new.is_empty() || new[0].1["reason"] == "lost", "{new:?}");
            }
            None if done.code() == 0 => assert_eq!(new[0].1["exit"]["code"], 0, "{new:?} {done}"),
            None => {
                failed += 1;
                assert!(!done.stderr.is_empty(), "no word about it: {done}");
                told += u32::from(done.err().contains(words));
            }
        }
    }
    assert!(failed > 0 && told > 0, "{failed} runs failed, {told} of them said {words:?}");
    lab.run(WORDS).done().expect(0); // the control: without the fault it works
}

#[test]
fn no_process_can_be_made() {
    each_user(|lab| {
        for scope in [TraceScope::Launcher, TraceScope::AllProcesses] {
            let points = points(lab, scope, &["clone", "clone3", "fork", "vfork"], 4);
            fails_cleanly(lab, &points, "EAGAIN", "Resource temporarily unavailable");
        }
    });
}

#[test]
fn no_memory_for_a_process() {
    each_user(|lab| {
        let points = points(lab, TraceScope::AllProcesses, &["clone", "clone3"], 4);
        fails_cleanly(lab, &points, "ENOMEM", "Cannot allocate memory");
    });
}

/// The launcher's own memory: what it cannot have ends it, and the next one finishes the rest.
#[test]
fn no_memory_for_the_launcher() {
    each_user(|lab| {
        for point in points(lab, TraceScope::Launcher, &["mmap", "brk"], 8) {
            eprintln!("{point:?}");
            let before = lab.runs();
            let _ = fs::remove_file(lab.work().join("ran"));
            let done = point.hit(lab.run(WORDS), Fault::Fails("ENOMEM")).done();
            let ran = lab.work().join("ran").exists();
            let found = lab.reconcile();
            assert_eq!(found.left, Vec::<String>::new(), "{done}");
            lab.assert_no_traces(&lab.runs());
            let ends = lab.assert_all_sound();
            let new: Vec<_> = ends.iter().filter(|(id, _)| !before.contains(id)).collect();
            assert!(new.len() == 1 || !ran, "it ran and has no record: {done}");
            if done.ended_by().is_none() && done.code() == 0 {
                assert_eq!(new[0].1["exit"]["code"], 0, "{new:?} {done}");
            }
        }
        lab.run(WORDS).done().expect(0);
    });
}

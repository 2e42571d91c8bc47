//! More commands in one sandbox, each with its own streams, code, variables and clock.

use std::time::{Duration, Instant};

use belljar_testkit::{
    Call, Done, Input, Lab, each_actor, each_user, marker, processes_with, until,
};
use rustix::process::Signal;

/// A kept sandbox called `k`.
fn keep(lab: &Lab) {
    lab.run(["--keep", "-q", "--name", "k"]).done().expect(0);
}

fn exec<'a>(lab: &'a Lab, options: &[&str], command: &[&str]) -> Call<'a> {
    lab.belljar(["exec"].iter().chain(options).chain(&["k", "--"]).chain(command))
}

fn sh(lab: &Lab, options: &[&str], script: &str) -> Done {
    exec(lab, options, &["sh", "-c", script]).done()
}

fn runs(marker: &str) -> bool {
    !processes_with(&format!("sleep\0{marker}")).is_empty()
}

#[test]
fn codes_variables_and_directories_are_the_commands_own() {
    each_actor(|lab| {
        keep(lab);
        sh(lab, &[], "exit 0").expect(0);
        sh(lab, &[], "exit 42").expect(42);
        sh(lab, &[], "kill -USR1 $$").expect(138);
        exec(lab, &[], &["no-such-program"]).done().expect(127).says(&["not found"]);
        exec(lab, &[], &["/etc/passwd"]).done().expect(126);
        exec(lab, &["-w", "/no/such/place"], &["true"]).done().expect(125);
        let told = sh(
            lab,
            &["-e", "A=b c", "-e", "SET", "-e", "NOT", "-w", "/tmp"],
            "echo \"$A|$NOT|$HOME|$(pwd)\"",
        );
        assert_eq!(told.expect(0).out(), "b c||/home/agent|/tmp\n");
        let passed = exec(lab, &["-e", "SET"], &["sh", "-c", "echo $SET"]).env("SET", "yes").done();
        assert_eq!(passed.out(), "yes\n");
        assert_eq!(sh(lab, &[], "echo \"$A$SET\"").out(), "\n", "nothing stays for the next one");
    });
}

#[test]
fn streams_are_exact_and_apart() {
    each_user(|lab| {
        keep(lab);
        let bytes: Vec<u8> =
            (0..300_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let done = exec(lab, &[], &["cat"]).input(Input::Bytes(bytes.clone())).done();
        assert!(done.expect(0).stdout == bytes && done.stderr.is_empty());
        let done =
            exec(lab, &[], &["sh", "-c", "cat >&2"]).input(Input::Bytes(bytes.clone())).done();
        assert!(done.expect(0).stderr == bytes && done.stdout.is_empty());
        // One that does not read all of its input ends all the same.
        let done = exec(lab, &[], &["head", "-c", "3"]).input(Input::Bytes(bytes)).done();
        assert_eq!(done.expect(0).stdout.len(), 3);
        let done = exec(lab, &[], &["cat"]).done(); // no input
        assert_eq!((done.code(), done.out().as_str()), (0, ""));
    });
}

#[test]
fn a_reader_that_goes_away_ends_it() {
    each_user(|lab| {
        keep(lab);
        let exe = lab.exe.display();
        let marker = marker();
        let begun = Instant::now();
        let line = format!("{exe} exec k -- sh -c '(setsid sleep {marker} &); yes' | head -1");
        let done = lab
            .belljar(["ps"])
            .through(&["sh", "-c", &format!("{line}; exec \"$0\" \"$@\"")])
            .done();
        assert!(done.expect(0).out().starts_with("y\n"), "{done}");
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert!(until(Duration::from_secs(5), || !runs(&marker)), "its tree is gone");
    });
}

#[test]
fn a_timeout_ends_the_whole_tree_and_nothing_else() {
    each_actor(|lab| {
        keep(lab);
        let (mine, others) = (marker(), marker());
        sh(lab, &["-d"], &format!("exec sleep {others}")).expect(0);
        let script = format!(
            "setsid sh -c '(setsid sleep {mine} &)'; trap '' TERM; sleep {mine}; sleep {mine}"
        );
        let begun = Instant::now();
        let done = sh(lab, &["--timeout", "1s"], &script);
        done.expect(124);
        assert!(
            begun.elapsed() >= Duration::from_secs(1) && begun.elapsed() < Duration::from_secs(20)
        );
        assert!(until(Duration::from_secs(3), || !runs(&mine)), "something of it is left");
        assert!(runs(&others), "another command of the sandbox is untouched");
        sh(lab, &[], "exit 9").expect(9);
        // Its own 124 is its own.
        sh(lab, &["--timeout", "1h"], "exit 124").expect(124);
    });
}

#[test]
fn twenty_at_once_have_their_own_output_and_code() {
    each_user(|lab| {
        keep(lab);
        let all: Vec<_> = (0..20)
            .map(|at| {
                let script = format!(
                    "i=0; while [ $i -lt 200 ]; do echo {at} $i; i=$((i+1)); done; cat; exit {at}"
                );
                let input = Input::Bytes(format!("input {at}\n").into_bytes());
                exec(lab, &[], &["sh", "-c", &script]).input(input).spawn()
            })
            .collect();
        for (at, live) in all.into_iter().enumerate() {
            let done = live.done();
            let lines: String = (0..200).map(|line| format!("{at} {line}\n")).collect();
            assert_eq!(done.expect(at as i32).out(), format!("{lines}input {at}\n"));
        }
    });
}

#[test]
fn the_first_interrupt_is_passed_on_and_the_second_kills() {
    each_user(|lab| {
        keep(lab);
        let live = exec(
            lab,
            &[],
            &["sh", "-c", "trap 'exit 33' INT; echo ready; while :; do sleep 0.1; done"],
        )
        .spawn();
        live.wait_for_output("ready");
        live.signal(Signal::INT);
        live.done().expect(33);

        let marker = marker();
        let script = format!(
            "trap 'echo no' INT; (setsid sleep {marker} &); echo ready; while :; do sleep 0.1; done"
        );
        let live = exec(lab, &[], &["sh", "-c", &script]).spawn();
        live.wait_for_output("ready");
        live.signal(Signal::INT);
        live.wait_for_output("no");
        live.signal(Signal::INT);
        live.done().expect(137);
        assert!(until(Duration::from_secs(3), || !runs(&marker)), "its whole tree");
        sh(lab, &[], "true").expect(0);
    });
}

#[test]
fn a_command_ends_with_whoever_asked_for_it() {
    each_user(|lab| {
        keep(lab);
        for (signal, code) in
            [(Signal::TERM, Some(143)), (Signal::HUP, Some(129)), (Signal::KILL, None)]
        {
            let marker = marker();
            let script =
                format!("trap '' TERM HUP; (setsid sleep {marker} &); echo ready; sleep {marker}");
            let live = exec(lab, &[], &["sh", "-c", &script]).input(Input::Open).spawn();
            live.wait_for_output("ready");
            assert!(until(Duration::from_secs(10), || runs(&marker)));
            live.signal(signal);
            match code {
                Some(code) => drop(live.done().expect(code)),
                None => drop(live),
            }
            assert!(until(Duration::from_secs(5), || !runs(&marker)), "after {signal:?}");
        }
        // One that was detached lives on, and its output is in the record.
        let marker = marker();
        let script = format!("echo begun; sleep 1; echo more; exec sleep {marker}");
        let done = sh(lab, &["-d"], &script);
        assert_eq!((done.code(), done.out().as_str()), (0, ""));
        let logs = || lab.belljar(["logs", "k"]).done().out();
        assert!(until(Duration::from_secs(20), || logs().ends_with("begun\nmore\n")), "{}", logs());
        assert!(runs(&marker));
        lab.belljar(["stop", "k", "-t", "0"]).done().expect(0);
        assert!(until(Duration::from_secs(3), || !runs(&marker)), "it ends with the sandbox");
    });
}

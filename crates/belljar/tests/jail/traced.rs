//! `--trace-denied`: refused system calls get the same error, and are counted in the record.

use belljar::spec::EventKind;
use belljar_testkit::{Done, Lab, each_actor};

const SCRIPT: &str = "for i in 1 2 3; do unshare -U true; echo $?; done; \
                      touch file; chmod u+s file; echo $?; ls -l file | cut -c1-10";

fn newest_run(lab: &Lab) -> String {
    let why = lab.belljar(["why", "--json"]).done().expect(0).json();
    why["run"].as_str().unwrap().to_owned()
}

/// The `syscall.denied` events of the newest run about one call: how many, and the sum of their counts.
fn denied(lab: &Lab, name: &str) -> (usize, u64) {
    let id = newest_run(lab);
    let events = lab.events(&id);
    let of_call = events
        .iter()
        .filter(|event| event.kind == EventKind::SyscallDenied && event.data["name"] == name);
    let counts: Vec<u64> = of_call.map(|event| event.data["count"].as_u64().unwrap()).collect();
    (counts.len(), counts.iter().sum())
}

fn why(lab: &Lab) -> Done {
    lab.belljar(["why"]).done()
}

#[test]
fn refused_calls_have_the_same_error_and_are_counted() {
    each_actor(|lab| {
        let plain = lab.sh(&["--workspace", ".:overlay"], SCRIPT);
        assert_eq!(plain.expect(0).out(), "1\n1\n1\n1\n-rw-r--r--\n", "{plain}");
        assert_eq!(denied(lab, "unshare"), (0, 0), "nothing is counted without the flag");
        let traced = lab.sh(&["--trace-denied", "--workspace", ".:overlay"], SCRIPT);
        traced.expect(0);
        assert_eq!((traced.out(), traced.err()), (plain.out(), plain.err()));
        // Exactly the run's own: the attestation tries the same call, and that does not count.
        let (events, count) = denied(lab, "unshare");
        assert!(count == 3 && events <= 2, "{events} events, {count} calls");
        // Which of them `chmod` uses depends on the program.
        let of_chmod = ["chmod", "fchmodat", "fchmodat2"].map(|name| denied(lab, name).1);
        assert_eq!(of_chmod.iter().sum::<u64>(), 1);
        assert_eq!(denied(lab, "socket").1, 0);
        let page = why(lab);
        assert!(page.expect(0).out().contains("unshare(flags=CLONE_NEWUSER) with EPERM"), "{page}");
        assert!(page.out().contains("No setting allows a system call"), "{page}");
        let json = lab.belljar(["why", "--json"]).done().expect(0).json();
        let calls = json["system_calls"].as_array().unwrap();
        let unshare = calls.iter().find(|call| call["name"] == "unshare").unwrap();
        assert_eq!((&unshare["count"], &unshare["errno"]), (&3.into(), &"EPERM".into()));
        assert_eq!(unshare["args"]["flags"], 0x1000_0000);
        lab.belljar(["verify", newest_run(lab).as_str()]).done().expect(0);
    });
}

#[test]
fn commands_of_exec_are_traced_and_a_flood_leaves_few_events() {
    each_actor(|lab| {
        lab.run(["--keep", "--name", "kept", "--trace-denied"]).done().expect(0);
        let flood = "i=0; while [ $i -lt 300 ]; do unshare -U true 2>/dev/null; i=$((i+1)); done";
        lab.belljar(["exec", "kept", "sh", "-c", flood]).done().expect(0);
        lab.belljar(["exec", "kept", "unshare", "-U", "true"]).done().expect(1);
        lab.belljar(["stop", "kept"]).done().expect(0);
        let (events, count) = denied(lab, "unshare");
        assert_eq!(count, 301);
        assert!(events <= 10, "{events} events");
    });
}

#[test]
fn the_plan_says_so_and_a_backend_without_a_filter_refuses() {
    each_actor(|lab| {
        let plan = |flags: &[&str]| {
            let words: Vec<&str> =
                flags.iter().copied().chain(["--dry-run", "--json", "--", "true"]).collect();
            lab.run(words).done().expect(0).json()["plan"].clone()
        };
        assert_eq!(plan(&[])["filter"], "command");
        for flags in [&["--trace-denied"][..], &["-c", "sandbox.trace_denied=true"]] {
            let traced = plan(flags);
            assert_eq!(traced["filter"], "command_traced");
            let how = traced["posture"]["proc.syscalls"]["how"].as_str().unwrap();
            assert!(how.contains("PID 1 gives these answers"), "{how}");
        }
        let host = ["--backend", "host", "--waive", "all=a test", "--trace-denied", "--", "true"];
        let refused = lab.run(host).done();
        refused.expect(125).says(&["--trace-denied", "there is no filter"]);
        let control = ["--backend", "host", "--waive", "all=a test", "--", "true"];
        lab.run(control).done().expect(0);
    });
}

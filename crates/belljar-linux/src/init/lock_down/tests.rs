//! Leaves one step of the lock-down out, and compares what the process then attests with the expectation.
//!
//! The test starts itself again as PID 1 of new namespaces (`unshare`). There, its thread takes the ids and capabilities
//! that the jail gives PID 1, and forks the process that locks itself down.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::process::Command;

use belljar_spec::wire::{AttestationKind, Descendants, ExecRequest, Stdio, Work};
use belljar_spec::{
    Attestation, Expectation, ExpectedKernel, MountReach, OsText, Rlimit, ToleratedMount, User,
};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{WaitOptions, waitpid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, configure_capability_in_ambient_set, set_capabilities,
    set_keep_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use super::*;
use crate::init::attest::attest;
use crate::sys::process::{adopt_descriptor, arrange_descriptors, exit_now, fork_with_threads};
use belljar_sys::landlock_version;

/// What the process that was started again leaves out; read by this file alone.
const LEAVE_OUT: &str = "BELLJAR_TEST_LEAVE_OUT";
const NOTHING: &str = "nothing";
/// Not a step: a descriptor that stays open.
const DESCRIPTOR: &str = "descriptor";
const TEST: &str = "init::lock_down::tests::a_command_without_one_step_is_refused";
const INIT_UID: u32 = 999;
const USER: User = User { uid: 1000, gid: 1000 };
const CORE: u64 = 4096;

#[test]
fn a_command_without_one_step_is_refused() {
    if let Ok(left_out) = std::env::var(LEAVE_OUT) {
        be_init(&left_out);
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT CHECKED: needs root for new namespaces and a second user");
        return;
    }
    assert_eq!(differences(NOTHING), Ok(Vec::new()), "the whole list must be accepted");

    let landlock = match landlock_version() {
        0 => Vec::new(), // nothing to leave out, and none is expected
        version => vec![format!("Landlock version 0, not {version}")],
    };
    // The kernel demands no-new-privileges for the filter, so that the lock-down itself fails without it.
    let expected: [(&str, Result<Vec<String>, &str>); 8] = [
        ("landlock", Ok(landlock)),
        ("limit_resources", Ok(vec!["rlimit core is".to_owned()])),
        ("empty_bounding_set", Ok(vec!["capabilities are left".to_owned()])),
        (
            "change_user",
            Ok(["the uids are", "the gids are", "the groups are"].map(String::from).into()),
        ),
        ("drop_capabilities", Ok(vec!["capabilities are left".to_owned()])),
        ("no_new_privileges", Err("the kernel refused the system call filter")),
        ("load_filter", Ok(vec!["0 system call filters in mode 0, not 1".to_owned()])),
        (DESCRIPTOR, Ok(vec!["descriptor 7 is open".to_owned()])),
    ];
    let named: BTreeSet<&str> = expected.iter().map(|(name, _)| *name).collect();
    for step in INIT.iter().chain(COMMAND) {
        assert!(named.contains(step.name), "no case leaves out {}", step.name);
    }
    for (left_out, expected) in expected {
        match (differences(left_out), expected) {
            (Ok(found), Ok(expected)) => {
                let all = expected.iter().all(|text| found.iter().any(|one| one.contains(text)));
                assert!(all, "without {left_out}: {found:?}, not {expected:?}");
                assert!(expected.is_empty() || !found.is_empty(), "{left_out}");
            }
            (Err(error), Err(expected)) => {
                assert!(error.contains(expected), "without {left_out}: {error}");
            }
            (found, expected) => panic!("without {left_out}: {found:?}, not {expected:?}"),
        }
    }
}

/// What the comparison finds, or why the lock-down failed.
fn differences(left_out: &str) -> Result<Vec<String>, String> {
    let this = std::env::current_exe().unwrap();
    let done = Command::new("unshare")
        .args(["--pid", "--fork", "--mount", "--mount-proc", "--net"])
        .arg(this)
        .args(["--exact", TEST, "--nocapture", "--test-threads=1"])
        .env(LEAVE_OUT, left_out)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&done.stdout);
    let line =
        |prefix: &str| out.lines().find_map(|line| line.split_once(prefix)).map(|(_, text)| text);
    match (line("ATTESTED "), line("FAILED ")) {
        (Some(attestation), _) => {
            let seen: Attestation = serde_json::from_str(attestation).unwrap();
            Ok(expectation().compare(&seen))
        }
        (None, Some(error)) => Err(error.to_owned()),
        (None, None) => panic!("{left_out}: {out}{}", String::from_utf8_lossy(&done.stderr)),
    }
}

/// In PID 1: the ids and capabilities that the jail gives it, then its steps, then a command.
fn be_init(left_out: &str) -> ! {
    let keep = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::SETPCAP;
    let sets = CapabilitySets { effective: keep, permitted: keep, inheritable: keep };
    let (uid, gid) = (Uid::from_raw(INIT_UID), Gid::from_raw(INIT_UID));
    set_thread_groups(&[Gid::from_raw(7)]).unwrap();
    set_keep_capabilities(true).unwrap();
    set_thread_res_gid(gid, gid, gid).unwrap();
    set_thread_res_uid(uid, uid, uid).unwrap();
    set_capabilities(None, sets).unwrap();
    for capability in keep.iter() {
        configure_capability_in_ambient_set(capability, true).unwrap();
    }
    // Landlock sets no-new-privileges for PID 1; without it, the commands' own step counts.
    if left_out != "no_new_privileges" {
        run_without(INIT, left_out).unwrap();
    }
    match fork_with_threads().unwrap() {
        None => be_command(left_out),
        Some(child) => {
            waitpid(Some(child), WaitOptions::empty()).unwrap();
            exit_now(0)
        }
    }
}

/// For the tests of the set-up, in the sandbox's first process: PID 1's steps, then those of a command, which prints its
/// attestation.
pub(crate) fn attest_as_init(setup: &InitSetup) -> ! {
    if let Err(error) = super::init(setup) {
        print_and_exit(Err(error));
    }
    confine::readback();
    match fork_with_threads().unwrap() {
        None => {
            arrange_stdio();
            let whole = LockDownSetup { init: setup, listener_socket: None };
            print_and_exit(
                super::command(&whole)
                    .and_then(|()| attest(setup, &request(), confine::readback())),
            )
        }
        Some(child) => {
            waitpid(Some(child), WaitOptions::empty()).unwrap();
            exit_now(0)
        }
    }
}

/// Whoever started the test may have left other descriptors open.
fn arrange_stdio() {
    let stdio = [0, 1, 2].map(|number| adopt_descriptor(number).unwrap());
    let copy = |fd: &OwnedFd| fcntl_dupfd_cloexec(fd, 3).unwrap();
    let copies = stdio.iter().map(copy).collect();
    std::mem::forget(stdio);
    arrange_descriptors(0, copies).unwrap();
}

fn be_command(left_out: &str) -> ! {
    confine::readback(); // as PID 1 does, in a process without threads
    arrange_stdio();
    if left_out == DESCRIPTOR {
        let null = std::fs::File::open("/dev/null").unwrap();
        let open = fcntl_dupfd_cloexec(&null, 7).unwrap();
        rustix::io::fcntl_setfd(&open, rustix::io::FdFlags::empty()).unwrap();
        std::mem::forget(open);
    }
    print_and_exit(
        run_without(COMMAND, left_out)
            .and_then(|()| attest(&setup(), &request(), confine::readback())),
    )
}

fn print_and_exit(attested: Result<Attestation, ConfineError>) -> ! {
    let line = match attested {
        Ok(attestation) => format!("ATTESTED {}\n", serde_json::to_string(&attestation).unwrap()),
        Err(error) => format!("FAILED {}\n", belljar_spec::text::error_chain(&error)),
    };
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        let written = rustix::io::write(rustix::stdio::stdout(), rest).unwrap();
        rest = &rest[written..];
    }
    exit_now(0)
}

fn run_without(steps: &[LockDownStep], left_out: &str) -> Result<(), ConfineError> {
    let mut others = steps.iter().filter(|step| step.name != left_out);
    others
        .try_for_each(|step| (step.apply)(&LockDownSetup { init: &setup(), listener_socket: None }))
}

fn setup() -> InitSetup {
    InitSetup {
        user: USER,
        rlimits: vec![Rlimit { name: "core".to_owned(), value: CORE }],
        filter: crate::filter::COMMAND.to_owned(),
        writable: Vec::new(),
        write_check: Vec::new(),
        deadline_ms: None,
        listen: Vec::new(),
    }
}

fn request() -> ExecRequest {
    ExecRequest {
        exec: 0,
        work: Work::Program { argv: Vec::new() },
        env: BTreeMap::new(),
        workdir: OsText::from("/"),
        stdio: Stdio::Given { stdin: 0, stdout: 1, stderr: 2 },
        depth: AttestationKind::Full,
        descendants: Descendants::Tracked,
    }
}

/// What the steps promise; mounts and id maps are others' work.
fn expectation() -> Expectation {
    let any = ToleratedMount {
        target: OsText::from("/"),
        reach: MountReach::AndBelow,
        fstypes: Vec::new(),
        read_only: false,
    };
    Expectation {
        user: USER,
        uid_map: None,
        gid_map: None,
        kernel: ExpectedKernel::Any,
        groups: Vec::new(),
        mounts: Vec::new(),
        tolerated: vec![any],
        private_mounts: false,
        apart_from: BTreeMap::new(),
        sizes: Vec::new(),
        dies_with_launcher: false,
        init: None,
        hostname: None,
        seccomp_filters: crate::filter::PROGRAMS,
        landlock: landlock_version(),
        rlimits: [("core".to_owned(), CORE)].into(),
        environment: Vec::new(),
        writable: Vec::new(),
    }
}

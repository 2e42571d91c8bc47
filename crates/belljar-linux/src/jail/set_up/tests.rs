//! Leaves one step of the set-up out, and compares what a command in the sandbox then attests with the expectation.
//!
//! The test starts itself again, with all mounts shared as most hosts have them. There, a copy of it without threads is
//! the launcher: it binds a plan and starts a sandbox, whose last step attests in place of becoming `belljar __init`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use belljar_spec::wire::InitSetup;
use belljar_spec::{
    Access, Attestation, BackendName, CgroupUse, CommandPlan, Expectation, HostPaths, HostUid,
    Identity, Limits, MountKind, Namespace, OsText, Plan, PlannedMount, Posture, Presence, Source,
    Stdin, Terminal, Tree, User,
};
use rustix::process::{WaitOptions, waitpid};

use super::*;
use crate::jail::bind::bind;
use crate::jail::start::{StartError, start_with};
use crate::sys::process::{exit_now, fork_with_threads};

/// What the process that was started again leaves out; read by this file alone.
const LEAVE_OUT: &str = "BELLJAR_TEST_LEAVE_OUT_OF_SET_UP";
const NOTHING: &str = "nothing";
const TEST: &str = "jail::set_up::tests::a_sandbox_without_one_step_is_refused";
const USER: User = User { uid: 1000, gid: 1000 };

#[test]
fn a_sandbox_without_one_step_is_refused() {
    if let Ok(left_out) = std::env::var(LEAVE_OUT) {
        start_without(&left_out);
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT CHECKED: needs root for shared mounts and a second user");
        return;
    }
    assert_eq!(differences(NOTHING), Ok(Vec::new()), "the whole list must be accepted");

    let expected: BTreeMap<&str, &str> = [
        ("make_root", "needs what an earlier one makes: the root"),
        ("add_mounts", "cannot write /proc/sys/user"),
        ("seal_root", "/ is writable"),
        ("limit_counters", "rlimit user.max_user_namespaces is"),
        ("set_host_name", "the host name is"),
        ("enter_root", "is mounted and is not in the plan"),
        ("begin_session", "process 1 is in a session of another process"),
        ("limit_bounding_set", "process 1 has the capabilities"),
        ("drop_capabilities", "process 1 has the capabilities"),
        ("die_with_launcher", "process 1 would outlive the launcher"),
    ]
    .into();
    let (last, others) = SET_UP.split_last().unwrap();
    assert_eq!(last.name, "become_init"); // nothing attests without it
    for step in others {
        match (step.read_back, differences(step.name)) {
            (ReadBack::Refused, found) => {
                let text = match &found {
                    Ok(differences) => differences.join("; "),
                    Err(error) => error.clone(),
                };
                let expected = expected.get(step.name).copied();
                let expected = expected.unwrap_or_else(|| panic!("no case for {}", step.name));
                assert!(text.contains(expected), "without {}: {text}", step.name);
            }
            (ReadBack::NotAttested(why), found) => {
                assert_eq!(found, Ok(Vec::new()), "{} is attested, against: {why}", step.name);
            }
        }
    }
}

/// What the comparison finds, or why the set-up failed.
fn differences(left_out: &str) -> Result<Vec<String>, String> {
    let this = std::env::current_exe().unwrap();
    let done = Command::new("unshare")
        .args(["--mount", "--propagation", "shared"])
        .arg(this)
        .args(["--exact", TEST, "--nocapture", "--test-threads=1"])
        .env(LEAVE_OUT, left_out)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&done.stdout);
    let line =
        |prefix: &str| out.lines().find_map(|line| line.split_once(prefix)).map(|(_, text)| text);
    let expectation: Expectation = match line("EXPECTED ") {
        Some(text) => serde_json::from_str(text).unwrap(),
        None => panic!("{left_out}: {out}{}", String::from_utf8_lossy(&done.stderr)),
    };
    match (line("ATTESTED "), line("FAILED ")) {
        (Some(attestation), _) => {
            let seen: Attestation = serde_json::from_str(attestation).unwrap();
            Ok(expectation.compare(&seen))
        }
        (None, Some(error)) => Err(error.to_owned()),
        (None, None) => panic!("{left_out}: {out}{}", String::from_utf8_lossy(&done.stderr)),
    }
}

fn start_without(left_out: &str) -> ! {
    match fork_with_threads().unwrap() {
        None => be_launcher(left_out),
        Some(child) => {
            waitpid(Some(child), WaitOptions::empty()).unwrap();
            exit_now(0)
        }
    }
}

fn be_launcher(left_out: &str) -> ! {
    let temporary = tempfile::tempdir().unwrap();
    let bound = bind(&plan(), &paths(temporary.path())).unwrap();
    print("EXPECTED", &serde_json::to_string(&bound.expectation).unwrap());
    let chosen = SET_UP.iter().filter(|step| step.name != left_out && step.name != "become_init");
    let mut steps: Vec<SetUpStep> = chosen.map(copy).collect();
    let read_back = ReadBack::Refused;
    steps.push(SetUpStep { name: "attest", read_back, apply: attest_instead_of_init });
    match start_with(&steps, bound) {
        Ok(mut sandbox) => {
            sandbox.reap();
            if let StartError::SetUp(why) = sandbox.set_up_failure() {
                print("FAILED", &why);
            }
        }
        Err(error) => print("FAILED", &belljar_spec::text::error_chain(&error)),
    }
    drop(temporary);
    exit_now(0)
}

fn copy(step: &SetUpStep) -> SetUpStep {
    SetUpStep { name: step.name, read_back: step.read_back, apply: step.apply }
}

fn attest_instead_of_init(set_up: &mut SetUp<'_>) -> Result<(), ApplyError> {
    let expectation = &set_up.bound.expectation;
    crate::init::attest_as_init(&InitSetup {
        user: expectation.user,
        rlimits: Vec::new(),
        filter: crate::filter::COMMAND.to_owned(),
        writable: vec![OsText::from("/tmp"), OsText::from("/dev/shm")],
        write_check: expectation.writable.clone(),
        deadline_ms: None,
        listen: Vec::new(),
    })
}

/// Without the harness's capture, which this process does not have.
fn print(what: &str, text: &str) {
    let line = format!("{what} {text}\n");
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        let written = rustix::io::write(rustix::stdio::stdout(), rest).unwrap();
        rest = &rest[written..];
    }
}

fn plan() -> Plan {
    let usr = MountKind::Bind {
        source: Source::Path { path: OsText::from("/usr") },
        access: Access::ReadOnly,
        presence: Presence::Required,
        tree: Tree::User,
    };
    let proc = MountKind::Proc {
        read_only: vec!["/proc/sys".to_owned()],
        masked: vec!["/proc/kcore".to_owned()],
    };
    let dev = MountKind::Dev {
        nodes: ["null", "zero", "urandom"].map(str::to_owned).into(),
        shm_size: 1 << 20,
    };
    let mounts = [
        ("/usr", usr),
        ("/tmp", MountKind::Tmpfs { size: 1 << 20, mode: 0o1777 }),
        ("/dev", dev),
        ("/proc", proc),
    ];
    let mounts = mounts.map(|(target, what)| PlannedMount { target: target.into(), what });
    Plan {
        v: 1,
        backend: BackendName::Jail,
        hostname: "set-up-test".to_owned(),
        pod: vec![Namespace::User, Namespace::Network],
        sandbox: vec![
            Namespace::User,
            Namespace::Mount,
            Namespace::Pid,
            Namespace::Ipc,
            Namespace::Uts,
            Namespace::Cgroup,
        ],
        identity: Identity { inside: USER, host: HostUid::PerRun },
        shell: None,
        mounts: mounts.into(),
        allow_source: Vec::new(),
        shielded: Vec::new(),
        hidden: Vec::new(),
        allow_control: Vec::new(),
        limits: Limits {
            memory: None,
            millicpus: None,
            pids: None,
            time: None,
            idle: None,
            output: 0,
            disk: None,
            stop_timeout: Duration::ZERO,
        },
        cgroup: CgroupUse::None,
        rlimits: Vec::new(),
        filter: crate::filter::COMMAND.to_owned(),
        command: CommandPlan {
            argv: Vec::new(),
            env: BTreeMap::new(),
            workdir: "/".into(),
            stdin: Stdin::Null,
            terminal: Terminal::None,
        },
        image: None,
        oci_runtime: None,
        listen: Vec::new(),
        posture: Posture::nothing_held("a test"),
    }
}

fn paths(directory: &Path) -> HostPaths {
    HostPaths {
        run: "set-up-test".to_owned(),
        directory: directory.to_owned(),
        bin: directory.join("bin"),
        images: directory.join("images"),
        image: None,
        owner: String::new(),
        home: directory.join("home"),
        upper: directory.join("upper"),
        seed: None,
        belljar_directories: Vec::new(),
        executable: None,
        run_writable: Vec::new(),
        homes: Vec::new(),
    }
}

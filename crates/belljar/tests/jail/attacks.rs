//! The attack catalogue against the jail: as root, as an ordinary user, and as that user in a cgroup
//! subtree of its own. Every case and its answer is printed.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use belljar::prove::{Arm, Case, Identity, TestBed, Verdict, catalogue, prove};
use belljar::spec::BackendName;
use rustix::process::{Pid, Signal, kill_process_group};

use belljar_testkit::{as_root, built, must_work};

/// Another run's folder: by path, through /proc, through a descriptor, through a planted link.
const SIBLING: &[&str] = &[
    "fs.sibling-by-path",
    "fs.sibling-through-proc",
    "env.inherited-descriptor",
    "fs.planted-link",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Root,
    User,
    Delegated,
}

impl Who {
    const ALL: &[Self] = &[Self::Root, Self::User, Self::Delegated];

    /// `Err` is why there is no such arm here.
    fn identity(self) -> Result<Identity, String> {
        let is_root = rustix::process::geteuid().is_root();
        match (self, is_root) {
            (Self::Root, true) | (Self::User, false) => return Ok(Identity::Caller),
            (_, false) => return Err("needs root".to_owned()),
            (Self::User | Self::Delegated, true) => {}
        }
        let number =
            |name: &str| variable(name)?.parse().map_err(|_| format!("{name} is no number"));
        let cgroups = match self {
            Self::Delegated => {
                variable("BELLJAR_TEST_DELEGATED")?.split(',').map(PathBuf::from).collect()
            }
            _ => Vec::new(),
        };
        Ok(Identity::User {
            uid: number("BELLJAR_TEST_UID")?,
            gid: number("BELLJAR_TEST_GID")?,
            cgroups,
        })
    }
}

fn variable(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|_| format!("{name} is not set; `cargo xtask test` sets it"))
}

fn belljar() -> PathBuf {
    std::env::var_os("BELLJAR_EXE").map_or_else(|| built("belljar"), PathBuf::from)
}

/// A missing arm is an error where the jail must work, and loud everywhere.
fn testbed(who: Who) -> Option<TestBed> {
    match who.identity() {
        Ok(identity) => {
            let arm = Arm::new(belljar(), Some(BackendName::Jail), identity);
            Some(TestBed::new(arm).expect("a place to play"))
        }
        Err(why) => {
            assert!(!(as_root() && must_work("jail")), "no arm for {who:?}: {why}");
            println!("SKIPPED: the attacks as {who:?} were not tried: {why}");
            None
        }
    }
}

fn attack(who: Who, is_wanted: impl Fn(&Case) -> bool) {
    let Some(testbed) = testbed(who) else { return };
    let mut wrong = Vec::new();
    let mut held = 0;
    for case in catalogue().into_iter().filter(is_wanted) {
        let began = Instant::now();
        let verdict = prove(&case, &testbed);
        let line = format!("{:<29} {}: {}", case.name, verdict.as_str(), verdict.why());
        println!("{who:?} {:>5} ms  {line}", began.elapsed().as_millis());
        held += usize::from(verdict.has_held());
        // Without root nobody can show for every case that it would get through.
        let is_excused =
            matches!(verdict, Verdict::NoControl { .. }) && !rustix::process::geteuid().is_root();
        if !verdict.is_sound() && !is_excused {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "as {who:?}:\n{}", wrong.join("\n"));
    assert!(held > 0, "as {who:?}, nothing was shown");
}

/// Those have a test of their own.
fn is_not_sibling(case: &Case) -> bool {
    !SIBLING.contains(&case.name)
}

#[test]
fn the_catalogue_as_root() {
    attack(Who::Root, is_not_sibling);
}

#[test]
fn the_catalogue_as_an_ordinary_user() {
    attack(Who::User, is_not_sibling);
}

#[test]
fn the_catalogue_as_a_user_with_delegated_cgroups() {
    attack(Who::Delegated, is_not_sibling);
}

/// The hard guarantee, whatever else changes.
#[test]
fn a_run_cannot_read_a_siblings_folder() {
    let found = catalogue().iter().filter(|case| SIBLING.contains(&case.name)).count();
    assert_eq!(found, SIBLING.len(), "a case of the guarantee is gone");
    for who in Who::ALL {
        attack(*who, |case| SIBLING.contains(&case.name));
    }
}

/// A control that gets through is what makes a refusal worth something, so the harness must see a
/// sandbox that holds nothing. The host backend would be one; it is refused, since the attacks would
/// meet the machine.
#[test]
fn the_host_is_never_attacked() {
    let arm = Arm::new(belljar(), Some(BackendName::Host), Identity::Caller);
    let refused = TestBed::new(arm).expect_err("there is no boundary");
    assert!(refused.to_string().contains("no boundary"), "{refused}");
}

/// `belljar prove` as that user, with a temporary directory of its own.
fn start_prove(who: Who, temporary: &Path, cases: &[&str]) -> Option<Child> {
    let identity = match who.identity() {
        Ok(identity) => identity,
        Err(why) => {
            println!("SKIPPED: prove as {who:?} was not tried: {why}");
            return None;
        }
    };
    // In a place that every user can reach.
    let exe = temporary.with_file_name("belljar");
    if !exe.exists() {
        // Once: what cleans up after an earlier one may still execute it.
        std::fs::copy(belljar(), &exe).expect("a copy of the executable");
    }
    let mut command = Command::new(&exe);
    command.args(["prove", "--backend", "jail"]);
    command.args(cases.iter().flat_map(|case| ["--case", case]));
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", temporary)
        .env("TMPDIR", temporary);
    command.current_dir(temporary).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    if let Identity::User { uid, gid, .. } = identity {
        chown(temporary, Some(uid), Some(gid)).expect("a directory of the user's");
        command.uid(uid).gid(gid);
    }
    Some(command.spawn().expect("prove to start"))
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn soon(holds: impl Fn() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    holds()
}

/// Its own end, Ctrl-C, a kill, and a kill of what would have cleaned up: each time nothing is left, at the latest
/// when the next one has begun.
#[test]
fn prove_leaves_nothing_behind() {
    // The first leaves directories that their owner may not enter; the second takes a while.
    let all = ["collect.link", "limit.inotify", "limit.memory-bomb"];
    for who in [Who::Root, Who::User] {
        let base = tempfile::tempdir().expect("a temporary directory");
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(base.path(), open).expect("a directory for all");
        let temporary = base.path().join("tmp");
        std::fs::create_dir(&temporary).expect("a directory");
        let is_empty = || names_in(&temporary).is_empty();
        let Some(mut ends) = start_prove(who, &temporary, &all) else { continue };
        ends.wait().expect("its end");
        assert!(is_empty(), "as {who:?}, at its end: {:?}", names_in(&temporary));
        for signal in [Signal::INT, Signal::KILL] {
            let mut killed = start_prove(who, &temporary, &all).expect("the same again");
            assert!(soon(|| !is_empty()), "it never began");
            std::thread::sleep(Duration::from_millis(700));
            // The whole group, as a terminal does; what cleans up is in another.
            let group = Pid::from_child(&killed);
            kill_process_group(group, signal).expect("the group is there");
            killed.wait().expect("its end");
            assert!(soon(is_empty), "as {who:?}, after {signal:?}: {:?}", names_in(&temporary));
        }
        // What is left of a dead one: a tree that is not to be entered, and a lock that nobody holds.
        let dead = temporary.join("belljar-prove-1-0");
        std::fs::create_dir_all(dead.join("locked/deep")).expect("leftovers");
        std::fs::write(temporary.join("belljar-prove-1-0.lock"), "").expect("leftovers");
        std::fs::set_permissions(dead.join("locked"), std::fs::Permissions::from_mode(0o000))
            .expect("a mode");
        if let Ok(Identity::User { uid, gid, .. }) = who.identity() {
            for path in ["", "locked"].map(|name| dead.join(name)) {
                chown(path, Some(uid), Some(gid)).expect("leftovers of the user's");
            }
            chown(temporary.join("belljar-prove-1-0.lock"), Some(uid), Some(gid)).expect("a lock");
        }
        let mut next = start_prove(who, &temporary, &["fs.write-sysctl"]).expect("the next one");
        next.wait().expect("its end");
        assert!(is_empty(), "as {who:?}, of a dead one: {:?}", names_in(&temporary));
    }
}

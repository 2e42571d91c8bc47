//! The attack catalogue against the jail: as root, as an ordinary user, and as that user in a cgroup
//! subtree of its own. Every case and its answer is printed.

// Helpers of tests are tests too.
#![allow(clippy::expect_used, clippy::print_stdout)]

use std::path::PathBuf;
use std::time::Instant;

use belljar::prove::{Arm, Case, Identity, Stage, Verdict, catalogue, prove};
use belljar::spec::BackendName;

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
    std::env::var_os("BELLJAR_EXE")
        .map_or_else(|| env!("CARGO_BIN_EXE_belljar").into(), PathBuf::from)
}

/// A missing arm is an error where the jail must work, and loud everywhere.
fn stage(who: Who) -> Option<Stage> {
    match who.identity() {
        Ok(identity) => {
            let arm = Arm::new(belljar(), Some(BackendName::Jail), identity);
            Some(Stage::new(arm).expect("a place to play"))
        }
        Err(why) => {
            let must_work = std::env::var("BELLJAR_MUST_WORK").unwrap_or_default();
            let is_error = rustix::process::geteuid().is_root()
                && must_work.split(',').any(|backend| backend == "jail");
            assert!(!is_error, "no arm for {who:?}: {why}");
            println!("SKIPPED: the attacks as {who:?} were not tried: {why}");
            None
        }
    }
}

fn attack(who: Who, is_wanted: impl Fn(&Case) -> bool) {
    let Some(stage) = stage(who) else { return };
    let mut wrong = Vec::new();
    let mut held = 0;
    for case in catalogue().into_iter().filter(is_wanted) {
        let began = Instant::now();
        let verdict = prove(&case, &stage);
        let line = format!("{:<29} {}: {}", case.name, verdict.word(), verdict.why());
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
    let refused = Stage::new(arm).expect_err("there is no boundary");
    assert!(refused.to_string().contains("no boundary"), "{refused}");
}

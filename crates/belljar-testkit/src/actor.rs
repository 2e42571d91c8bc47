//! The users that start belljar: the caller of the tests, an ordinary user, and that user with delegated cgroups.

use std::path::PathBuf;

use belljar::spec::env;

use super::{Lab, RemoteAgent};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// Whoever runs the tests: root, as a rule.
    Me,
    /// An ordinary user, without any delegation.
    User,
    /// The same user, in a cgroup subtree that belongs to it.
    Delegated,
    /// Another ordinary user, with a rootless Podman of its own.
    PodmanOwner,
    /// An ordinary user that no other test uses, and that no file of the machine names.
    Nameless,
}

/// Above all users of a machine, below the ids that belljar gives to runs; process numbers are smaller than the distance.
const FIRST_NAMELESS: u32 = 1_500_000_000;

impl Actor {
    pub fn is_root(self) -> bool {
        self == Self::Me && as_root()
    }

    /// The user to switch to; `None` for the caller.
    pub fn user(self) -> Option<TestUser> {
        match self {
            Self::Me => None,
            Self::User | Self::Delegated => Some(test_user().unwrap()),
            Self::PodmanOwner => Some(podman_owner().unwrap()),
            Self::Nameless => {
                let id = FIRST_NAMELESS + std::process::id();
                Some(TestUser { uid: id, gid: id })
            }
        }
    }

    /// Whether limits of memory and processors can be held for the whole tree.
    pub fn holds_limits(self) -> bool {
        self.is_root() || self == Self::Delegated
    }
}

#[derive(Clone, Debug)]
pub struct TestUser {
    pub uid: u32,
    pub gid: u32,
}

pub fn as_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn in_the_guest() -> bool {
    std::env::var_os("BELLJAR_TEST_GUEST").is_some()
}

/// Whether there is time for every case: `cargo xtask test --soak`.
pub fn soak() -> bool {
    std::env::var_os("BELLJAR_TEST_SOAK").is_some()
}

/// Whether it is an error that this is missing.
pub fn must_work(wanted: &str) -> bool {
    let list = std::env::var(env::MUST_WORK).unwrap_or_default();
    list.split(',').any(|name| name.trim() == wanted)
}

/// The ordinary user of the rootless tests. Only root can switch to it.
pub fn test_user() -> Option<TestUser> {
    if !as_root() {
        return None;
    }
    let number = |name| std::env::var(name).ok()?.parse().ok();
    let told = number("BELLJAR_TEST_UID").zip(number("BELLJAR_TEST_GID"));
    told.map(|(uid, gid)| TestUser { uid, gid }).or_else(|| in_passwd("belljar-test"))
}

/// Whose rootless Podman there is. Root's only, too.
pub(super) fn podman_owner() -> Option<TestUser> {
    let name = std::env::var(env::TEST_PODMAN_ROOTLESS_USER).ok().filter(|_| as_root())?;
    in_passwd(&name)
}

fn in_passwd(name: &str) -> Option<TestUser> {
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    let head = format!("{name}:");
    let line = passwd.lines().find(|line| line.starts_with(&head))?;
    let fields: Vec<&str> = line.split(':').collect();
    Some(TestUser { uid: fields[2].parse().ok()?, gid: fields[3].parse().ok()? })
}

/// The `cgroup.procs` files of the delegated subtree.
pub(super) fn delegated_procs() -> Vec<PathBuf> {
    let list = std::env::var("BELLJAR_TEST_DELEGATED").unwrap_or_default();
    list.split(',').filter(|path| !path.is_empty()).map(PathBuf::from).collect()
}

/// The users that can start belljar here; missing ones are reported.
pub fn actors() -> Vec<Actor> {
    let mut all = vec![Actor::Me];
    if std::env::var_os(belljar::spec::env::TEST_ON).is_some() {
        return all; // the others have been here in the jail
    }
    if test_user().is_some() {
        all.push(Actor::User);
        if delegated_procs().is_empty() {
            eprintln!(
                "NOT CHECKED: as a user with delegated cgroups (BELLJAR_TEST_DELEGATED is not set)"
            );
        } else {
            all.push(Actor::Delegated);
        }
    } else {
        assert!(
            !(must_work("jail") && as_root()),
            "there is no ordinary user; run `cargo xtask test`"
        );
        eprintln!("NOT CHECKED: as an ordinary user (needs root and the user belljar-test)");
    }
    all
}

/// Behind agents, where the whole test run is; they have one user.
fn lab_of(actor: Actor) -> Lab {
    match RemoteAgent::is_of_this_test_run() {
        true => Lab::me(),
        false => Lab::new(actor),
    }
}

/// Runs a test for every user, and prints which.
pub fn each_actor(test: impl Fn(&Lab)) {
    for actor in actors() {
        eprintln!("--- as {actor:?}");
        test(&lab_of(actor));
    }
}

/// Runs a test for root and an ordinary user, where cgroups make no difference.
pub fn each_user(test: impl Fn(&Lab)) {
    for actor in actors().into_iter().filter(|actor| *actor != Actor::Delegated) {
        eprintln!("--- as {actor:?}");
        test(&lab_of(actor));
    }
}

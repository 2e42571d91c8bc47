//! The mechanisms of the lock-down, one function each. Their order is in `lock_down`.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use belljar_spec::wire::InitSetup;
use belljar_spec::{InitState, OsText};
use belljar_sys::{StepError, step};
use landlock::{
    ABI, Access, AccessFs, LandlockStatus, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus,
};
use rustix::io::Errno;
use rustix::process::{Rlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, clear_ambient_capability_set, set_capabilities,
    set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use super::listeners::hand_over;
use crate::filter::{self, FilterError, Loaded};
use crate::sys::landlock::layers_left;
use crate::user_limits::resource;

#[derive(Debug, thiserror::Error)]
pub(super) enum ConfineError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("there is no resource limit {0}")]
    UnknownLimit(String),
    #[error("cannot set the limit {0}")]
    Limit(String, #[source] Errno),
    #[error("cannot enter the working directory {0}")]
    Workdir(OsText, #[source] Errno),
    #[error("Landlock: {0}")]
    Landlock(String),
    #[error(transparent)]
    Filter(#[from] FilterError),
    #[error("no one answers the calls that the filter reports")]
    NoListenerSocket,
    #[error("cannot read {0}")]
    Read(&'static str, #[source] std::io::Error),
}

/// What a process is locked down with: PID 1, or one that is about to become a command.
#[derive(Clone, Copy)]
pub(super) struct LockDownSetup<'a> {
    pub(super) init: &'a InitSetup,
    /// Where the listener of a traced filter goes.
    pub(super) listener_socket: Option<BorrowedFd<'a>>,
}

/// For PID 1, and so for all its descendants: one domain, in which they can debug each other.
/// Everything that is mounted is readable; writable are the plan's paths.
pub(super) fn landlock(setup: &LockDownSetup<'_>) -> Result<(), ConfineError> {
    if belljar_sys::landlock_version() == 0 {
        return Ok(()); // the attestation reports that, and the launcher compares
    }
    let failed = |error: &dyn std::fmt::Display| ConfineError::Landlock(error.to_string());
    let all = AccessFs::from_all(ABI::V6);
    let read = AccessFs::from_read(ABI::V6);
    let mut rules = Ruleset::default()
        .handle_access(all)
        .and_then(Ruleset::create)
        .map_err(|error| failed(&error))?;
    let root = PathFd::new("/").map_err(|error| failed(&error))?;
    rules = rules.add_rule(PathBeneath::new(root, read)).map_err(|error| failed(&error))?;
    let always = ["/proc", "/dev"].map(OsText::from);
    for place in setup.init.writable.iter().chain(&always) {
        let Ok(fd) = PathFd::new(place.as_path()) else { continue }; // what is not there needs no right
        let is_directory = std::fs::metadata(place.as_path()).is_ok_and(|meta| meta.is_dir());
        let access = if is_directory { all } else { AccessFs::from_file(ABI::V6) };
        rules = rules.add_rule(PathBeneath::new(fd, access)).map_err(|error| failed(&error))?;
    }
    step("set no-new-privileges", set_no_new_privs(true))?;
    let status = rules.restrict_self().map_err(|error| failed(&error))?;
    match (status.landlock, status.ruleset) {
        (
            LandlockStatus::Available { .. },
            RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced,
        ) => {
            Ok(()) // partially: an older kernel; the expectation has the same version
        }
        other => Err(ConfineError::Landlock(format!("the kernel reports {other:?}"))),
    }
}

/// What only PID 1 can find out about what holds for all commands; they attest it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Readback {
    /// The version that is in force, 0 for none.
    pub(super) landlock: u32,
    pub(super) dies_with_launcher: bool,
    pub(super) init: InitState,
}

impl Readback {
    const LENGTH: usize = 14;
    /// What cannot be shown does not hold.
    pub(super) const NOTHING: Self = Self {
        landlock: 0,
        dies_with_launcher: false,
        init: InitState { own_session: false, capabilities: u64::MAX },
    };

    /// To a process that PID 1 has forked, and that attests it. A pipe takes it at once.
    pub(super) fn send(&self, pipe: &OwnedFd) {
        let Self { landlock, dies_with_launcher, init } = self;
        let InitState { own_session, capabilities } = init;
        let mut bytes = [0; Self::LENGTH];
        bytes[..4].copy_from_slice(&landlock.to_ne_bytes());
        bytes[4..6].copy_from_slice(&[u8::from(*dies_with_launcher), u8::from(*own_session)]);
        bytes[6..].copy_from_slice(&capabilities.to_ne_bytes());
        let _ = rustix::io::write(pipe, &bytes); // the process is gone, or reports the lack of it
    }

    /// Waits for it.
    pub(super) fn receive(pipe: &OwnedFd) -> Self {
        let mut bytes = [0; Self::LENGTH];
        let read = rustix::io::retry_on_intr(|| rustix::io::read(pipe, &mut bytes));
        let [l0, l1, l2, l3, dies, session, c0, c1, c2, c3, c4, c5, c6, c7] = bytes;
        match read {
            Ok(Self::LENGTH) => Self {
                landlock: u32::from_ne_bytes([l0, l1, l2, l3]),
                dies_with_launcher: dies == 1,
                init: InitState {
                    own_session: session == 1,
                    capabilities: u64::from_ne_bytes([c0, c1, c2, c3, c4, c5, c6, c7]),
                },
            },
            _ => Self::NOTHING,
        }
    }
}

/// For PID 1, once it has confined itself.
pub(super) fn readback() -> Readback {
    static FOUND: OnceLock<Readback> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let signal = rustix::process::parent_process_death_signal();
        Readback {
            landlock: if has_landlock_domain() { belljar_sys::landlock_version() } else { 0 },
            dies_with_launcher: matches!(signal, Ok(Some(rustix::process::Signal::KILL))),
            init: init_state(),
        }
    })
}

/// What cannot be read counts as the worst.
fn init_state() -> InitState {
    let capabilities = rustix::thread::capabilities(None).map_or(u64::MAX, |sets| {
        let bounding = bounding_set().iter().copied();
        let all = bounding.fold(sets.permitted | sets.inheritable, CapabilitySet::union);
        all.bits()
    });
    InitState { own_session: crate::sys::process::leads_session(), capabilities }
}

/// The kernel does not report what confines a process. But it accepts a fixed number of rule sets on top of each
/// other: where one of ours is in force, one less can be added.
fn has_landlock_domain() -> bool {
    const MAX_LAYERS: i32 = 16;
    if belljar_sys::landlock_version() == 0 {
        return false;
    }
    // What cannot be shown does not hold.
    layers_left(MAX_LAYERS + 1).is_ok_and(|left| (1..MAX_LAYERS).contains(&left))
}

/// The plan's limits, hard and soft.
pub(super) fn limit_resources(setup: &LockDownSetup<'_>) -> Result<(), ConfineError> {
    for limit in &setup.init.rlimits {
        let resource =
            resource(&limit.name).ok_or_else(|| ConfineError::UnknownLimit(limit.name.clone()))?;
        let value = Rlimit { current: Some(limit.value), maximum: Some(limit.value) };
        setrlimit(resource, value)
            .map_err(|error| ConfineError::Limit(limit.name.clone(), error))?;
    }
    Ok(())
}

/// All sets but the bounding set, which has a step of its own.
pub(super) fn drop_capabilities(_: &LockDownSetup<'_>) -> Result<(), ConfineError> {
    match clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => {} // gVisor has none; the attestation reads back
        Err(error) => return Err(StepError::new("clear ambient capabilities", error).into()),
    }
    let none = CapabilitySet::empty();
    let nothing = CapabilitySets { effective: none, permitted: none, inheritable: none };
    Ok(step("drop capabilities", set_capabilities(None, nothing))?)
}

pub(super) fn no_new_privileges(_: &LockDownSetup<'_>) -> Result<(), ConfineError> {
    Ok(step("set no-new-privileges", set_no_new_privs(true))?)
}

pub(super) fn load_filter(setup: &LockDownSetup<'_>) -> Result<(), ConfineError> {
    match (filter::load(&setup.init.filter)?, setup.listener_socket) {
        (Loaded::Plain, _) => Ok(()),
        (Loaded::Traced(listener), Some(socket)) => {
            Ok(step("hand over the listener for refused calls", hand_over(&listener, socket))?)
        }
        (Loaded::Traced(_), None) => Err(ConfineError::NoListenerSocket),
    }
}

pub(super) fn change_user(setup: &LockDownSetup<'_>) -> Result<(), ConfineError> {
    let (uid, gid) = (Uid::from_raw(setup.init.user.uid), Gid::from_raw(setup.init.user.gid));
    if rustix::process::geteuid() == uid {
        return Ok(()); // an ordinary user's sandbox has only this one
    }
    step("drop groups", set_thread_groups(&[]))?;
    step("change the gid", set_thread_res_gid(gid, gid, gid))?;
    Ok(step("change the uid", set_thread_res_uid(uid, uid, uid))?)
}

/// What PID 1 has in its bounding set, looked up once: the set never grows, and to ask for each of the
/// kernel's capabilities costs every command a call.
static BOUNDING: OnceLock<Vec<CapabilitySet>> = OnceLock::new();

/// For PID 1, so that its copies need not look.
pub(super) fn bounding_set() -> &'static [CapabilitySet] {
    use rustix::thread::capability_is_in_bounding_set;
    BOUNDING.get_or_init(|| {
        let all = (0..64_u32).map(|number| CapabilitySet::from_bits_retain(1 << number));
        let known = all.map_while(|capability| {
            let held = capability_is_in_bounding_set(capability).ok()?; // past the last one
            Some((capability, held))
        });
        known.filter(|(_, held)| *held).map(|(capability, _)| capability).collect()
    })
}

/// That nothing is left is not believed: the attestation reads it back.
pub(super) fn empty_bounding_set(_: &LockDownSetup<'_>) -> Result<(), ConfineError> {
    use rustix::thread::remove_capability_from_bounding_set;
    for capability in bounding_set() {
        step("empty the bounding set", remove_capability_from_bounding_set(*capability))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::pipe::pipe;

    use super::*;

    #[test]
    fn what_is_read_back_arrives_whole_or_counts_as_the_worst() {
        let init = InitState { own_session: true, capabilities: 0x1_0000_00e0 };
        let found = Readback { landlock: 6, dies_with_launcher: true, init };
        let (read, write) = pipe().unwrap();
        found.send(&write);
        assert_eq!(Readback::receive(&read), found);
        rustix::io::write(&write, &[1; Readback::LENGTH - 1]).unwrap();
        drop(write);
        assert_eq!(Readback::receive(&read), Readback::NOTHING, "a part of it");
        assert_eq!(Readback::receive(&read), Readback::NOTHING, "nobody sends it");
    }
}

//! Confines a process of Belljar that handles untrusted bytes outside a sandbox: it keeps the network, the files
//! that it must read and its open descriptors, and gives up everything else.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, getrlimit, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, capabilities, clear_ambient_capability_set,
    set_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::step::{StepError, step};

/// Owns nothing on any system.
const NOBODY: u32 = 65534;
/// Open files; as many as the kernel lets an ordinary process have.
const FILES: u64 = 1 << 16;

#[derive(Debug, thiserror::Error)]
pub enum SelfConfineError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("Landlock: {0}")]
    Landlock(String),
    #[error("the process still has capabilities after it dropped all of them")]
    RightsLeft,
}

/// From here on this process dies with its parent, cannot be inspected, changes no file, reads only below these
/// paths, and runs as an unprivileged user where it was root.
pub fn confine_to_network(readable: &[PathBuf]) -> Result<(), SelfConfineError> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    step("forbid core dumps", setrlimit(Resource::Core, none))?;
    raise_files();
    step("set no-new-privileges", set_no_new_privs(true))?; // Landlock asks for it
    landlock(readable)?; // before the ids change: root's places can be named, and read if others may
    become_nobody()?;
    drop_capabilities()?;
    // After the last change of ids, which would undo both.
    step("hide from other processes", set_dumpable_behavior(DumpableBehavior::NotDumpable))?;
    step("ask to die with the parent", set_parent_process_death_signal(Some(Signal::KILL)))?;
    let left = step("read back capabilities", capabilities(None))?;
    match left.effective.is_empty() && left.permitted.is_empty() {
        true => Ok(()),
        false => Err(SelfConfineError::RightsLeft),
    }
}

/// Each connection is two; a process that may not have more gets along with fewer.
fn raise_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(FILES, |maximum| maximum.min(FILES));
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: Some(wanted) });
}

/// An older kernel enforces less of it, one without Landlock nothing: the process has other bounds too.
fn landlock(readable: &[PathBuf]) -> Result<(), SelfConfineError> {
    if crate::landlock_version() == 0 {
        return Ok(());
    }
    let failed = |error: &dyn std::fmt::Display| SelfConfineError::Landlock(error.to_string());
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(ABI::V6))
        .and_then(|rules| rules.scope(Scope::AbstractUnixSocket | Scope::Signal))
        .and_then(Ruleset::create)
        .map_err(|error| failed(&error))?;
    for place in readable {
        let Ok(fd) = PathFd::new(place) else { continue }; // what is not there needs no right
        let access = if is_directory(place) {
            AccessFs::ReadFile | AccessFs::ReadDir
        } else {
            AccessFs::ReadFile.into()
        };
        rules = rules.add_rule(PathBeneath::new(fd, access)).map_err(|error| failed(&error))?;
    }
    rules.restrict_self().map(drop).map_err(|error| failed(&error))
}

fn is_directory(place: &Path) -> bool {
    std::fs::metadata(place).is_ok_and(|about| about.is_dir())
}

fn become_nobody() -> Result<(), SelfConfineError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    step("drop groups", set_thread_groups(&[]))?;
    step("change the gid", set_thread_res_gid(gid, gid, gid))?;
    Ok(step("change the uid", set_thread_res_uid(uid, uid, uid))?)
}

fn drop_capabilities() -> Result<(), SelfConfineError> {
    match clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => {} // a kernel without them
        Err(error) => return Err(StepError::new("clear ambient capabilities", error).into()),
    }
    let none = CapabilitySet::empty();
    let nothing = CapabilitySets { effective: none, permitted: none, inheritable: none };
    Ok(step("drop capabilities", set_capabilities(None, nothing))?)
}

//! Makes the pod and, in it, the sandbox's namespaces. What the sandbox's first process does in them is the list in
//! `set_up`.
//!
//! Runs in a forked copy of the launcher that nothing hostile has touched, and executes no other
//! program. [`pod`] is the order of its steps; a comment gives the reason for a step's position.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_bind::identity::init_ids;
use belljar_spec::User;
use belljar_sys::{StepError, step};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal,
};
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::bind::Bound;
use super::report::{Blame, Report};
use super::root::RootError;
use super::set_up::{self, SetUpStep};
use super::start::{Ends, inner_maps};
use crate::loopback::listen_on;
use crate::sys::pod_namespaces::{PodNamespaces, join};
use crate::sys::process::{CloneFlags, Forked, clone};

#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("{0}")]
    File(String, #[source] std::io::Error),
    #[error(transparent)]
    Root(#[from] RootError),
    #[error("listen on port {port} of the sandbox")]
    Listen {
        port: u16,
        #[source]
        error: Errno,
    },
    #[error("the launcher exited")]
    LauncherGone,
    #[error("a step of the set-up needs what an earlier one makes: {0}")]
    Order(&'static str),
}

impl ApplyError {
    pub(crate) fn report(&self) -> Report {
        let blame = match self {
            Self::Root(
                RootError::TargetMissing(_)
                | RootError::TargetIsLink(_)
                | RootError::ImageLink { .. }
                | RootError::ImageKind { .. }
                | RootError::TooManyLayers(_),
            ) => Blame::Run,
            _ => Blame::SetUp,
        };
        Report::Failed { why: belljar_spec::text::error_chain(self), blame }
    }
}

/// The uid that the sandbox is set up with, inside.
pub(crate) fn setup_ids(bound: &Bound) -> User {
    match bound.host.identity.init {
        Some(_) => init_ids(bound.host.plan.identity.inside),
        None => bound.host.plan.identity.inside,
    }
}

/// The pod: a user namespace, and in it a network namespace. Enters them, makes the sandbox in them and ends; the
/// sandbox's first process is the launcher's child.
pub(crate) fn pod(
    steps: &[SetUpStep],
    bound: &Bound,
    mut ends: Ends,
    namespaces: &PodNamespaces,
) -> Result<(), ApplyError> {
    // First: everything that follows is counted, and the cgroup namespace begins there.
    enter_groups(std::mem::take(&mut ends.groups))?;
    step("ask to die with the launcher", set_parent_process_death_signal(Some(Signal::KILL)))?;
    // Inherited by everything inside: under pressure the command goes first, not the launcher.
    write_file("/proc/self/oom_score_adj", "500")?;
    step("enter the run's user and network namespace", join(namespaces.process()))?;
    become_setup_user(bound)?;
    // Changing the uid made our files in /proc root's; the sandbox's maps are written through them.
    step("set dumpable", set_dumpable_behavior(DumpableBehavior::Dumpable))?;
    // Before the sandbox's user namespace is made: they are its maximum from then on.
    step("limit what is counted for the user", bound.user_limits.set_resources())?;
    let (go_here, go_there) =
        step("make a pipe", rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC))?;
    let flags = CloneFlags::NEW_USER
        | CloneFlags::NEW_MOUNT
        | CloneFlags::NEW_PID
        | CloneFlags::NEW_IPC
        | CloneFlags::NEW_UTS
        | CloneFlags::NEW_CGROUP
        | CloneFlags::SAME_PARENT;
    match step("make the sandbox's namespaces", clone(flags))? {
        Forked::Child => {
            drop(go_there);
            let report = step(
                "keep the report descriptor",
                ends.report.try_clone().map_err(|_| Errno::MFILE),
            )?;
            if let Err(error) = sandbox(steps, bound, ends, go_here) {
                error.report().send(report.as_fd());
            }
            crate::sys::process::exit_now(125);
        }
        Forked::Parent(child) => {
            let pid = child.pid.as_raw_nonzero();
            let (uids, gids) = inner_maps(bound.host.plan.identity.inside, &bound.host.identity);
            if bound.host.identity.init.is_none() && !is_privileged_pod(bound) {
                write_file(&format!("/proc/{pid}/setgroups"), "deny")?;
            }
            write_file(&format!("/proc/{pid}/uid_map"), &uids)?;
            write_file(&format!("/proc/{pid}/gid_map"), &gids)?;
            // Here and not before the clone: the sandbox never has them. Before it goes on, so that a port that
            // cannot be had ends it.
            let listeners = listen(&bound.host.plan.listen)?;
            step("let the sandbox go on", rustix::io::write(&go_there, b"."))?;
            // Last: the launcher needs nothing more of this process.
            Report::Sandbox { pid: pid.get(), listeners }.send(ends.report.as_fd());
            Ok(())
        }
    }
}

/// `0` is the writer itself.
fn enter_groups(files: Vec<OwnedFd>) -> Result<(), ApplyError> {
    for file in files {
        step("enter the control group", rustix::io::write(&file, b"0"))?;
    }
    Ok(())
}

fn listen(ports: &[u16]) -> Result<Vec<OwnedFd>, ApplyError> {
    let listen =
        |port: &u16| listen_on(*port).map_err(|error| ApplyError::Listen { port: *port, error });
    ports.iter().map(listen).collect()
}

/// Root's launcher wrote the pod's group map itself, so groups can be dropped in it.
fn is_privileged_pod(bound: &Bound) -> bool {
    use belljar_spec::HostUid::{BlockPerRun, PerRun};
    matches!(bound.host.plan.identity.host, PerRun | BlockPerRun)
}

/// The sandbox's first process.
fn sandbox(steps: &[SetUpStep], bound: &Bound, ends: Ends, go: OwnedFd) -> Result<(), ApplyError> {
    wait_for_go(go.as_fd())?; // our maps are written now: files we make have an owner
    set_up::run(steps, bound, ends)
}

fn become_setup_user(bound: &Bound) -> Result<(), ApplyError> {
    if !is_privileged_pod(bound) {
        return Ok(()); // an ordinary user is the one id that is mapped already
    }
    let User { uid, gid } = setup_ids(bound);
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    step("drop groups", set_thread_groups(&[]))?;
    step("change the gid", set_thread_res_gid(gid, gid, gid))?;
    Ok(step("change the uid", set_thread_res_uid(uid, uid, uid))?)
}

/// Blocks until the other end wrote one byte.
fn wait_for_go(from: BorrowedFd<'_>) -> Result<(), ApplyError> {
    let mut byte = [0];
    loop {
        match rustix::io::read(from, &mut byte) {
            Ok(1) => return Ok(()),
            Err(Errno::INTR) => {}
            _ => return Err(ApplyError::LauncherGone),
        }
    }
}

fn write_file(path: &str, text: &str) -> Result<(), ApplyError> {
    std::fs::write(path, text).map_err(|error| ApplyError::File(format!("write {path}"), error))
}

//! Sets up the new process, from its first instruction to becoming `belljar __init`.
//!
//! Runs in a forked copy of the launcher that nothing hostile has touched, and executes no other
//! program. Each function is the order of its steps; a comment gives the reason for a step's position.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_spec::init_process::OVER_LINKS;
use belljar_spec::{LinkKind, User};
use belljar_sys::{StepError, step};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, configure_capability_in_ambient_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use super::bind::{Bound, INIT_UID};
use super::report::Report;
use super::root::{Root, RootError};
use super::start::{Ends, StdioInside, inner_maps};
use crate::init::{CHANNEL_FD, STDIO_FD};
use crate::loopback::listen_on;
use crate::sys::mount::make_private;
use crate::sys::process::{
    CloneFlags, Forked, arrange_descriptors, clone, exec_descriptor, new_session_keyring,
};

/// What PID 1 needs where the command has another uid: to become that uid, to empty its child's
/// bounding set, to signal it.
const INIT_CAPABILITIES: CapabilitySet = CapabilitySet::SETUID
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::KILL);

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
}

/// The uid that the sandbox is set up with, inside.
pub(crate) fn setup_ids(bound: &Bound) -> User {
    match bound.host.identity.init {
        Some(_) => init_ids(bound.host.plan.identity.inside),
        None => bound.host.plan.identity.inside,
    }
}

/// PID 1's ids, which must not be the command's.
pub(crate) fn init_ids(command: User) -> User {
    let free = |wanted: u32, taken: u32| if wanted == taken { wanted - 1 } else { wanted };
    User { uid: free(INIT_UID, command.uid), gid: free(INIT_UID, command.gid) }
}

/// The pod: a user namespace, and in it a network namespace. Makes the sandbox in it and ends; the sandbox's first
/// process is the launcher's child.
pub(crate) fn pod(bound: &Bound, ends: Ends) -> Result<(), ApplyError> {
    step("ask to die with the launcher", set_parent_process_death_signal(Some(Signal::KILL)))?;
    // The dearest namespace, made while the launcher writes our maps.
    step("make the network namespace", crate::sys::process::new_network())?;
    wait_for_go(ends.report.as_fd())?; // our uid map is written now
    become_setup_user(bound)?;
    // Changing the uid made our files in /proc root's; the sandbox's maps are written through them.
    step("set dumpable", set_dumpable_behavior(DumpableBehavior::Dumpable))?;
    step("bring loopback up", crate::sys::net::loopback_up())?;
    // Any port, as in a container: nothing else lives in this network.
    write_file("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")?;

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
            if let Err(error) = sandbox(bound, ends, go_here) {
                Report::Failed(belljar_spec::text::error_chain(&error)).send(report.as_fd());
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

fn listen(ports: &[u16]) -> Result<Vec<OwnedFd>, ApplyError> {
    let listen =
        |port: &u16| listen_on(*port).map_err(|error| ApplyError::Listen { port: *port, error });
    ports.iter().map(listen).collect()
}

/// Root's launcher wrote the pod's group map itself, so groups can be dropped in it.
fn is_privileged_pod(bound: &Bound) -> bool {
    matches!(bound.host.plan.identity.host, belljar_spec::HostUid::PerRun)
}

/// The sandbox's first process.
fn sandbox(bound: &Bound, ends: Ends, go: OwnedFd) -> Result<(), ApplyError> {
    wait_for_go(go.as_fd())?; // our maps are written now: files we make have an owner
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022)); // the caller's may hide our root
    step("make mounts private", make_private(c"/"))?; // before the first mount, or it would travel
    let root = Root::new()?.for_command(bound.host.plan.identity.inside);
    for mount in &bound.host.mounts {
        root.add(mount)?;
    }
    root.seal()?;
    root.limit_counters(&bound.user_limits)?; // before the capability for it goes
    step("set the host name", rustix::system::sethostname(bound.host.plan.hostname.as_bytes()))?;
    root.enter()?;
    step("start a session", rustix::process::setsid())?;
    match new_session_keyring() {
        // A kernel built without keyrings has none to leak.
        Ok(()) | Err(Errno::NOSYS) => {}
        Err(error) => return Err(StepError::new("make a session keyring", error).into()),
    }
    drop_capabilities(bound)?; // after the last mount
    // After the last change of ids, which would clear it.
    step("ask to die with the launcher", set_parent_process_death_signal(Some(Signal::KILL)))?;
    if is_closed(ends.channel.as_fd()) {
        return Err(ApplyError::LauncherGone);
    }
    become_init(ends, bound.link)
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

fn drop_capabilities(bound: &Bound) -> Result<(), ApplyError> {
    let keep = match bound.host.identity.init {
        Some(_) => INIT_CAPABILITIES,
        None => CapabilitySet::empty(),
    };
    drop_bounding_set(keep)?;
    let sets = CapabilitySets { effective: keep, permitted: keep, inheritable: keep };
    step("drop capabilities", set_capabilities(None, sets))?;
    for capability in keep.iter() {
        // Not uid 0, so an `exec` would lose them otherwise.
        step("keep a capability over exec", configure_capability_in_ambient_set(capability, true))?;
    }
    Ok(step("set no-new-privileges", set_no_new_privs(true))?)
}

/// Every capability this kernel has, newer ones too.
fn drop_bounding_set(keep: CapabilitySet) -> Result<(), ApplyError> {
    for number in 0..64_u32 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if keep.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(Errno::INVAL) => break, // past the last one
            Err(error) => return Err(StepError::new("empty the bounding set", error).into()),
        }
    }
    Ok(())
}

fn become_init(ends: Ends, link: LinkKind) -> Result<(), ApplyError> {
    let null =
        |flags| step("open /dev/null", open("/dev/null", flags | OFlags::CLOEXEC, Mode::empty()));
    let mut wanted = vec![null(OFlags::RDONLY)?, null(OFlags::WRONLY)?, null(OFlags::WRONLY)?];
    debug_assert_eq!(wanted.len() as i32, CHANNEL_FD);
    wanted.push(ends.channel);
    debug_assert_eq!(wanted.len() as i32, STDIO_FD);
    if let Some(StdioInside { stdin, stdout, stderr }) = ends.stdio {
        let stdin = match stdin {
            Some(stdin) => stdin,
            None => null(OFlags::RDONLY)?,
        };
        wanted.extend([stdin, stdout, stderr]);
    }
    wanted.push(ends.executable);
    wanted.push(ends.report);
    let report = wanted.len() as i32 - 1;
    step("arrange descriptors", arrange_descriptors(0, wanted))?;
    let executable =
        step("find the executable", crate::sys::process::adopt_descriptor(report - 1))?;
    let report = step("find the report descriptor", crate::sys::process::adopt_descriptor(report))?;
    let mut argv = vec![CString::from(c"belljar"), CString::from(c"__init")];
    if link == LinkKind::Breakable {
        argv.extend(CString::new(OVER_LINKS).ok());
    }
    let error = exec_descriptor(executable.as_fd(), &argv, &[]);
    let error = ApplyError::from(StepError::new("start belljar __init", error));
    Report::Failed(belljar_spec::text::error_chain(&error)).send(report.as_fd());
    crate::sys::process::exit_now(125)
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

fn is_closed(channel: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&channel, PollFlags::empty())];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_err() || fds[0].revents().contains(PollFlags::HUP)
}

fn write_file(path: &str, text: &str) -> Result<(), ApplyError> {
    std::fs::write(path, text).map_err(|error| ApplyError::File(format!("write {path}"), error))
}

//! Runs a control as another user, or in new namespaces, so that a successful attempt does not change the machine.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use belljar_linux::sys::attempt;
use belljar_linux::sys::mount::make_private;
use belljar_linux::sys::net::loopback_up;
use belljar_linux::sys::process::{Child, CloneFlags, Forked, clone, exit_now};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Signal, WaitOptions, set_parent_process_death_signal, waitpid};
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::{Arguments, ProbeError, failed};

/// `as UID GID CGROUP-PROCS,… PROGRAM ARG…`: joins those cgroups, becomes that user, becomes that
/// program.
pub(super) fn as_user(args: &Arguments<'_>) -> i32 {
    match try_as_user(args) {
        Ok(never) => match never {},
        Err(error) => failed(&error),
    }
}

fn try_as_user(args: &Arguments<'_>) -> Result<std::convert::Infallible, ProbeError> {
    let uid = Uid::from_raw(args.number(0, "a uid")? as u32);
    let gid = Gid::from_raw(args.number(1, "a gid")? as u32);
    join(args.text(2, "cgroups")?)?;
    set_thread_groups(&[]).map_err(ProbeError::step("drop groups"))?;
    set_thread_res_gid(gid, gid, gid).map_err(ProbeError::step("change the gid"))?;
    set_thread_res_uid(uid, uid, uid).map_err(ProbeError::step("change the uid"))?;
    let program = args.path(3, "a program")?;
    let error = Command::new(program).args(&args.0[4..]).exec();
    Err(ProbeError::Step(format!("start {}", program.display()), error))
}

fn join(groups: &str) -> Result<(), ProbeError> {
    for procs in groups.split(',').filter(|procs| !procs.is_empty()) {
        std::fs::write(procs, std::process::id().to_string())
            .map_err(|error| ProbeError::Step(format!("join {procs}"), error))?;
    }
    Ok(())
}

/// `in-group CGROUP-PROCS,… PROBE ARG…`: joins those cgroups first.
pub(super) fn run_in_group(args: &Arguments<'_>, run: fn(&[OsString]) -> i32) -> i32 {
    match args.text(0, "cgroups").and_then(join) {
        Ok(()) => run(&args.0[1..]),
        Err(error) => failed(&error),
    }
}

/// `scratch root|mapped PROBE ARG…`: with new namespaces of every kind; `mapped` with a user namespace
/// too, in which the caller is uid 0.
pub(super) fn run_in_scratch(args: &Arguments<'_>, run: fn(&[OsString]) -> i32) -> i32 {
    match try_scratch(args, run) {
        Ok(code) => code,
        Err(error) => failed(&error),
    }
}

fn try_scratch(args: &Arguments<'_>, run: fn(&[OsString]) -> i32) -> Result<i32, ProbeError> {
    let mapped = args.text(0, "root or mapped")? == "mapped";
    let mut flags = CloneFlags::NEW_MOUNT
        | CloneFlags::NEW_PID
        | CloneFlags::NEW_IPC
        | CloneFlags::NEW_UTS
        | CloneFlags::NEW_CGROUP;
    if mapped {
        flags = flags | CloneFlags::NEW_USER;
    }
    let (go, let_go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(ProbeError::step("make a pipe"))?;
    match clone(flags).map_err(ProbeError::step("make namespaces for the control"))? {
        Forked::Child => {
            drop(let_go);
            if let Err(error) = settle(&go) {
                exit_now(failed(&error));
            }
            exit_now(run(&args.0[1..]))
        }
        Forked::Parent(child) => {
            if mapped {
                write_maps(&child)?;
            }
            rustix::io::write(&let_go, b".").map_err(ProbeError::step("let the control go on"))?;
            wait_for(&child)
        }
    }
}

/// The control's own view: mounts that do not travel, processes of its own, loopback up.
fn settle(go: &OwnedFd) -> Result<(), ProbeError> {
    let mut byte = [0];
    rustix::io::read(go, &mut byte).map_err(ProbeError::step("wait for the maps"))?;
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(ProbeError::step("ask to die with the parent"))?;
    rustix::process::setsid().map_err(ProbeError::step("start a session"))?;
    make_private(c"/").map_err(ProbeError::step("make mounts private"))?;
    mount("proc", "/proc", "proc", MountFlags::empty(), None)
        .map_err(ProbeError::step("mount /proc"))?;
    attempt::unshare(libc::CLONE_NEWNET).map_err(ProbeError::step("make a network"))?;
    loopback_up().map_err(ProbeError::step("bring loopback up"))
}

fn write_maps(child: &Child) -> Result<(), ProbeError> {
    let pid = child.pid.as_raw_nonzero();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("0 {uid} 1\n")),
        ("gid_map", format!("0 {gid} 1\n")),
    ] {
        let path = format!("/proc/{pid}/{file}");
        std::fs::write(&path, text)
            .map_err(|error| ProbeError::Step(format!("write {path}"), error))?;
    }
    Ok(())
}

fn wait_for(child: &Child) -> Result<i32, ProbeError> {
    loop {
        match waitpid(Some(child.pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => {
                return Ok(status
                    .exit_status()
                    .unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or_default()));
            }
            Err(Errno::INTR) => {}
            Ok(None) => {}
            Err(error) => {
                return Err(ProbeError::Step("wait for the control".to_owned(), error.into()));
            }
        }
    }
}

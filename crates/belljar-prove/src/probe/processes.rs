//! Other processes, and becoming more than one is.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use belljar_linux::sys::attempt;
use belljar_linux::sys::process::{close_from, exit_now, fork};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::{Arguments, PROBE, ProbeError, Probed};
use crate::answer::Told;

/// The processes that `/proc` shows.
pub(super) fn visible() -> Result<Vec<u32>, ProbeError> {
    let entries = std::fs::read_dir("/proc")
        .map_err(|error| ProbeError::Step("list /proc".to_owned(), error))?;
    let names = entries.flatten().map(|entry| entry.file_name());
    Ok(names.filter_map(|name| name.to_str()?.parse().ok()).collect())
}

/// Counts what can be seen and tries whether given processes could be signalled.
pub(super) fn processes(args: &Arguments<'_>) -> Probed {
    let mut told = Told::default();
    told.fact("visible", visible()?.len());
    for at in 0..args.0.len() {
        let raw = args.number(at, "a process")? as i32;
        let outcome = Pid::from_raw(raw).map_or(Err(Errno::SRCH), test_kill_process);
        told.tried(format!("signal {raw}"), outcome);
        let path = format!("/proc/{raw}/status");
        let opened = open(Path::new(&path), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        told.tried(format!("read /proc/{raw}"), opened.map(drop));
    }
    Ok(told)
}

/// Whom to attack: PID 1, or for a control a child of our own, which anybody may look into.
struct Target {
    pid: i32,
    child: Option<Child>,
}

impl Target {
    fn from(args: &Arguments<'_>) -> Result<Self, ProbeError> {
        match args.text(0, "init or child")? {
            "init" => Ok(Self { pid: 1, child: None }),
            _ => {
                let failed = |error| ProbeError::Step("start a child".to_owned(), error);
                let mut child = Command::new("/proc/self/exe")
                    .args([PROBE, "sleep", "20000"])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::null())
                    .spawn()
                    .map_err(failed)?;
                if let Some(said) = &mut child.stdout {
                    // Before its first word it is still a copy of us.
                    said.read_exact(&mut [0]).map_err(failed)?;
                }
                Ok(Self { pid: child.id() as i32, child: Some(child) })
            }
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill(); // ended by itself is as good
            let _ = child.wait();
        }
    }
}

pub(super) fn trace(args: &Arguments<'_>) -> Probed {
    let target = Target::from(args)?;
    let mut told = Told::default();
    told.tried("PTRACE_SEIZE", attempt::ptrace_seize(target.pid));
    Ok(told)
}

pub(super) fn memory_of(args: &Arguments<'_>) -> Probed {
    let target = Target::from(args)?;
    let mut told = Told::default();
    for file in ["mem", "environ", "maps", "exe", "fd", "cwd/.", "root/.", "fdinfo"] {
        let path = format!("/proc/{}/{file}", target.pid);
        let opened = open(Path::new(&path), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        told.tried(file, opened.map(drop));
    }
    told.tried("process_vm_readv", attempt::read_memory_of(target.pid));
    Ok(told)
}

pub(super) fn steal_descriptor(args: &Arguments<'_>) -> Probed {
    let target = Target::from(args)?;
    let mut told = Told::default();
    for number in 0..8 {
        told.tried(format!("descriptor {number}"), attempt::steal_descriptor(target.pid, number));
        let path = format!("/proc/{}/fd/{number}", target.pid);
        let opened = open(
            Path::new(&path),
            OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
            Mode::empty(),
        );
        told.tried(format!("open fd/{number}"), opened.map(drop));
    }
    told.fact("exit", args.number(1, "an exit code")?);
    Ok(told)
}

/// Limits its target: a PID 1 without memory or descriptors would end the run.
pub(super) fn limit_of(args: &Arguments<'_>) -> Probed {
    let target = Target::from(args)?;
    let mut told = Told::default();
    for (name, resource) in [
        ("memory", libc::RLIMIT_AS),
        ("descriptors", libc::RLIMIT_NOFILE),
        ("time", libc::RLIMIT_CPU),
    ] {
        told.tried(name, attempt::set_limit_of(target.pid, resource));
    }
    Ok(told)
}

pub(super) fn namespaces(_: &Arguments<'_>) -> Probed {
    const ALL: &[(&str, i32)] = &[
        ("user", libc::CLONE_NEWUSER),
        ("mount", libc::CLONE_NEWNS),
        ("pid", libc::CLONE_NEWPID),
        ("net", libc::CLONE_NEWNET),
        ("ipc", libc::CLONE_NEWIPC),
        ("uts", libc::CLONE_NEWUTS),
        ("cgroup", libc::CLONE_NEWCGROUP),
        ("time", libc::CLONE_NEWTIME),
    ];
    let mut told = Told::default();
    for (name, flag) in ALL {
        let flag = *flag as u32 as u64;
        told.answered(format!("unshare {name}"), super::in_child(|| attempt::unshare_wide(flag)));
        // The old clone has no room for the time namespace: its bit is part of the exit signal.
        if *name != "time" {
            told.answered(format!("clone {name}"), super::in_child(|| attempt::clone_flags(flag)));
            let wide = flag | 1 << 40;
            told.answered(
                format!("clone {name}, high bit"),
                super::in_child(|| attempt::clone_flags(wide)),
            );
        }
    }
    let wide = libc::CLONE_NEWUSER as u64 | 1 << 40;
    told.answered("unshare user, high bit", super::in_child(|| attempt::unshare_wide(wide)));
    told.answered("clone3 user", super::in_child(attempt::clone3_new_user));
    Ok(told)
}

/// What the kernel says about this process; stays a while, so that it can be looked at from outside.
pub(super) fn facts(args: &Arguments<'_>) -> Probed {
    let mut told = Told::default();
    let status = std::fs::read_to_string("/proc/self/status")
        .map_err(|error| ProbeError::Step("read /proc/self/status".to_owned(), error))?;
    for line in status.lines() {
        if let Some((name, value)) = line.split_once(':') {
            told.fact(name, value.trim().replace('\t', " "));
        }
    }
    let core = rustix::process::getrlimit(rustix::process::Resource::Core);
    told.fact("core limit", core.maximum.map_or("none".to_owned(), |limit| limit.to_string()));
    super::say_and_stay(&told, args.number(0, "milliseconds")?);
    Ok(told)
}

/// Ends as a program with a bug does.
pub(super) fn crash(_: &Arguments<'_>) -> Probed {
    // The first one only takes away the handler that looks for stack overflows.
    for _ in 0..2 {
        kill_process(rustix::process::getpid(), Signal::SEGV).map_err(ProbeError::step("crash"))?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(Told::default())
}

/// Does nothing, until its time is over or whoever started it is gone.
pub(super) fn sleep(args: &Arguments<'_>) -> Probed {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let mut out = std::io::stdout();
    let _ = writeln!(out, "ready").and_then(|()| out.flush()); // only who waits for it reads it
    std::thread::sleep(Duration::from_millis(args.number(0, "milliseconds")?.min(60_000)));
    Ok(Told::default())
}

/// Does not react to requests to stop.
pub(super) fn stubborn(args: &Arguments<'_>) -> Probed {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        attempt::ignore_signal(signal);
    }
    let mut out = std::io::stdout();
    let _ = writeln!(out, "ready").and_then(|()| out.flush()); // only the control reads it
    std::thread::sleep(Duration::from_millis(args.number(0, "milliseconds")?.min(60_000)));
    Ok(Told::default())
}

/// Leaves a process behind that has nothing in common with us any more.
pub(super) fn daemonize(args: &Arguments<'_>) -> Probed {
    let time = Duration::from_millis(args.number(0, "milliseconds")?.min(60_000));
    if fork().map_err(ProbeError::step("fork"))?.is_none() {
        if rustix::process::setsid().is_ok() && matches!(fork(), Ok(None)) {
            let _ = close_from(0); // nothing of it is used again
            std::thread::sleep(time);
        }
        exit_now(0);
    }
    std::thread::sleep(Duration::from_millis(100)); // the second one is there by now
    Ok(Told::default())
}

//! Attacks other processes, and tries to gain privileges.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use belljar_linux::sys::attempt;
use belljar_linux::sys::process::{begin_session, exit_now, fork};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::{Arguments, PROBE, ProbeError, Probed};
use crate::probe_report::{AttemptResult, ProbeReport};

/// More than PID 1 has.
const MAX_DESCRIPTORS: i32 = 32;

/// The processes that `/proc` shows.
pub(super) fn visible() -> Result<Vec<u32>, ProbeError> {
    let entries = std::fs::read_dir("/proc")
        .map_err(|error| ProbeError::Step("list /proc".to_owned(), error))?;
    let names = entries.flatten().map(|entry| entry.file_name());
    Ok(names.filter_map(|name| name.to_str()?.parse().ok()).collect())
}

/// Counts what can be seen and tries whether given processes could be signalled.
pub(super) fn processes(args: &Arguments<'_>) -> Probed {
    let mut report = ProbeReport::default();
    report.fact("visible", visible()?.len());
    for at in 0..args.0.len() {
        let raw = args.number(at, "a process")? as i32;
        let outcome = Pid::from_raw(raw).map_or(Err(Errno::SRCH), test_kill_process);
        report.tried(format!("signal {raw}"), outcome);
        let path = format!("/proc/{raw}/status");
        let opened = open(Path::new(&path), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        report.tried(format!("read /proc/{raw}"), opened.map(drop));
    }
    Ok(report)
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
                if let Some(stdout) = &mut child.stdout {
                    // Before its first output it is still a copy of this process.
                    stdout.read_exact(&mut [0]).map_err(failed)?;
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
    let mut report = ProbeReport::default();
    report.tried("PTRACE_SEIZE", attempt::ptrace_seize(target.pid));
    Ok(report)
}

pub(super) fn memory_of(args: &Arguments<'_>) -> Probed {
    let target = Target::from(args)?;
    let mut report = ProbeReport::default();
    for file in ["mem", "exe", "fd", "cwd/.", "root/.", "fdinfo"] {
        let path = format!("/proc/{}/{file}", target.pid);
        let opened = open(Path::new(&path), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        report.tried(file, opened.map(drop));
    }
    for file in ["environ", "maps"] {
        let path = format!("/proc/{}/{file}", target.pid);
        report.tried(file, read_something(Path::new(&path)));
    }
    report.tried("process_vm_readv", attempt::read_memory_of(target.pid));
    Ok(report)
}

/// Nothing to be read is as good as a refusal.
fn read_something(path: &Path) -> Result<(), Errno> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    match rustix::io::read(&file, &mut [0; 1])? {
        0 => Err(Errno::NOENT),
        _ => Ok(()),
    }
}

pub(super) fn steal_descriptor(args: &Arguments<'_>) -> Probed {
    let target = Target::from(args)?;
    let mut report = ProbeReport::default();
    for number in 0..MAX_DESCRIPTORS {
        report.tried(format!("descriptor {number}"), attempt::steal_descriptor(target.pid, number));
        let path = format!("/proc/{}/fd/{number}", target.pid);
        report.answered(format!("read fd/{number}"), opened(&path, OFlags::RDONLY));
        report.answered(format!("write fd/{number}"), opened(&path, OFlags::WRONLY));
        // A name for it, which asks nobody, and then through the name.
        let named = open(Path::new(&path), OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let answer = match named {
            Ok(named) => opened(&format!("/proc/self/fd/{}", named.as_raw_fd()), OFlags::WRONLY),
            Err(error) => AttemptResult::Errno(error.raw_os_error()),
        };
        report.answered(format!("write through a name of fd/{number}"), answer);
    }
    report.fact("exit", args.number(1, "an exit code")?);
    Ok(report)
}

/// `/dev/null` does not count: any process can open it.
fn opened(path: &str, flags: OFlags) -> AttemptResult {
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match open(Path::new(path), flags, Mode::empty()) {
        Ok(file) => match rustix::fs::fstat(&file) {
            Ok(stat) if stat.st_rdev == rustix::fs::makedev(1, 3) => AttemptResult::Masked,
            _ => AttemptResult::Succeeded,
        },
        Err(error) => AttemptResult::Errno(error.raw_os_error()),
    }
}

/// Limits its target: a PID 1 without memory or descriptors would end the run.
pub(super) fn limit_of(args: &Arguments<'_>) -> Probed {
    let target = Target::from(args)?;
    let mut report = ProbeReport::default();
    for (name, resource) in [
        ("memory", libc::RLIMIT_AS),
        ("descriptors", libc::RLIMIT_NOFILE),
        ("time", libc::RLIMIT_CPU),
    ] {
        report.tried(name, attempt::set_limit_of(target.pid, resource));
    }
    Ok(report)
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
    let mut report = ProbeReport::default();
    for (name, flag) in ALL {
        let flag = *flag as u32 as u64;
        report.answered(format!("unshare {name}"), super::in_child(|| attempt::unshare_wide(flag)));
        // The old clone has no room for the time namespace: its bit is part of the exit signal.
        if *name != "time" {
            report
                .answered(format!("clone {name}"), super::in_child(|| attempt::clone_flags(flag)));
            let wide = flag | 1 << 40;
            report.answered(
                format!("clone {name}, high bit"),
                super::in_child(|| attempt::clone_flags(wide)),
            );
        }
    }
    let wide = libc::CLONE_NEWUSER as u64 | 1 << 40;
    report.answered("unshare user, high bit", super::in_child(|| attempt::unshare_wide(wide)));
    report.answered("clone3 user", super::in_child(attempt::clone3_new_user));
    Ok(report)
}

/// Reports the kernel's data about this process, and keeps running to be inspected from outside.
pub(super) fn facts(args: &Arguments<'_>) -> Probed {
    let mut report = ProbeReport::default();
    let status = std::fs::read_to_string("/proc/self/status")
        .map_err(|error| ProbeError::Step("read /proc/self/status".to_owned(), error))?;
    for line in status.lines() {
        if let Some((name, value)) = line.split_once(':') {
            report.fact(name, value.trim().replace('\t', " "));
        }
    }
    // gVisor does not list these two, and answers when it is asked.
    if report.get("NoNewPrivs").is_empty() {
        let set = rustix::thread::no_new_privs().unwrap_or(false);
        report.fact("NoNewPrivs", u32::from(set).to_string());
    }
    if report.get("CapAmb").is_empty() {
        report.fact("CapAmb", format!("{:x}", ambient_capabilities()));
    }
    let core = rustix::process::getrlimit(rustix::process::Resource::Core);
    report.fact("core limit", core.maximum.map_or("none".to_owned(), |limit| limit.to_string()));
    super::say_and_stay(&report, args.number(0, "milliseconds")?);
    Ok(report)
}

fn ambient_capabilities() -> u64 {
    use rustix::thread::{CapabilitySet, capability_is_in_ambient_set};
    let held = |number: &u32| {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        capability_is_in_ambient_set(capability).unwrap_or(false)
    };
    (0..64_u32).filter(held).fold(0, |set, number| set | 1 << number)
}

/// Ends as a program with a bug does.
pub(super) fn crash(_: &Arguments<'_>) -> Probed {
    // The first one only takes away the handler that looks for stack overflows.
    for _ in 0..2 {
        kill_process(rustix::process::getpid(), Signal::SEGV).map_err(ProbeError::step("crash"))?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(ProbeReport::default())
}

/// Sleeps until its time is over or its parent has ended.
pub(super) fn sleep(args: &Arguments<'_>) -> Probed {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let mut out = std::io::stdout();
    let _ = writeln!(out, "ready").and_then(|()| out.flush()); // read only by a case that waits for it
    std::thread::sleep(Duration::from_millis(args.number(0, "milliseconds")?.min(60_000)));
    Ok(ProbeReport::default())
}

/// Counts in a file, so that whoever has the file sees that this is alive: also where its process is
/// nobody's to see.
fn beat(args: &Arguments<'_>, file: usize) -> Result<(), ProbeError> {
    let path = args.path(file, "a file to count in")?;
    let until = Instant::now() + Duration::from_millis(args.number(0, "milliseconds")?.min(60_000));
    let mut count = 0_u64;
    while Instant::now() < until {
        count += 1;
        let _ = std::fs::write(path, count.to_string()); // the case notices a missing update
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Does not react to requests to stop. `MILLISECONDS WORD FILE`
pub(super) fn stubborn(args: &Arguments<'_>) -> Probed {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        attempt::ignore_signal(signal);
    }
    let mut out = std::io::stdout();
    let _ = writeln!(out, "ready").and_then(|()| out.flush()); // read only by a case that waits for it
    beat(args, 2)?;
    Ok(ProbeReport::default())
}

/// Leaves a process behind that has nothing in common with us any more. `MILLISECONDS WORD FILE`
pub(super) fn daemonize(args: &Arguments<'_>) -> Probed {
    if fork().map_err(ProbeError::step("fork"))?.is_none() {
        if begin_session().is_ok() && matches!(fork(), Ok(None)) {
            let _ = belljar_sys::close_from(0); // nothing of it is used again
            let _ = beat(args, 2); // an error cannot be reported
        }
        exit_now(0);
    }
    // Not before the second one is there.
    let path = args.path(2, "a file to count in")?;
    let until = Instant::now() + Duration::from_secs(10);
    while !path.exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(ProbeReport::default())
}

//! Exhausts resources. Each probe has its own bound, for the arm without limits.

use std::path::Path;
use std::time::Duration;

use belljar_linux::sys::attempt;
use belljar_linux::sys::process::{exit_now, fork};
use rustix::fs::{Mode, OFlags, inotify, open};
use rustix::io::Errno;
use rustix::process::{
    Resource, Rlimit, Signal, WaitOptions, getrlimit, kill_process, setrlimit, waitpid,
};

use super::{Arguments, ProbeError, Probed};
use crate::probe_report::ProbeReport;

/// Forks until that fails, or until there are enough; then takes them back.
pub(super) fn forks(args: &Arguments<'_>) -> Probed {
    let most = args.number(0, "how many")?.min(4096);
    let mut report = ProbeReport::default();
    let mut children = Vec::new();
    let mut result = Ok(());
    for _ in 0..most {
        match fork() {
            Ok(None) => {
                std::thread::sleep(Duration::from_secs(20));
                exit_now(0);
            }
            Ok(Some(child)) => children.push(child),
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    report.tried("fork", result);
    report.fact("children", children.len());
    for child in children {
        let _ = kill_process(child, Signal::KILL); // ended by itself is as good
        let _ = waitpid(Some(child), WaitOptions::empty());
    }
    Ok(report)
}

/// Fills memory, a mebibyte at a time.
pub(super) fn fill_memory(args: &Arguments<'_>) -> Probed {
    let mut report = ProbeReport::default();
    report.fact("mebibytes", fill(args.number(0, "how many MiB")?));
    Ok(report)
}

fn fill(most: u64) -> usize {
    const MEBIBYTE: usize = 1 << 20;
    let mut held: Vec<Vec<u8>> = Vec::new();
    for count in 0..most.min(1024) {
        // Not zero, or the kernel would not have to find memory for it.
        held.push(vec![(count % 255) as u8 + 1; MEBIBYTE]);
    }
    // All of it is looked at, so that none of it can be left out.
    held.iter().filter(|block| std::hint::black_box(block[block.len() - 1]) != 0).count()
}

/// The files that hold a group's memory limit, in the order in which they can be raised: on version 1
/// the one for memory alone cannot pass the one with swap.
pub(crate) const MEMORY_LIMITS: &[&str] =
    &["memory.memsw.limit_in_bytes", "memory.limit_in_bytes", "memory.swap.max", "memory.max"];

/// What the limit that a process carries itself is called where it is tried to be raised.
pub(crate) const OWN_LIMIT: &str = "raise its own limit";

/// A limit that a process sets for itself and may lift again.
pub(super) fn limit_softly(bytes: u64) -> Result<(), ProbeError> {
    let limit = Rlimit { current: Some(bytes), ..getrlimit(Resource::Data) };
    setrlimit(Resource::Data, limit).map_err(ProbeError::step("set a limit"))
}

/// Where there is none, nothing is tried.
fn raise_own_limit(report: &mut ProbeReport) {
    let limit = getrlimit(Resource::Data);
    if limit.current.is_some() {
        report.tried(OWN_LIMIT, setrlimit(Resource::Data, Rlimit { current: None, maximum: None }));
    }
}

/// `DIRECTORY MEBIBYTES FILE…`: lifts its own memory limit, by the given files and by a control group
/// file system that it mounts on the directory, `-` for nowhere; then uses the memory.
pub(super) fn raise_memory(args: &Arguments<'_>) -> Probed {
    let directory = args.path(0, "a directory")?;
    let most = args.number(1, "how many MiB")?;
    let mut report = ProbeReport::default();
    for file in args.all().skip(2) {
        report.tried(format!("write {}", file.to_string_lossy()), lift(Path::new(file)));
    }
    raise_own_limit(&mut report);
    let target = super::c_string(directory)?;
    let mut kinds = vec![(c"cgroup", c"memory"), (c"cgroup2", c"")];
    if directory == Path::new("-") {
        kinds.clear();
    } else {
        // Who has all rights in namespaces of its own may mount there.
        let own = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWCGROUP;
        report.tried("unshare", attempt::unshare(own));
    }
    for (kind, options) in kinds {
        let mounted = attempt::mount_type(kind, &target, options);
        report.tried(format!("mount {}", kind.to_string_lossy()), mounted);
        for name in MEMORY_LIMITS.iter().filter(|_| mounted.is_ok()) {
            let file = directory.join(name);
            if file.exists() {
                report.tried(format!("write the mounted {name}"), lift(&file));
            }
        }
    }
    // Now, since the kernel may end us at any moment from here on.
    super::print_report(&report);
    let filled = fill(most);
    report.fact("mebibytes", filled);
    Ok(report)
}

/// "No limit" is a number in version 1, and "max" in version 2.
fn lift(file: &Path) -> Result<(), Errno> {
    let value: &[u8] = if file.to_string_lossy().ends_with("_in_bytes") { b"-1" } else { b"max" };
    let opened = open(file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&opened, value).map(drop)
}

/// `COUNT HOLD-MS [LIMIT]`: takes inotify instances until that fails and keeps them; with a limit it is
/// set first, which only works in a user namespace of our own. Then says whether another process gets
/// one.
pub(super) fn inotify(args: &Arguments<'_>) -> Probed {
    let most = args.number(0, "how many")?.min(4096);
    if let Ok(limit) = args.text(2, "a limit") {
        let knob = "/proc/sys/user/max_inotify_instances";
        std::fs::write(knob, limit)
            .map_err(|error| ProbeError::Step(format!("write {knob}"), error))?;
    }
    let mut report = ProbeReport::default();
    let mut held = Vec::new();
    let mut result = Ok(());
    for _ in 0..most {
        match inotify::init(inotify::CreateFlags::CLOEXEC) {
            Ok(instance) => held.push(instance),
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    report.tried("inotify_init", result);
    report.fact("instances", held.len());
    report.answered(
        "another process",
        super::in_child(|| inotify::init(inotify::CreateFlags::CLOEXEC).map(drop)),
    );
    super::say_and_stay(&report, args.number(1, "milliseconds")?);
    Ok(report)
}

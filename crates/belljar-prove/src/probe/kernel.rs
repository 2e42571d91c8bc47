//! Tries further kernel interfaces.

use std::os::fd::{AsFd, AsRawFd};

use belljar_linux::sys::attempt;
use belljar_linux::sys::process::{begin_session, exec_descriptor, new_session_keyring};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, ptsname, unlockpt};

use super::{Arguments, ProbeError, Probed, in_child};
use crate::probe_report::ProbeReport;

/// Keys are not part of any namespace. The control uses a session of its own, which ends with it.
pub(super) fn keyring(args: &Arguments<'_>) -> Probed {
    if args.text(0, "given or own-session")? == "own-session" {
        new_session_keyring().map_err(ProbeError::step("make a session keyring"))?;
    }
    let mut report = ProbeReport::default();
    report.tried("add_key", attempt::add_key());
    report.tried("keyctl", attempt::keyctl());
    Ok(report)
}

pub(super) fn surface(args: &Arguments<'_>) -> Probed {
    let mut report = ProbeReport::default();
    for at in 0..args.0.len() {
        let name = args.text(at, "a call")?;
        let outcome = match name {
            "perf_event_open" => attempt::perf_event_open(),
            "bpf" => attempt::bpf(),
            "io_uring" => attempt::io_uring(),
            "userfaultfd" => attempt::userfaultfd(),
            _ => return Err(ProbeError::Argument("a call that is known")),
        };
        report.tried(name, outcome);
    }
    Ok(report)
}

/// Injects input into a terminal: a new one, so that no other is affected if it works.
pub(super) fn terminal(_: &Arguments<'_>) -> Probed {
    const TIOCSTI: u64 = 0x5412;
    const TIOCLINUX: u64 = 0x541c;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags).map_err(ProbeError::step("open a terminal"))?;
    unlockpt(&ours).map_err(ProbeError::step("unlock the terminal"))?;
    let theirs = match ioctl_tiocgptpeer(&ours, flags) {
        // gVisor knows it by its name only.
        Err(Errno::NOTTY) => ptsname(&ours, Vec::new()).and_then(|name| {
            open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
        }),
        opened => opened,
    };
    let theirs = theirs.map_err(ProbeError::step("open its other end"))?;
    let _ = begin_session(); // a leader already is as good
    let _ = rustix::process::ioctl_tiocsctty(&theirs); // one that we have already is as good
    let fd = theirs.as_fd().as_raw_fd();
    // Closing it hangs up its session: this process.
    attempt::ignore_signal(libc::SIGHUP);
    let mut report = ProbeReport::default();
    report.tried("TIOCSTI", attempt::ioctl(fd, TIOCSTI));
    report.tried("TIOCSTI, high bit", attempt::ioctl(fd, TIOCSTI | 1 << 32));
    report.tried("TIOCLINUX", attempt::ioctl(fd, TIOCLINUX));
    report.tried("TIOCLINUX, high bit", attempt::ioctl(fd, TIOCLINUX | 1 << 32));
    Ok(report)
}

pub(super) fn administration(_: &Arguments<'_>) -> Probed {
    const CALLS: &[&str] = &[
        "init_module",
        "finit_module",
        "delete_module",
        "kexec_load",
        "reboot",
        "swapon",
        "swapoff",
        "acct",
        "iopl",
        "ioperm",
        "syslog",
        "clock_settime",
        "settimeofday",
        "quotactl",
        "sethostname",
    ];
    let mut report = ProbeReport::default();
    for name in CALLS {
        if attempt::administrative(name).is_some() {
            report.answered(
                *name,
                in_child(|| attempt::administrative(name).unwrap_or(Err(Errno::NOSYS))),
            );
        }
    }
    Ok(report)
}

/// Executes a program that never was a file.
pub(super) fn fileless(_: &Arguments<'_>) -> Probed {
    const MFD_EXEC: u32 = 0x10;
    let program = std::fs::read("/proc/self/exe")
        .map_err(|error| ProbeError::Step("read our own program".to_owned(), error))?;
    let mut report = ProbeReport::default();
    for (name, flags) in [("memfd_create, plain", 0), ("memfd_create, executable", MFD_EXEC)] {
        let answer = in_child(|| {
            let file = attempt::memory_file(flags)?;
            let mut rest = program.as_slice();
            while !rest.is_empty() {
                let written = rustix::io::write(&file, rest)?;
                rest = rest.get(written..).unwrap_or_default();
            }
            // Becomes a probe that ends at once; an error comes back here.
            let argv = [c"probe", c"__probe", c"sleep", c"0"].map(Into::into);
            Err(exec_descriptor(file.as_fd(), &argv, &[]))
        });
        report.answered(name, answer);
    }
    Ok(report)
}

pub(super) fn core_limit(_: &Arguments<'_>) -> Probed {
    let mut report = ProbeReport::default();
    report.answered("raise the core limit", in_child(attempt::set_core_limit));
    Ok(report)
}

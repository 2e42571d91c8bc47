//! Tries dangerous arguments of allowed system calls.

use std::os::fd::AsFd;
use std::path::Path;

use belljar_linux::sys::{attempt, take};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, open, renameat_with};
use rustix::pty::{OpenptFlags, openpt};

use super::{Arguments, ProbeError, Probed};
use crate::probe_report::ProbeReport;

/// `MILLISECONDS FILE…`: takes a lease on each, and stays.
pub(super) fn lease(args: &Arguments<'_>) -> Probed {
    // The signal to a holder that another process waits. It would end, and with it the lease.
    attempt::ignore_signal(libc::SIGIO);
    let mut report = ProbeReport::default();
    let mut held = Vec::new();
    for path in args.all().skip(1) {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let taken = open(Path::new(path), flags, Mode::empty()).and_then(|file| {
            let taken = take::read_lease(file.as_fd());
            held.push(file);
            taken
        });
        report.tried(path.to_string_lossy(), taken);
    }
    super::say_and_stay(&report, args.number(0, "milliseconds")?);
    Ok(report)
}

/// Opens each for writing, unless that would block.
pub(super) fn open_now(args: &Arguments<'_>) -> Probed {
    let mut report = ProbeReport::default();
    for path in args.all() {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        report.tried(path.to_string_lossy(), open(Path::new(path), flags, Mode::empty()).map(drop));
    }
    Ok(report)
}

/// Renames a file and leaves what overlayfs takes for "deleted" in its place.
pub(super) fn whiteout(args: &Arguments<'_>) -> Probed {
    let directory = args.path(0, "a directory")?;
    let (from, to) = (directory.join("from"), directory.join("to"));
    std::fs::write(&from, b"x")
        .map_err(|error| ProbeError::Step(format!("make {}", from.display()), error))?;
    let mut report = ProbeReport::default();
    report.tried("whiteout", renameat_with(CWD, &from, CWD, &to, RenameFlags::WHITEOUT));
    Ok(report)
}

/// `FILE`: an attribute of the file, and the line discipline of a terminal.
pub(super) fn requests(args: &Arguments<'_>) -> Probed {
    let path = args.path(0, "a file")?;
    let mut report = ProbeReport::default();
    let opened = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let file = opened.map_err(ProbeError::step("open the file"))?;
    report.tried("FS_IOC_SETFLAGS", take::file_attribute(file.as_fd()));
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let terminal = openpt(flags).map_err(ProbeError::step("open a terminal"))?;
    report.tried("TIOCSETD", take::line_discipline(terminal.as_fd()));
    Ok(report)
}

/// Options that give a socket to another part of the kernel.
pub(super) fn socket_options(_: &Arguments<'_>) -> Probed {
    const UDP_ENCAP: i32 = 100;
    let mut report = ProbeReport::default();
    let tls = take::socket_option(libc::SOCK_STREAM, libc::IPPROTO_TCP, libc::TCP_ULP, b"tls");
    report.tried("TCP_ULP", tls);
    let tunnel = 2_i32.to_ne_bytes();
    report.tried(
        "UDP_ENCAP",
        take::socket_option(libc::SOCK_DGRAM, libc::IPPROTO_UDP, UDP_ENCAP, &tunnel),
    );
    Ok(report)
}

/// `DIRECTORY COUNT [mount]`: makes empty files until that fails, or until there are enough; then takes them back.
/// On a file system in memory without a limit that is mounted first, if so asked.
pub(super) fn many_files(args: &Arguments<'_>) -> Probed {
    let place = args.path(0, "a directory")?;
    if args.text(2, "mount").is_ok() {
        let target = super::c_string(place)?;
        attempt::mount_type(c"tmpfs", &target, c"nr_inodes=0")
            .map_err(ProbeError::step("mount a tmpfs"))?;
    }
    let directory = place.join("many");
    let most = args.number(1, "how many")?.min(2_000_000);
    std::fs::create_dir(&directory)
        .map_err(|error| ProbeError::Step("make a directory".to_owned(), error))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let (mut made, mut result) = (0_u64, Ok(()));
    while made < most {
        match open(directory.join(made.to_string()), flags, Mode::from_raw_mode(0o600)) {
            Ok(_) => made += 1,
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    let mut report = ProbeReport::default();
    report.tried("make a file", result);
    report.fact("files", made);
    let _ = std::fs::remove_dir_all(&directory); // in memory, and gone with the sandbox
    Ok(report)
}

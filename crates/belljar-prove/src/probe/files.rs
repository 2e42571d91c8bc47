//! Reads, writes and plants files where that must not be possible.

use std::ffi::OsStr;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_linux::sys::attempt;
use rustix::fs::{
    CWD, FileType, Mode, OFlags, RenameFlags, XattrFlags, fstat, linkat, open, renameat_with,
    setxattr,
};
use rustix::io::Errno;

use super::{Arguments, ProbeError, Probed, c_string};
use crate::probe_report::{AttemptResult, ProbeReport};

/// Most processes, entries or names that one probe looks at.
const MAX_COUNT: usize = 64;
const MAX_ENTRIES: usize = 50_000;

/// Reads a byte of each file, or the names in each directory.
pub(super) fn read(args: &Arguments<'_>) -> Probed {
    let mut report = ProbeReport::default();
    for path in args.all() {
        report.answered(path.to_string_lossy(), read_one(Path::new(path)));
        report.met(Path::new(path));
    }
    Ok(report)
}

fn read_one(path: &Path) -> AttemptResult {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = match open(path, flags, Mode::empty()) {
        Ok(opened) => opened,
        Err(error) => return AttemptResult::Errno(error.raw_os_error()),
    };
    let Ok(stat) = fstat(&opened) else { return AttemptResult::Succeeded };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => match std::fs::read_dir(path).map(Iterator::count) {
            Ok(0) => AttemptResult::Masked,
            Ok(_) => AttemptResult::Succeeded,
            Err(error) => AttemptResult::Errno(error.raw_os_error().unwrap_or(libc::EIO)),
        },
        FileType::CharacterDevice if stat.st_rdev == rustix::fs::makedev(1, 3) => {
            AttemptResult::Masked
        }
        FileType::RegularFile => {
            let mut byte = [0];
            AttemptResult::of(rustix::io::read(&opened, &mut byte).map(drop))
        }
        // Opening is as far as it goes: reading a device may wait, or do something.
        _ => AttemptResult::Succeeded,
    }
}

/// Opens each file to write to it, and writes nothing.
pub(super) fn open_to_write(args: &Arguments<'_>) -> Probed {
    let mut report = ProbeReport::default();
    for path in args.all() {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let answer = match open(Path::new(path), flags, Mode::empty()) {
            Ok(opened) => match fstat(&opened) {
                Ok(stat) if stat.st_rdev == rustix::fs::makedev(1, 3) => AttemptResult::Masked,
                _ => AttemptResult::Succeeded,
            },
            Err(error) => AttemptResult::Errno(error.raw_os_error()),
        };
        report.answered(path.to_string_lossy(), answer);
    }
    Ok(report)
}

/// Each path, seen from the root and the working directory of every process there is.
pub(super) fn read_through_proc(args: &Arguments<'_>) -> Probed {
    let mut report = ProbeReport::default();
    let own = std::process::id();
    let mut pids = super::processes::visible()?;
    // Itself last but never left out: a machine has more processes than are looked at.
    pids.retain(|pid| *pid != own);
    pids.truncate(MAX_COUNT);
    pids.push(own);
    for pid in &pids {
        for path in args.all() {
            let relative = Path::new(path).strip_prefix("/").unwrap_or(Path::new(path));
            for link in ["root", "cwd", "task"] {
                let through = match link {
                    "task" => PathBuf::from(format!("/proc/{pid}/task/{pid}/root")).join(relative),
                    link => PathBuf::from(format!("/proc/{pid}/{link}")).join(relative),
                };
                report.answered(through.to_string_lossy(), read_one(&through));
                report.met(&through);
            }
        }
    }
    report.fact("processes", pids.len());
    Ok(report)
}

/// Which descriptors this process began with, and whether one of them leads to a name.
pub(super) fn descriptors(args: &Arguments<'_>) -> Probed {
    let wanted = args.path(0, "the name to read")?;
    let mut report = ProbeReport::default();
    let mut numbers = Vec::new();
    let entries = std::fs::read_dir("/proc/self/fd")
        .map_err(|error| ProbeError::Step("list descriptors".to_owned(), error))?;
    for entry in entries.flatten() {
        let leads_to = std::fs::read_link(entry.path()).unwrap_or_default();
        // The one that this very listing opened.
        if !leads_to.ends_with(format!("proc/{}/fd", std::process::id())) {
            numbers.extend(entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
        }
    }
    numbers.sort_unstable();
    let shown: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    report.fact("open", shown.join(","));
    for number in (0..64).chain(numbers.into_iter().filter(|number| *number >= 64)) {
        let through = PathBuf::from(format!("/proc/self/fd/{number}")).join(wanted);
        report.answered(through.to_string_lossy(), read_one(&through));
        report.met(&through);
    }
    Ok(report)
}

/// The name that one of two has for a moment where they cannot be exchanged at once.
pub(crate) const SPARE: &str = "spare";

/// gVisor cannot do it in one step.
fn exchange(one: &Path, other: &Path) -> Result<(), Errno> {
    match renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            let spare = one.with_file_name(SPARE);
            for (from, to) in [(one, spare.as_path()), (other, one), (&spare, other)] {
                rustix::fs::rename(from, to)?;
            }
            Ok(())
        }
        outcome => outcome,
    }
}

/// Exchanges two names as fast as it can, for some time.
pub(super) fn flip(args: &Arguments<'_>) -> Probed {
    let (one, other) = (args.path(0, "a name")?, args.path(1, "another name")?);
    let until = Instant::now() + Duration::from_millis(args.number(2, "milliseconds")?.min(60_000));
    let mut out = std::io::stdout();
    let _ = writeln!(out, "flipping").and_then(|()| out.flush()); // read only by a case that waits for it
    let mut flips = 0_u64;
    while Instant::now() < until {
        exchange(one, other).map_err(ProbeError::step("exchange"))?;
        flips += 1;
    }
    let mut report = ProbeReport::default();
    report.fact("flips", flips);
    Ok(report)
}

/// Gives files of other places a second name in a directory.
pub(super) fn hard_link(args: &Arguments<'_>) -> Probed {
    let directory = args.path(0, "a directory")?;
    let mut report = ProbeReport::default();
    for (count, source) in args.all().skip(1).enumerate() {
        let name = directory.join(format!("linked-{count}"));
        let outcome = linkat(CWD, Path::new(source), CWD, &name, rustix::fs::AtFlags::empty());
        report.tried(source.to_string_lossy(), outcome);
    }
    Ok(report)
}

/// Leaves a link to a path of the host for a later run.
pub(super) fn plant_link(args: &Arguments<'_>) -> Probed {
    let (name, to) = (args.path(0, "a name")?, args.path(1, "where it leads")?);
    let mut report = ProbeReport::default();
    report.tried("plant", rustix::fs::symlink(to, name));
    Ok(report)
}

/// Leaves a file with a text for a later run.
pub(super) fn write_file(args: &Arguments<'_>) -> Probed {
    let (name, text) = (args.path(0, "a name")?, args.text(1, "a text")?);
    let written = std::fs::write(name, text)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
    let mut report = ProbeReport::default();
    report.tried("write", written);
    Ok(report)
}

/// Device nodes of the disk, of memory, and overlayfs's own.
pub(super) fn nodes(args: &Arguments<'_>) -> Probed {
    let directory = args.path(0, "a directory")?;
    let mut report = ProbeReport::default();
    for (name, mode, major, minor) in [
        ("block 254:0", libc::S_IFBLK, 254, 0),
        ("memory 1:1", libc::S_IFCHR, 1, 1),
        ("deleted 0:0", libc::S_IFCHR, 0, 0),
    ] {
        let path = c_string(directory.join(name.replace([' ', ':'], "-")))?;
        let device = rustix::fs::makedev(major, minor);
        report.tried(name, attempt::make_node(&path, mode | 0o600, device));
    }
    Ok(report)
}

/// The setuid and the setgid bit, through every call that can set one.
pub(super) fn setuid(args: &Arguments<'_>) -> Probed {
    const CHANGES: &[&str] = &["chmod", "fchmodat", "fchmodat2", "fchmod"];
    const MAKES: &[&str] =
        &["open", "openat", "openat2", "creat", "mknod", "mknodat", "mkdir", "mkdirat"];
    let directory = args.path(0, "a directory")?;
    rustix::process::umask(Mode::empty());
    let mut report = ProbeReport::default();
    for (bit, mode) in [("setuid", 0o4755), ("setgid", 0o2755)] {
        for call in CHANGES.iter().chain(MAKES) {
            let path = directory.join(format!("{bit}-{call}"));
            if CHANGES.contains(call) {
                std::fs::write(&path, b"x")
                    .map_err(|error| ProbeError::Step(format!("make {}", path.display()), error))?;
            }
            let outcome = match *call {
                "fchmod" => std::fs::File::open(&path)
                    .map_err(|_| Errno::IO)
                    .and_then(|file| attempt::fchmod(file.as_raw_fd(), mode)),
                call => match attempt::create_with_mode(call, &c_string(&path)?, mode) {
                    Some(outcome) => outcome,
                    None => continue, // not a call of this processor
                },
            };
            report.tried(format!("{bit} by {call}"), outcome);
        }
    }
    Ok(report)
}

/// Changes what is in a file that has a bit already, by a method that keeps the bit.
pub(super) fn rewrite(args: &Arguments<'_>) -> Probed {
    let mut report = ProbeReport::default();
    for path in args.all() {
        let opened = open(Path::new(path), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let outcome = opened.and_then(|file| attempt::write_by_mapping(&file, b'X'));
        report.tried(path.to_string_lossy(), outcome);
    }
    Ok(report)
}

/// A file capability, which would apply to every user that executes the file on the host.
pub(super) fn file_capability(args: &Arguments<'_>) -> Probed {
    let path = args.path(0, "a file")?;
    std::fs::write(path, b"x")
        .map_err(|error| ProbeError::Step(format!("make {}", path.display()), error))?;
    // Version 2, effective, cap_net_raw permitted.
    let mut capability = [0_u8; 20];
    capability[..8].copy_from_slice(&[1, 0, 0, 2, 0, 0x20, 0, 0]);
    let mut report = ProbeReport::default();
    report.tried(
        "security.capability",
        setxattr(path, "security.capability", &capability, XattrFlags::empty()),
    );
    Ok(report)
}

/// The attributes that make overlayfs redirect or hide lower entries.
pub(super) fn overlay_attributes(args: &Arguments<'_>) -> Probed {
    let (directory, elsewhere) = (args.path(0, "a directory")?, args.text(1, "where to")?);
    let mut report = ProbeReport::default();
    for (name, value) in [
        ("trusted.overlay.redirect", elsewhere.as_bytes()),
        ("trusted.overlay.opaque", b"y"),
        ("user.overlay.redirect", elsewhere.as_bytes()),
        ("user.overlay.opaque", b"y"),
    ] {
        report.tried(name, setxattr(directory, name, value, XattrFlags::empty()));
    }
    Ok(report)
}

/// Looks for names everywhere but in the system's own trees, and tries to write to what it finds.
pub(super) fn find(args: &Arguments<'_>) -> Probed {
    let from = args.path(0, "where to begin")?;
    let names: Vec<&OsStr> = args.all().skip(1).collect();
    let mut report = ProbeReport::default();
    let mut todo = vec![from.to_owned()];
    let mut seen = 0_usize;
    while let Some(directory) = todo.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            seen += 1;
            let path = entry.path();
            let matches = names.iter().any(|name| is_like(&entry.file_name(), name));
            if matches {
                report.met(&path);
                let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                report.tried(path.to_string_lossy(), open(&path, flags, Mode::empty()).map(drop));
            }
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let skipped =
                ["/proc", "/usr", "/sys", "/dev"].iter().any(|tree| path == Path::new(tree));
            if is_directory && !skipped && seen < MAX_ENTRIES {
                todo.push(path);
            }
        }
    }
    report.fact("entries", seen);
    Ok(report)
}

/// `*.end` matches an end, anything else itself.
fn is_like(name: &OsStr, pattern: &OsStr) -> bool {
    use std::os::unix::ffi::OsStrExt;
    match pattern.as_bytes().strip_prefix(b"*") {
        Some(end) => name.as_bytes().ends_with(end),
        None => name == pattern,
    }
}

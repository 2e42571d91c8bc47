//! Reads back the confinement of this process, and tries what must not work.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use belljar_spec::wire::{ExecRequest, InitSetup};
use belljar_spec::{
    Attempt, AttemptResult, Attestation, BriefAttestation, CapabilitySets, Ids, OsText,
    SeenDescriptor, SeenMount,
};
use belljar_sys::mountinfo::{MountLine, MountTable, Propagation};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, makedev, openat, statx, unlinkat};
use rustix::io::Errno;

use super::confine::{ConfineError, Readback};
use crate::jail::normal_map;
use crate::sys::attempt;
use crate::user_limits::{self, resource};

pub(super) fn attest(
    setup: &InitSetup,
    request: &ExecRequest,
    readback: Readback,
) -> Result<Attestation, ConfineError> {
    let status = read("/proc/self/status")?;
    let status = Status(&status);
    Ok(Attestation {
        pid: std::process::id(),
        parent: rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get() as u32),
        kernel: belljar_sys::kernel(),
        uids: status.ids("Uid:"),
        gids: status.ids("Gid:"),
        groups: status.groups(),
        uid_map: normal_map(&read("/proc/self/uid_map")?),
        gid_map: normal_map(&read("/proc/self/gid_map")?),
        capabilities: status.capabilities(),
        no_new_privileges: status.no_new_privileges(),
        seccomp_mode: status.number("Seccomp:", 10) as u32,
        seccomp_filters: status.number("Seccomp_filters:", 10) as u32,
        landlock: readback.landlock,
        namespaces: belljar_sys::namespaces(),
        dies_with_launcher: readback.dies_with_launcher,
        init: readback.init,
        hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        mounts: mounts()?,
        interfaces: interfaces()?,
        descriptors: descriptors()?,
        rlimits: rlimits(setup),
        environment: environment(request),
        wrote: setup.write_check.iter().filter(|place| can_write(place)).cloned().collect(),
        attempts: attempts(),
    })
}

/// Only what can differ between two commands of one sandbox, in few calls.
pub(super) fn attest_brief(
    setup: &InitSetup,
    request: &ExecRequest,
) -> Result<BriefAttestation, ConfineError> {
    let status = read("/proc/self/status")?;
    let status = Status(&status);
    Ok(BriefAttestation {
        uids: status.ids("Uid:"),
        gids: status.ids("Gid:"),
        groups: status.groups(),
        capabilities: status.capabilities(),
        no_new_privileges: status.no_new_privileges(),
        seccomp_mode: status.number("Seccomp:", 10) as u32,
        seccomp_filters: status.number("Seccomp_filters:", 10) as u32,
        descriptors: descriptors()?,
        rlimits: rlimits(setup),
        environment: environment(request),
    })
}

fn environment(request: &ExecRequest) -> Vec<OsText> {
    request.env.keys().map(|name| OsText::from(name.as_str())).collect()
}

fn read(path: &'static str) -> Result<String, ConfineError> {
    belljar_sys::kernel_file::read_text(path).map_err(|error| ConfineError::Read(path, error))
}

/// `/proc/self/status`. A line that is missing reads as all bits set, which no comparison accepts.
struct Status<'a>(&'a str);

impl Status<'_> {
    fn numbers(&self, key: &str, radix: u32) -> impl Iterator<Item = u64> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.split_whitespace()
            .map(move |field| u64::from_str_radix(field, radix).unwrap_or(u64::MAX))
    }

    fn number(&self, key: &str, radix: u32) -> u64 {
        self.numbers(key, radix).next().unwrap_or(u64::MAX)
    }

    fn groups(&self) -> Vec<u32> {
        self.numbers("Groups:", 10).map(|gid| gid as u32).collect()
    }

    fn capabilities(&self) -> CapabilitySets {
        CapabilitySets {
            inheritable: self.number("CapInh:", 16),
            permitted: self.number("CapPrm:", 16),
            effective: self.number("CapEff:", 16),
            bounding: self.number("CapBnd:", 16),
            ambient: match self.has("CapAmb:") {
                true => self.number("CapAmb:", 16),
                false => ambient_set(),
            },
        }
    }

    fn has(&self, key: &str) -> bool {
        self.0.lines().any(|line| line.starts_with(key))
    }

    /// gVisor does not list it here, and reports it when asked.
    fn no_new_privileges(&self) -> bool {
        match self.has("NoNewPrivs:") {
            true => self.number("NoNewPrivs:", 10) == 1,
            false => rustix::thread::no_new_privs().unwrap_or(false),
        }
    }

    fn ids(&self, key: &str) -> Ids {
        let mut ids = self.numbers(key, 10).map(|id| id as u32);
        let mut next = || ids.next().unwrap_or(u32::MAX);
        Ids { real: next(), effective: next(), saved: next() }
    }
}

/// One by one. A kernel without ambient capabilities, such as gVisor's, refuses every question alike.
fn ambient_set() -> u64 {
    use rustix::thread::{CapabilitySet, capability_is_in_ambient_set};
    let held = |number: &u32| {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        capability_is_in_ambient_set(capability).unwrap_or(false)
    };
    (0..64_u32).filter(held).fold(0, |set, number| set | 1 << number)
}

fn mounts() -> Result<Vec<SeenMount>, ConfineError> {
    let table =
        MountTable::read().map_err(|error| ConfineError::Read("/proc/self/mountinfo", error))?;
    let seen = table.0.into_iter().map(|line| {
        let Reached { device, inode, covered } = reach(&line);
        let has = |flag: &str| line.options.split(',').any(|option| option == flag);
        SeenMount {
            target: OsText::from(line.mount_point.as_path()),
            device,
            inode,
            covered,
            read_only: has("ro"),
            nosuid: has("nosuid"),
            nodev: has("nodev"),
            propagates: line.propagation != Propagation::Private,
            size: (line.fstype == "tmpfs").then(|| size(&line.mount_point)).flatten(),
            fstype: line.fstype,
        }
    });
    Ok(seen.collect())
}

/// What the path of a mount leads to.
struct Reached {
    device: u64,
    inode: u64,
    covered: bool,
}

/// What cannot be read has no identity, and is refused where one is expected. gVisor does not number mounts: there only
/// one whose path leads nowhere is known to be covered.
fn reach(line: &MountLine) -> Reached {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    match statx(CWD, &line.mount_point, flags, wanted) {
        Ok(found) => {
            let is_numbered = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
            Reached {
                device: makedev(found.stx_dev_major, found.stx_dev_minor),
                inode: found.stx_ino,
                covered: is_numbered && found.stx_mnt_id != line.id,
            }
        }
        Err(error) => {
            let covered = matches!(error, Errno::NOENT | Errno::NOTDIR);
            Reached { device: 0, inode: 0, covered }
        }
    }
}

/// Of the file system that is visible there.
fn size(place: &std::path::Path) -> Option<u64> {
    let found = rustix::fs::statvfs(place).ok()?;
    found.f_blocks.checked_mul(found.f_frsize)
}

fn interfaces() -> Result<Vec<String>, ConfineError> {
    let table = read("/proc/self/net/dev")?;
    Ok(table
        .lines()
        .skip(2)
        .filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()))
        .collect())
}

/// The descriptors that the command will have: what closes at the `exec` is left out.
fn descriptors() -> Result<Vec<SeenDescriptor>, ConfineError> {
    let path = "/proc/self/fd";
    let entries = std::fs::read_dir(path).map_err(|error| ConfineError::Read(path, error))?;
    let mut numbers: Vec<u32> = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| ConfineError::Read(path, error))?;
        numbers.extend(entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    numbers.sort_unstable();
    let mut open = Vec::new();
    for number in numbers {
        if crate::sys::process::survives_exec(number as i32) {
            let refers_to = std::fs::read_link(format!("{path}/{number}")).unwrap_or_default();
            open.push(SeenDescriptor { number, refers_to: OsText::from(refers_to) });
        }
    }
    Ok(open)
}

/// The plan's, and those on what the kernel counts for a user.
fn rlimits(setup: &InitSetup) -> BTreeMap<String, u64> {
    let mut limits = user_limits::read_back();
    for name in setup.rlimits.iter().map(|limit| &limit.name) {
        if let Some(resource) = resource(name) {
            // Only a hard limit holds.
            let limit = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
            limits.insert(name.clone(), limit);
        }
    }
    limits
}

fn can_write(place: &OsText) -> bool {
    let path = place.as_path().join(format!(".belljar-check-{}", std::process::id()));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let made = openat(CWD, &path, flags, Mode::from_raw_mode(0o600));
    made.is_ok() && unlinkat(CWD, &path, AtFlags::empty()).is_ok()
}

fn attempts() -> Vec<Attempt> {
    const AF_VSOCK: i32 = 40;
    let tried = [
        ("open a descriptor of process 1", open_descriptor_of_init()),
        ("open /proc/1/mem", open(c"/proc/1/mem", OFlags::RDWR)),
        ("read /proc/1/environ", read_something(c"/proc/1/environ")),
        ("trace process 1", attempt::ptrace_seize(1)),
        ("make a user namespace", attempt::unshare(libc::CLONE_NEWUSER)),
        ("open an AF_VSOCK socket", attempt::socket(AF_VSOCK, libc::SOCK_STREAM, 0)),
        ("mount", attempt::mount_tmpfs(c"/tmp")),
        // On no file at all: without the filter, the error is another one.
        ("set the setuid bit", attempt::fchmod(-1, 0o4755)),
    ];
    tried
        .into_iter()
        .map(|(call, outcome)| Attempt { call: call.to_owned(), answer: answer(outcome) })
        .collect()
}

/// gVisor lets any process list them, and open those that any process could open by name; what counts is whether
/// one can be opened that only PID 1 has: any but `/dev/null`.
fn open_descriptor_of_init() -> Result<(), Errno> {
    // Where the directory cannot be reached at all, nothing in it can.
    let place = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, c"/proc/1/fd", place, Mode::empty())?;
    let mut last = Errno::NOENT;
    for number in 0..32 {
        let name = rustix::path::DecInt::new(number);
        for flags in [OFlags::RDONLY, OFlags::WRONLY] {
            let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
            match openat(&directory, name.as_c_str(), flags, Mode::empty()) {
                Ok(fd) if is_null_device(&fd) => {}
                Ok(_) => return Ok(()),
                Err(Errno::NOENT) => {}
                Err(error) => last = error,
            }
        }
    }
    Err(last)
}

fn is_null_device(fd: &std::os::fd::OwnedFd) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device()
            && stat.st_rdev == rustix::fs::makedev(1, 3)
    })
}

/// Nothing to be read is as good as a refusal.
fn read_something(path: &CStr) -> Result<(), Errno> {
    let fd = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    match rustix::io::read(&fd, &mut [0; 1])? {
        0 => Err(Errno::NOENT),
        _ => Ok(()),
    }
}

fn answer(outcome: Result<(), Errno>) -> AttemptResult {
    match outcome {
        Ok(()) => AttemptResult::Succeeded,
        Err(error) => AttemptResult::Errno(error.raw_os_error()),
    }
}

fn open(path: &CStr, flags: OFlags) -> Result<(), Errno> {
    let at: BorrowedFd<'_> = CWD;
    openat(at, path, flags | OFlags::CLOEXEC, Mode::empty()).map(drop)
}

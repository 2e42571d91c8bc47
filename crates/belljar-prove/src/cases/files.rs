//! Attacks on the host's files and kernel settings.

use std::path::{Path, PathBuf};

use belljar_spec::Clause;

use super::judge::{
    EACCES, ENOENT, EPERM, EROFS, EXDEV, anywhere, hosts_own, judge, nothing_of_the_hosts, usual,
};
use crate::case::{Case, Severity, Verdict};
use crate::probe_report::AttemptResult;
use crate::testbed::{Run, TestBed, TestBedError, Unprotected};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "fs.credentials",
        attack: "read keys and tokens in the home directory, and /etc/shadow",
        clause: Clause::FsMounts,
        severity: Severity::Critical,
        run: credentials,
    },
    Case {
        name: "fs.kernel-files",
        attack: "open memory, disks and other devices of the host",
        clause: Clause::FsMounts,
        severity: Severity::Critical,
        run: kernel_files,
    },
    Case {
        name: "fs.write-sysctl",
        attack: "write /proc/sys, which is the whole kernel's",
        clause: Clause::FsReadonly,
        severity: Severity::Critical,
        run: write_sysctl,
    },
    Case {
        name: "fs.kernel-knobs",
        attack: "write sysrq-trigger, binfmt_misc, uevent_helper and the like",
        clause: Clause::FsReadonly,
        severity: Severity::Critical,
        run: kernel_knobs,
    },
    Case {
        name: "fs.hard-link-out",
        attack: "give a read-only file a second name in a writable tree",
        clause: Clause::FsReadonly,
        severity: Severity::High,
        run: hard_link_out,
    },
    Case {
        name: "limit.leave-cgroup",
        attack: "write itself into another control group, allow itself devices",
        clause: Clause::LimitMemory,
        severity: Severity::High,
        run: leave_cgroup,
    },
];

fn credentials(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let home = testbed.user_home();
    let planted = [
        ".ssh/id_ed25519",
        ".aws/credentials",
        ".netrc",
        ".npmrc",
        ".docker/config.json",
        ".kube/config",
    ];
    let canary = testbed.unique_name()?;
    let mut paths: Vec<PathBuf> = Vec::new();
    let mut texts: Vec<String> = Vec::new();
    for name in planted {
        let path = home.join(name);
        if let Some(parent) = path.parent().filter(|parent| !parent.exists()) {
            testbed.directory(parent, 0o755)?;
        }
        let text = format!("{canary} in {name}\n");
        testbed.file(&path, &text)?;
        paths.push(path);
        texts.push(text);
    }
    let workspace = testbed.workspace()?;
    let real = ["/etc/shadow", "/etc/gshadow", "/root/.ssh", "/root/.bashrc"].map(PathBuf::from);
    let own = planted.map(|name| Path::new("/home/agent").join(name));
    let run = Run::of(&workspace, "read").args(&paths).args(&real).args(&own);
    let inside = testbed.inside(&run)?.report()?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    // Which of these a host has differs, and not everybody may read them; where they are, they are known.
    let argv = ["read".as_ref()].into_iter().chain(real.iter().map(|path| path.as_os_str()));
    let of_the_host = testbed.outside(Unprotected::Directly, argv)?.report()?;
    if let Some(verdict) = hosts_own(&inside, &of_the_host, &texts) {
        return Ok(verdict);
    }
    let argv = ["read".as_ref()].into_iter().chain(paths.iter().map(|path| path.as_os_str()));
    let control = testbed.outside(Unprotected::Directly, argv)?.report()?;
    Ok(nothing_of_the_hosts(&inside, &control, &texts))
}

/// The same absolute paths on both arms.
fn same_paths(
    testbed: &TestBed,
    probe: &str,
    paths: &[&str],
    allowed: &[AttemptResult],
) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside = testbed.inside(&Run::of(&workspace, probe).args(paths))?.report()?;
    let control = testbed.outside(Unprotected::Directly, [probe].iter().chain(paths))?.report()?;
    Ok(judge(&inside, &control, allowed, anywhere))
}

/// Devices that an application kernel has of its own: nothing of the host is behind them, and no process
/// of the host opens the host's when one of them is opened.
const OF_ITS_OWN: &[&str] = &["/dev/fuse", "/dev/net/tun"];

fn kernel_files(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let mut paths = vec![
        "/dev/mem",
        "/dev/kmsg",
        "/dev/kvm",
        "/dev/vda",
        "/dev/sda",
        "/dev/nvme0n1",
        "/dev/fuse",
        "/dev/vsock",
        "/dev/vhost-vsock",
        "/dev/net/tun",
        "/dev/loop-control",
        "/dev/loop0",
        "/dev/mapper/control",
        "/dev/hpet",
        "/dev/port",
        "/dev/input",
        "/dev/userfaultfd",
        "/proc/kcore",
        "/proc/kallsyms",
        "/proc/keys",
        "/proc/timer_list",
        "/sys/kernel/debug",
        "/sys/kernel/security",
        "/sys/kernel",
        "/sys/firmware",
        "/sys/fs/cgroup",
    ];
    if testbed.kernel_is_separate() {
        paths.retain(|path| !OF_ITS_OWN.contains(path));
    }
    // An image may have one too.
    let workspace = testbed.workspace()?;
    let inside = testbed.inside(&Run::of(&workspace, "read").arg("/boot"))?.report()?;
    let control = testbed.outside(Unprotected::Directly, ["read", "/boot"])?.report()?;
    if let Some(verdict) = hosts_own(&inside, &control, &[]) {
        return Ok(verdict);
    }
    // kcore asks for a capability; what is masked is empty.
    same_paths(testbed, "read", &paths, &[ENOENT, EPERM, EACCES, AttemptResult::Masked])
}

fn write_sysctl(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let paths = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/kernel/hotplug",
        "/proc/sys/kernel/randomize_va_space",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/vm/drop_caches",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sys/fs/protected_hardlinks",
        "/proc/sys/user/max_user_namespaces",
    ];
    same_paths(testbed, "open-to-write", &paths, &[EROFS, EACCES, ENOENT])
}

fn kernel_knobs(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let paths = [
        "/proc/sysrq-trigger",
        "/proc/sys/fs/binfmt_misc/register",
        "/sys/kernel/uevent_helper",
        "/sys/power/state",
        "/sys/kernel/mm/ksm/run",
        "/sys/module/kernel/parameters/panic",
        "/proc/mtrr",
        "/proc/irq/default_smp_affinity",
        "/proc/acpi/wakeup",
        "/proc/scsi/scsi",
    ];
    same_paths(
        testbed,
        "open-to-write",
        &paths,
        &[EROFS, EACCES, ENOENT, EPERM, AttemptResult::Masked],
    )
}

fn hard_link_out(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let (workspace, given) = (testbed.workspace()?, testbed.place()?);
    testbed.file(&given.join("file"), "read-only\n")?;
    let run = Run::of(&workspace, "hard-link").mount(&given, "/ro").args([
        "/workspace",
        "/ro/file",
        "/ro/file",
    ]);
    let inside = testbed.inside(&run)?.report()?;
    let out = testbed.place()?;
    let file = given.join("file");
    let argv = ["hard-link".as_ref(), out.as_os_str(), file.as_os_str(), file.as_os_str()];
    let control = testbed.outside(Unprotected::Directly, argv)?.report()?;
    let links = std::fs::metadata(workspace.join("linked-0")).is_ok();
    if links {
        return Ok(Verdict::broke("the host has a second name for it"));
    }
    Ok(judge(&inside, &control, &[EXDEV, EROFS, EPERM], usual))
}

fn leave_cgroup(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let mounts =
        std::fs::read_to_string("/proc/self/mounts").map_err(TestBedError::io("read mounts"))?;
    let mut paths: Vec<String> = Vec::new();
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        if let [_, at, "cgroup" | "cgroup2", ..] = fields[..] {
            paths.extend(
                ["cgroup.procs", "tasks", "devices.allow", "release_agent"]
                    .map(|file| format!("{at}/{file}")),
            );
        }
    }
    if paths.is_empty() {
        return Ok(Verdict::not_tried("no control groups are mounted on this host"));
    }
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    same_paths(testbed, "open-to-write", &paths, &[ENOENT, EROFS])
}

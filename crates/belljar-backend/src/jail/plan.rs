//! From a run's specification to what the jail will do. No I/O: the same input gives the same plan.

use belljar_spec::{
    Access, BackendName, CgroupUse, CommandPlan, HostUid, Identity, MountKind, MountMode,
    Namespace, OsText, PLAN_VERSION, Plan, PlannedMount, Presence, Rlimit, Rootfs, RunSpec, Source,
    Tmpfs, Tree,
};

use super::{posture, rootfs};
use crate::backend::{Capabilities, PlanError};

pub(super) const HOSTNAME: &str = "belljar";
/// Where `$HOME` is inside.
pub(super) const HOME: &str = "/home/agent";
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];
const TMP_SIZE: u64 = 1 << 30;
const SHM_SIZE: u64 = 256 << 20;

/// Knobs and facts of the host's kernel in `/proc`: readable where programs need them.
const PROC_READ_ONLY: &[&str] =
    &["/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/sysrq-trigger"];
/// What tells of the host and could be read without being root. Files that only root can open need no
/// cover: nobody inside is root, here or outside.
const PROC_MASKED: &[&str] = &[
    "/proc/cmdline",
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/kallsyms",
    "/proc/modules",
    "/proc/sched_debug",
    "/proc/latency_stats",
    "/proc/acpi",
    "/proc/asound",
    "/proc/scsi",
];

pub(super) fn plan(spec: &RunSpec, capabilities: &Capabilities) -> Result<Plan, PlanError> {
    refuse_what_is_not_there(spec)?;
    let mut mounts = rootfs::mounts(&spec.rootfs, spec.user, HOSTNAME);
    mounts.push(PlannedMount {
        target: OsText::from("/proc"),
        what: MountKind::Proc { read_only: owned(PROC_READ_ONLY), masked: owned(PROC_MASKED) },
    });
    mounts.push(PlannedMount {
        target: OsText::from("/dev"),
        what: MountKind::Dev { nodes: owned(DEVICES), shm_size: SHM_SIZE },
    });
    mounts.push(tmpfs(&Tmpfs { target: OsText::from("/tmp"), size: TMP_SIZE }));
    if spec.rootfs == Rootfs::Host {
        mounts.push(tmpfs(&Tmpfs { target: OsText::from("/var/tmp"), size: TMP_SIZE }));
    }
    mounts.push(PlannedMount {
        target: OsText::from(HOME),
        what: MountKind::Bind {
            source: Source::RunHome,
            access: Access::Writable,
            presence: Presence::Required,
            tree: Tree::Own,
        },
    });
    mounts.extend(spec.tools.iter().map(|tool| bind(tool, tool, Access::ReadOnly, Tree::Tool)));
    // Parents before children, whatever the order they were given in.
    let mut given: Vec<PlannedMount> = spec
        .workspace
        .iter()
        .chain(&spec.mounts)
        .map(|mount| bind(&mount.source, &mount.target, access(mount.mode), Tree::User))
        .chain(spec.tmpfs.iter().map(tmpfs))
        .collect();
    given.sort_by_key(|mount| mount.target.as_path().components().count());
    mounts.extend(given);

    Ok(Plan {
        v: PLAN_VERSION,
        backend: BackendName::Jail,
        hostname: HOSTNAME.to_owned(),
        pod: vec![Namespace::User, Namespace::Network],
        sandbox: vec![
            Namespace::User,
            Namespace::Mount,
            Namespace::Pid,
            Namespace::Ipc,
            Namespace::Uts,
            Namespace::Cgroup,
        ],
        identity: Identity {
            inside: spec.user,
            host: if capabilities.may_choose_uids { HostUid::PerRun } else { HostUid::Caller },
        },
        mounts,
        allow_source: spec.allow_source.clone(),
        shielded: spec.manifest.iter().cloned().collect(),
        limits: spec.limits.clone(),
        cgroup: capabilities.cgroup,
        rlimits: rlimits(spec, capabilities),
        filter: "command".to_owned(),
        command: CommandPlan {
            argv: spec.command.clone(),
            env: spec.env.clone(),
            workdir: spec.workdir.clone(),
            stdin: spec.stdin,
            terminal: spec.terminal,
        },
        posture: posture::posture(spec, capabilities),
    })
}

/// What the manifest can say and this version does not do is an error, never silently less.
fn refuse_what_is_not_there(spec: &RunSpec) -> Result<(), PlanError> {
    let unsupported = |what: &str, why: &str| {
        let (what, why) = (what.to_owned(), why.to_owned());
        Err(PlanError::Unsupported { backend: BackendName::Jail, what, why })
    };
    if !spec.network_allow.is_empty() {
        return unsupported(
            "network.allow",
            "this version has no way out of the sandbox at all; leave it empty",
        );
    }
    let overlays =
        spec.workspace.iter().chain(&spec.mounts).any(|mount| mount.mode == MountMode::Overlay);
    if overlays {
        return unsupported("the mount mode \"overlay\"", "this version has only ro and rw");
    }
    if !spec.hide.is_empty() {
        return unsupported("sandbox.hide", "this version shows the whole workspace");
    }
    Ok(())
}

fn rlimits(spec: &RunSpec, capabilities: &Capabilities) -> Vec<Rlimit> {
    let limit = |name: &str, value: u64| Rlimit { name: name.to_owned(), value };
    let mut limits = vec![
        // 1 and not 0: with 0 the kernel would still start a core handler on the host.
        limit("core", 1),
        limit("nofile", capabilities.most_files),
    ];
    if let Some(pids) = spec.limits.pids {
        // Counted in the run's own user namespace.
        limits.push(limit("nproc", u64::from(pids)));
    }
    if let (CgroupUse::None, Some(memory)) = (capabilities.cgroup, spec.limits.memory) {
        // What a process can fill, not what it can reserve: runtimes reserve far more than they use.
        limits.push(limit("data", memory));
    }
    limits
}

fn bind(source: &OsText, target: &OsText, access: Access, tree: Tree) -> PlannedMount {
    let source = Source::Path { path: source.clone() };
    let presence = Presence::Required;
    PlannedMount {
        target: target.clone(),
        what: MountKind::Bind { source, access, presence, tree },
    }
}

fn tmpfs(tmpfs: &Tmpfs) -> PlannedMount {
    let what = MountKind::Tmpfs { size: tmpfs.size, mode: 0o1777 };
    PlannedMount { target: tmpfs.target.clone(), what }
}

fn access(mode: MountMode) -> Access {
    match mode {
        MountMode::Ro => Access::ReadOnly,
        // Overlay was refused above; it is writable inside by nature.
        MountMode::Rw | MountMode::Overlay => Access::Writable,
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

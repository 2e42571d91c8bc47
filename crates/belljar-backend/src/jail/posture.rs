//! Describes how the jail holds each clause on this host.

use belljar_spec::{Clause, DeniedCalls, Enforcement, MountMode, Posture, Rlimit, Rootfs, RunSpec};

use crate::backend::{Capabilities, Weakness};
use crate::egress;
use crate::planning::{has_overlay, is_set, memory_of_each_process, no_limit};

/// `rlimits`: what every process of the plan gets, and the attestation reads back. A text names one only if
/// it is among them.
pub(super) fn posture(spec: &RunSpec, capabilities: &Capabilities, rlimits: &[Rlimit]) -> Posture {
    let mut posture = Posture::nothing_held("the jail gave no answer");
    for (clause, how) in [
        (
            Clause::FsMounts,
            "own mount namespace and root; mounted by descriptor; table compared at the gate",
        ),
        (Clause::FsReadonly, "read-only recursively, mount calls refused, no capabilities"),
        (
            Clause::FsNosuid,
            "the filter refuses the bits in every call that sets them; nosuid mounts; such files that are near the top of a writable tree already are read-only",
        ),
        (Clause::ProcHidden, "own pid namespace and /proc; PID 1 out of reach"),
        (Clause::ProcSyscalls, "allow-list by seccomp: unknown calls ENOSYS, dangerous ones EPERM"),
        (Clause::LimitTime, "by the launcher and by PID 1; the whole pid namespace ends"),
        (Clause::LimitOutput, "counted outside by the launcher"),
        (Clause::EnvClean, "environment and descriptors made anew, read back at the gate"),
        (Clause::LifeBound, "PID 1 dies with the launcher, and the pid namespace with PID 1"),
        (Clause::AuditOutside, "record and channel outside; frames carry number and keyed mark"),
    ] {
        posture.set(clause, Enforcement::enforced(how));
    }
    if spec.denied_calls == DeniedCalls::Recorded {
        posture.set(
            Clause::ProcSyscalls,
            Enforcement::enforced(
                "allow-list by seccomp: unknown calls ENOSYS, dangerous ones EPERM; PID 1 gives these answers and counts them, and without it all are ENOSYS",
            ),
        );
    }
    let landlock = match capabilities.landlock {
        0 => "",
        _ => "; Landlock on top",
    };
    let ids = match (&spec.rootfs, capabilities.may_choose_uids) {
        (Rootfs::Image, true) => "user namespace whose uid 0 is an unused one of the host's",
        _ => "user namespace without uid 0",
    };
    posture.set(
        Clause::ProcUnprivileged,
        Enforcement::enforced(format!("{ids}, no capabilities, no-new-privileges{landlock}")),
    );
    let how = "own network namespace with loopback only; socket families by the filter";
    posture.set(Clause::NetSealed, egress::sealed(spec, how));
    posture.set(Clause::IdUnique, id_unique(spec, capabilities));
    posture.set(Clause::FsSockets, sockets(spec));
    if has_overlay(spec) && !capabilities.may_choose_uids {
        let mounts = posture.get(Clause::FsMounts).clone();
        posture.set(
            Clause::FsMounts,
            mounts.and("in an overlay tree an ordinary user cannot rename a directory that was there before (EXDEV), so programs copy it"),
        );
    }
    for (clause, held) in &capabilities.limits {
        posture.set(*clause, limit(*clause, held, spec, rlimits));
    }
    posture.set(Clause::FsQuota, quota(spec));
    posture.set(
        Clause::KernelSeparate,
        Enforcement::absent("the jail shares the host's kernel")
            .with_fix("gVisor, in a container: --backend docker --oci-runtime runsc"),
    );
    posture
}

fn id_unique(spec: &RunSpec, capabilities: &Capabilities) -> Enforcement {
    let has_image = spec.rootfs == Rootfs::Image;
    if capabilities.may_choose_uids && has_image {
        return Enforcement::enforced(
            "a block of 65536 unused uids for each live run, locked host-wide",
        );
    }
    if capabilities.may_choose_uids {
        return Enforcement::enforced("a pair of unused uids for each live run, locked host-wide");
    }
    let why = match has_image {
        true => {
            "an ordinary user has one uid, which owns every file of the image and is every user inside; runs are kept \
             apart by namespaces"
        }
        false => "an ordinary user has one uid; runs are kept apart by namespaces",
    };
    Enforcement::weaker(why).with_fix("run belljar as root, which can give each run its own uid")
}

fn sockets(spec: &RunSpec) -> Enforcement {
    let mut trees = spec.workspace.iter().chain(&spec.mounts);
    if trees.any(|mount| mount.mode == MountMode::Rw) {
        return Enforcement::weaker(
            "in a writable tree, sockets that the kernel lists by path at the start are covered; others answer",
        )
        .with_fix("mount it overlay or ro");
    }
    Enforcement::enforced("user trees go through overlayfs, where a host's socket does not answer")
}

fn limit(
    clause: Clause,
    held: &Result<String, Weakness>,
    spec: &RunSpec,
    rlimits: &[Rlimit],
) -> Enforcement {
    if !is_set(clause, spec) {
        return no_limit(clause);
    }
    let has = |name: &str| rlimits.iter().any(|limit| limit.name == name);
    match (clause, held) {
        (_, Ok(how)) => Enforcement::enforced(how.clone()),
        (Clause::LimitPids, Err(_)) if has("nproc") => {
            Enforcement::enforced("RLIMIT_NPROC, counted in the run's own user namespace")
        }
        (Clause::LimitMemory, Err(weakness)) if has("data") => memory_of_each_process(weakness),
        (_, Err(weakness)) => {
            Enforcement::absent(weakness.why.clone()).with_fix(weakness.fix.clone())
        }
    }
}

fn quota(spec: &RunSpec) -> Enforcement {
    match spec.limits.disk {
        None => Enforcement::absent("no limit is set").with_fix(crate::planning::SET_DISK),
        Some(_) => Enforcement::weaker(
            "disk use is checked every few seconds; a run over the limit is stopped",
        ),
    }
}

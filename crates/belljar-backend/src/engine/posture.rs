//! Describes how a container holds each clause.

use belljar_spec::{Clause, DeniedCalls, Enforcement, MountMode, Posture, Rlimit, RunSpec};

use crate::backend::{Capabilities, EngineFacts, Weakness};
use crate::egress;
use crate::planning::{has_overlay, is_set, memory_of_each_process, no_limit};

pub(super) fn is_gvisor(runtime: Option<&str>) -> bool {
    runtime.is_some_and(belljar_spec::is_gvisor)
}

fn is_kata(runtime: Option<&str>) -> bool {
    runtime.is_some_and(|name| name.contains("kata"))
}

/// `rlimits`: what every process of the plan gets, and the attestation reads back. A text names one only if
/// it is among them.
pub(super) fn posture(
    spec: &RunSpec,
    capabilities: &Capabilities,
    engine: &EngineFacts,
    rlimits: &[Rlimit],
) -> Posture {
    let mut posture = Posture::nothing_held("the engine gave no answer");
    let runtime = spec.oci_runtime.as_deref();
    let gvisor = is_gvisor(runtime);
    for (clause, how) in [
        (
            Clause::FsNosuid,
            "the filter refuses the bits in every call that sets them; no-new-privileges",
        ),
        (Clause::ProcHidden, "the container's own pid namespace and /proc; PID 1 out of reach"),
        (
            Clause::ProcSyscalls,
            "two allow-lists by seccomp: the engine's, and each command's own on top of it",
        ),
        (Clause::LimitTime, "by the launcher and by PID 1; the whole container ends"),
        (Clause::LimitOutput, "counted outside by the launcher"),
        (Clause::EnvClean, "environment and descriptors made anew, read back at the gate"),
        (
            Clause::LifeBound,
            "PID 1 ends with the channel, at the latest when its lease does; the engine removes it",
        ),
        (Clause::AuditOutside, "record and channel outside; frames carry number and keyed mark"),
    ] {
        posture.set(clause, Enforcement::enforced(how));
    }
    if spec.denied_calls == DeniedCalls::Recorded {
        posture.set(
            Clause::ProcSyscalls,
            Enforcement::enforced(
                "the command's allow-list by seccomp, whose refusals PID 1 answers and counts (without it, ENOSYS); the engine's list under it leaves them to that",
            ),
        );
    }
    if gvisor {
        posture.set(
            Clause::ProcSyscalls,
            Enforcement::enforced("the command's allow-list by seccomp, inside gVisor"),
        );
    }
    let how = mounts(spec, capabilities, engine, gvisor);
    posture.set(
        Clause::FsMounts,
        if has_overlay(spec) && !capabilities.may_choose_uids {
            how.and("an overlay tree is copied at the start, which takes time and room")
        } else {
            how
        },
    );
    posture.set(Clause::FsReadonly, read_only(spec, capabilities, engine));
    posture.set(
        Clause::FsSockets,
        if gvisor
            && engine.is_local
            && !engine.host_sockets.iter().any(|name| Some(name.as_str()) == runtime)
        {
            Enforcement::enforced("gVisor connects to no socket of the host")
        } else {
            sockets(spec, capabilities, engine)
        },
    );
    let landlock = match (capabilities.landlock, gvisor) {
        (0, _) => "",
        (_, true) => "; gVisor has no Landlock",
        (_, false) => "; Landlock on top",
    };
    posture.set(
        Clause::ProcUnprivileged,
        Enforcement::enforced(format!(
            "not root, no capabilities, no-new-privileges{landlock}{}",
            if engine.selinux {
                "; without SELinux, whose labels a user's tree does not have"
            } else {
                ""
            },
        )),
    );
    let how = "network none: loopback only; socket families by the filter";
    posture.set(Clause::NetSealed, egress::sealed(spec, how));
    posture.set(Clause::IdUnique, id_unique(capabilities, engine));
    for (clause, held) in &capabilities.limits {
        posture.set(*clause, limit(*clause, held, spec, engine, rlimits));
    }
    posture.set(Clause::FsQuota, quota(spec, engine));
    posture.set(
        Clause::KernelSeparate,
        if (gvisor || is_kata(runtime)) && !engine.is_local {
            Enforcement::absent(
                "which kernel answers cannot be compared with that of the engine's machine from here",
            )
            .with_fix("run belljar on the engine's own machine")
        } else if gvisor {
            Enforcement::enforced(
                "gVisor: an application kernel answers the run's calls, and not the host's",
            )
        } else if is_kata(runtime) {
            Enforcement::enforced("Kata: a kernel in a virtual machine, and not the host's")
        } else {
            Enforcement::absent("the container shares its host's kernel")
                .with_fix(own_kernel(engine))
        },
    );
    posture
}

/// How to get a separate kernel, by a runtime that the engine has.
fn own_kernel(engine: &EngineFacts) -> String {
    if engine.is_podman {
        return "Docker, with a runtime that has its own kernel".to_owned();
    }
    let has_kernel = |name: &&String| is_gvisor(Some(name)) || is_kata(Some(name));
    // The plainest name: others are variants of it.
    match engine.runtimes.iter().filter(has_kernel).min_by_key(|name| (name.len(), *name)) {
        Some(runtime) => format!("a runtime with its own kernel: --oci-runtime {runtime}"),
        None => "give the engine a runtime with its own kernel, such as gVisor's runsc".to_owned(),
    }
}

fn mounts(
    spec: &RunSpec,
    capabilities: &Capabilities,
    engine: &EngineFacts,
    gvisor: bool,
) -> Enforcement {
    if !engine.is_local {
        let sent = match spec.workspace.as_ref().map(|tree| tree.mode) {
            Some(MountMode::Rw) => {
                "; the workspace is sent as a copy, into memory, and changes are applied at the end"
            }
            Some(MountMode::Ro | MountMode::Overlay) => {
                "; the workspace is sent as a copy, into memory"
            }
            None => "",
        };
        return Enforcement::enforced(format!(
            "nothing of this machine is mounted{sent}; the container's table is compared at the gate"
        ));
    }
    if gvisor && capabilities.may_choose_uids {
        return Enforcement::enforced(
            "bound from a place only root can change; gVisor's table compared at the gate",
        );
    }
    if capabilities.may_choose_uids {
        return Enforcement::enforced(
            "bound from a place only root can change; table, devices and inodes compared at the gate",
        );
    }
    if gvisor {
        return Enforcement::weaker(
            "gVisor shows inodes of its own, so what the engine bound cannot be compared",
        )
        .with_fix("run belljar as root, which binds from a place that no other user can change");
    }
    Enforcement::enforced("bound by the engine; table, devices and inodes compared at the gate")
}

fn read_only(spec: &RunSpec, capabilities: &Capabilities, engine: &EngineFacts) -> Enforcement {
    let is_sent = spec.workspace.as_ref().is_some_and(|tree| tree.mode == MountMode::Ro);
    if !engine.is_local && is_sent {
        return Enforcement::enforced(
            "the read-only workspace is a copy that was sent: what the run changes in it is dropped; no right to mount",
        );
    }
    if !engine.is_local {
        return Enforcement::enforced("nothing of this machine is mounted; no right to mount");
    }
    if capabilities.may_choose_uids {
        return Enforcement::enforced(
            "read-only recursively before the engine binds it; no right to mount",
        );
    }
    Enforcement::enforced("each mount bound read-only on its own; no right to mount")
}

fn sockets(spec: &RunSpec, capabilities: &Capabilities, engine: &EngineFacts) -> Enforcement {
    if !engine.is_local {
        return Enforcement::enforced("nothing of this machine is mounted; no socket file is sent");
    }
    let trees: Vec<MountMode> =
        spec.workspace.iter().chain(&spec.mounts).map(|mount| mount.mode).collect();
    if trees.contains(&MountMode::Rw) {
        return Enforcement::weaker(
            "in a writable tree, sockets that the kernel lists by path at the start are covered; others answer",
        )
        .with_fix("mount it overlay or ro");
    }
    if trees.is_empty() && spec.tools.is_empty() {
        return Enforcement::enforced("no tree of the host's people is mounted");
    }
    if capabilities.may_choose_uids {
        return Enforcement::enforced(
            "user trees go through overlayfs, where a host's socket does not answer",
        );
    }
    if trees.iter().all(|mode| *mode == MountMode::Overlay) && spec.tools.is_empty() {
        return Enforcement::enforced("an overlay tree is a copy without the sockets in it");
    }
    Enforcement::weaker("the engine binds the tree as it is, and a socket in it answers")
        .with_fix("mount it overlay, run belljar as root, or use the jail")
}

fn id_unique(capabilities: &Capabilities, engine: &EngineFacts) -> Enforcement {
    if capabilities.may_choose_uids {
        return Enforcement::enforced("an unused uid for each live run, locked host-wide");
    }
    if !engine.is_local {
        return Enforcement::weaker(
            "all runs have one uid on the engine's machine; they are kept apart by namespaces",
        )
        .with_fix("run belljar on the engine's own machine, as root");
    }
    Enforcement::weaker("an ordinary user has one uid; runs are kept apart by namespaces")
        .with_fix("run belljar as root, which can give each run its own uid")
}

fn limit(
    clause: Clause,
    held: &Result<String, Weakness>,
    spec: &RunSpec,
    engine: &EngineFacts,
    rlimits: &[Rlimit],
) -> Enforcement {
    if !is_set(clause, spec) {
        return no_limit(clause);
    }
    let runtime = spec.oci_runtime.as_ref();
    if runtime.is_some_and(|name| engine.without_groups.contains(name)) {
        return Enforcement::absent("the runtime is registered with --ignore-cgroups")
            .with_fix("register it with the engine without that argument");
    }
    let has = |name: &str| rlimits.iter().any(|limit| limit.name == name);
    match held {
        _ if clause == Clause::LimitPids && has("nproc") => {
            Enforcement::enforced("RLIMIT_NPROC, counted in the container's own user namespace")
        }
        Ok(_) if clause == Clause::LimitPids && is_gvisor(runtime.map(String::as_str)) => {
            Enforcement::weaker(
                "the engine's pids control group, read back, counts gVisor's own threads, and the whole sandbox ends with it",
            )
        }
        Ok(how) => Enforcement::enforced(how.clone()),
        Err(weakness) if clause == Clause::LimitMemory && has("data") => {
            memory_of_each_process(weakness)
        }
        // What cannot be read back is not claimed, even where the engine was asked for it.
        Err(weakness) => Enforcement::absent(weakness.why.clone()).with_fix(weakness.fix.clone()),
    }
}

fn quota(spec: &RunSpec, engine: &EngineFacts) -> Enforcement {
    match spec.limits.disk {
        None => Enforcement::absent("no limit is set").with_fix(crate::planning::SET_DISK),
        // gVisor does not show the sizes, so they cannot be compared.
        Some(_) if !engine.is_local && !is_gvisor(spec.oci_runtime.as_deref()) => {
            Enforcement::enforced(
                "nothing is written to a disk there: a read-only root, and file systems in memory with a size each",
            )
        }
        Some(_) => Enforcement::weaker(
            "read-only root and sized file systems in memory; disk use in the host's trees is checked every few seconds, and a run over the limit is stopped",
        ),
    }
}

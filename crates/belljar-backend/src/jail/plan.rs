//! Plans a jail from a run's specification. No I/O: the same input gives the same plan.

use belljar_spec::{
    BackendName, Clause, HostUid, Identity, MountKind, Namespace, OsText, PLAN_VERSION, Plan,
    PlannedMount, Rlimit, Rootfs, RunSpec, Tmpfs,
};

use super::{posture, rootfs};
use crate::backend::Capabilities;
use crate::egress;
use crate::error::PlanError;
use crate::planning::{
    self, DEVICES, HOSTNAME, PROC_MASKED, PROC_READ_ONLY, RUN, RUN_SIZE, SHM_SIZE, TMP_SIZE,
    command, given, owned, refuse_runtime, refuse_what_is_not_there, rlimit, rlimits_of_all,
    run_home, tmpfs, tools,
};

pub(super) fn plan(spec: &RunSpec, capabilities: &Capabilities) -> Result<Plan, PlanError> {
    refuse_what_is_not_there(spec, BackendName::Jail)?;
    refuse_runtime(spec, BackendName::Jail)?;
    let mut mounts = rootfs::mounts(&spec.rootfs, HOSTNAME);
    mounts.push(PlannedMount {
        target: OsText::from("/proc"),
        what: MountKind::Proc { read_only: owned(PROC_READ_ONLY), masked: owned(PROC_MASKED) },
    });
    mounts.push(PlannedMount {
        target: OsText::from("/dev"),
        what: MountKind::Dev { nodes: owned(DEVICES), shm_size: SHM_SIZE },
    });
    mounts.push(tmpfs(&Tmpfs { target: OsText::from("/tmp"), size: TMP_SIZE }));
    let has_run = given(spec).iter().any(|mount| mount.target == OsText::from(RUN));
    if spec.rootfs == Rootfs::Host {
        mounts.push(tmpfs(&Tmpfs { target: OsText::from("/var/tmp"), size: TMP_SIZE }));
        if !has_run {
            mounts.push(tmpfs(&Tmpfs { target: OsText::from(RUN), size: RUN_SIZE }));
        }
    }
    if spec.rootfs == Rootfs::Host {
        mounts.extend(rootfs::trust_bundles(spec));
    }
    mounts.push(run_home());
    mounts.extend(tools(spec));
    mounts.extend(given(spec));
    if spec.rootfs != Rootfs::Host && spec.intercepts() && !has_run {
        // Nothing is created in a tree of the host, so the run's authority is reached through memory.
        mounts.push(tmpfs(&Tmpfs { target: OsText::from(RUN), size: RUN_SIZE }));
    }
    mounts.extend(egress::trust_directory(spec)); // last: nothing that was given covers it
    let rlimits = rlimits(spec, capabilities);
    let posture = posture::posture(spec, capabilities, &rlimits);

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
        hidden: planning::hidden(spec),
        allow_control: planning::allow_control(spec),
        shielded: planning::shielded(spec),
        limits: spec.limits.clone(),
        cgroup: capabilities.cgroup,
        rlimits,
        filter: spec.denied_calls.filter().to_owned(),
        command: command(spec),
        shell: None,
        image: None,
        oci_runtime: None,
        listen: egress::listen(spec, BackendName::Jail)?,
        posture,
    })
}

fn rlimits(spec: &RunSpec, capabilities: &Capabilities) -> Vec<Rlimit> {
    let mut limits = rlimits_of_all(capabilities);
    // One mechanism for each limit, so that this list shows which one has to be read back.
    if let (false, Some(pids)) = (capabilities.holds(Clause::LimitPids), spec.limits.pids) {
        // Counted in the run's own user namespace.
        limits.push(rlimit("nproc", u64::from(pids)));
    }
    if let (false, Some(memory)) = (capabilities.holds(Clause::LimitMemory), spec.limits.memory) {
        // What a process can fill, not what it can reserve: runtimes reserve far more than they use.
        limits.push(rlimit("data", memory));
    }
    limits
}

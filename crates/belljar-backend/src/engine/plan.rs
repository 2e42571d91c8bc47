//! Plans a container from a run's specification. No I/O: the same input gives the same plan.

use belljar_spec::{
    AccountsFile, BackendName, Clause, DeniedCalls, HostUid, Identity, MountKind, Namespace,
    OsText, PLAN_VERSION, Plan, PlannedImage, PlannedMount, Rlimit, Rootfs, RunSpec, Source, Tmpfs,
    Tree, User,
};

use super::posture::{is_gvisor, posture};
use crate::backend::{Capabilities, EngineFacts, ImageFacts};
use crate::egress;
use crate::error::PlanError;
use crate::planning::{
    self, DEVICES, HOME, HOSTNAME, PROC_MASKED, PROC_READ_ONLY, RUN, RUN_SIZE, SHM_SIZE, TMP_SIZE,
    add_volumes, command, given, owned, refuse_what_is_not_there, rlimit, rlimits_of_all, run_home,
    tmpfs, tools, volume_in_a_tree, volumes,
};

/// The host's hardware and control groups: the jail has none of it either.
const MASKED: &[&str] = &["/sys", "/proc/timer_list", "/proc/interrupts"];

pub(super) fn plan(
    backend: BackendName,
    spec: &RunSpec,
    capabilities: &Capabilities,
) -> Result<Plan, PlanError> {
    refuse_what_is_not_there(spec, backend)?;
    let unsupported =
        |what: &str, why: String| PlanError::Unsupported { backend, what: what.to_owned(), why };
    let (Some(engine), Some(image)) = (&capabilities.engine, &capabilities.image) else {
        return Err(unsupported("a plan", "the engine was not asked about itself".to_owned()));
    };
    if let Rootfs::Directory { .. } = spec.rootfs {
        let why = "an engine starts from an image: --image NAME".to_owned();
        return Err(unsupported("a directory as the root", why));
    }
    if engine.is_local && spec.user != User::default() {
        let why =
            "a container's user is one of the host's, chosen so that your files keep their owner";
        return Err(unsupported("another user inside", why.to_owned()));
    }
    if let Some(runtime) = spec.oci_runtime.as_ref().filter(|_| engine.is_podman) {
        // Tried: it takes the name, and starts the container with its default all the same.
        let why = "Podman's API has no choice of a runtime; name it in containers.conf".to_owned();
        return Err(unsupported(&format!("the runtime \"{runtime}\""), why));
    }
    if let Some(runtime) = spec.oci_runtime.as_ref().filter(|name| !engine.runtimes.contains(name))
    {
        let known = engine.runtimes.join(", ");
        let why = format!("the engine has no such runtime; it has {known}");
        return Err(unsupported(&format!("the runtime \"{runtime}\""), why));
    }
    if spec.denied_calls == DeniedCalls::Recorded {
        let why = if is_gvisor(spec.oci_runtime.as_deref()) {
            Some("gVisor does not report refused system calls")
        } else if engine.is_podman && !engine.is_local {
            Some("Podman on another machine uses its own list of system calls, which answers first")
        } else {
            None
        };
        if let Some(why) = why {
            return Err(unsupported(planning::TRACING, why.to_owned()));
        }
    }
    if !engine.is_local {
        refuse_what_is_not_sent(spec).map_err(|(what, why)| unsupported(&what, why.to_owned()))?;
    }
    if spec.intercepts() && !engine.is_local {
        let why = "the engine is on another machine, which cannot be given the run's own authority; a [[route]] needs none".to_owned();
        return Err(unsupported("opening TLS, for a secret or network.intercept,", why));
    }
    let image = &ImageFacts { volumes: volumes(image), ..image.clone() };
    if let Some((volume, tree)) = volume_in_a_tree(spec, image) {
        let why =
            format!("it is in {tree}, and nothing of an image is created in a tree of the host");
        return Err(unsupported(&format!("the image's volume {volume}"), why));
    }
    let rlimits = rlimits(spec, capabilities, engine);
    let posture = posture(spec, capabilities, engine, &rlimits);
    Ok(Plan {
        v: PLAN_VERSION,
        backend,
        hostname: HOSTNAME.to_owned(),
        pod: Vec::new(),
        sandbox: vec![
            Namespace::Network,
            Namespace::Mount,
            Namespace::Pid,
            Namespace::Ipc,
            Namespace::Uts,
        ],
        identity: Identity { inside: spec.user, host: host_uid(capabilities, engine) },
        mounts: mounts(spec, engine, image),
        allow_source: spec.allow_source.clone(),
        hidden: planning::hidden(spec),
        allow_control: planning::allow_control(spec),
        shielded: planning::shielded(spec),
        limits: spec.limits.clone(),
        cgroup: capabilities.cgroup,
        rlimits,
        filter: spec.denied_calls.filter().to_owned(),
        command: command(spec, Some(image)),
        shell: None,
        image: Some(PlannedImage {
            name: image.name.clone(),
            id: image.id.clone(),
            digest: image.digest.clone(),
            env: image.env.iter().map(|(name, _)| name.clone()).collect(),
            volumes: image.volumes.clone(),
            layers: Vec::new(),
        }),
        oci_runtime: spec.oci_runtime.clone(),
        listen: egress::listen(spec, backend)?,
        posture,
    })
}

fn host_uid(capabilities: &Capabilities, engine: &EngineFacts) -> HostUid {
    match (engine.is_local, capabilities.may_choose_uids) {
        (false, _) => HostUid::AsInside,
        (true, true) => HostUid::PerRun,
        (true, false) => HostUid::Caller,
    }
}

/// An engine on another machine can mount nothing of this one; the workspace alone is sent there. The error is what
/// is refused, and why.
fn refuse_what_is_not_sent(spec: &RunSpec) -> Result<(), (String, &'static str)> {
    let mounted = spec.mounts.iter().map(|mount| &mount.source).chain(&spec.tools).next();
    if let Some(git) = &spec.git_directory {
        let why = "the engine is on another machine, which does not have it; \
                   to run without git's data: -c sandbox.git=off";
        return Err((format!("the workspace's repository {}", git.path), why));
    }
    if let Some(source) = mounted {
        let why = "the engine is on another machine, which does not have it; \
                   copy it with belljar cp, or into the workspace";
        return Err((format!("a mount of {source}"), why));
    }
    match &spec.workspace {
        Some(_) if spec.agent.is_some() => {
            let why = "the engine is on another machine, and an agent's checkpoints need the workspace here; \
                       use an engine or the jail on this machine, or --workspace none";
            Err(("an agent with a workspace".to_owned(), why))
        }
        _ => Ok(()),
    }
}

/// The most that a tree may be and grow to where the operator set no limit.
const MAX_SENT: u64 = 10 << 30;

/// The same mount for an engine on another machine.
fn sent(mount: PlannedMount, spec: &RunSpec) -> PlannedMount {
    let PlannedMount { target, what } = mount;
    let what = match what {
        MountKind::Bind { source: Source::Path { path }, access, tree: Tree::User, .. } => {
            let size = spec.limits.disk.unwrap_or(MAX_SENT);
            MountKind::Sent { source: path, access, size }
        }
        other => other,
    };
    PlannedMount { target, what }
}

fn mounts(spec: &RunSpec, engine: &EngineFacts, image: &ImageFacts) -> Vec<PlannedMount> {
    let at = |target: &str, what| PlannedMount { target: OsText::from(target), what };
    let memory = |target: &str, size| tmpfs(&Tmpfs { target: OsText::from(target), size });
    let masked = PROC_MASKED.iter().chain(MASKED).map(|path| (*path).to_owned()).collect();
    let mut mounts = vec![
        at("/proc", MountKind::Proc { read_only: owned(PROC_READ_ONLY), masked }),
        at("/dev", MountKind::Dev { nodes: owned(DEVICES), shm_size: SHM_SIZE }),
        memory("/tmp", TMP_SIZE),
        memory("/var/tmp", TMP_SIZE),
        memory(RUN, RUN_SIZE), // Podman would put one without a size there
    ];
    if engine.is_local {
        let hosts = format!("127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost\n");
        let no_servers = "# No name server answers here.\n".to_owned();
        mounts.extend([
            at("/etc/passwd", MountKind::Accounts { file: AccountsFile::Passwd }),
            at("/etc/group", MountKind::Accounts { file: AccountsFile::Group }),
            at("/etc/hosts", MountKind::File { content: hosts }),
            at("/etc/resolv.conf", MountKind::File { content: no_servers }),
            run_home(),
        ]);
        mounts.extend(egress::trust_directory(spec));
    } else {
        mounts.push(memory(HOME, TMP_SIZE));
    }
    mounts.extend(tools(spec));
    match engine.is_local {
        true => mounts.extend(given(spec)),
        false => mounts.extend(given(spec).into_iter().map(|mount| sent(mount, spec))),
    }
    // An image's volume would be a tree of the engine's that the plan does not name: it is memory instead.
    add_volumes(&mut mounts, image);
    mounts
}

fn rlimits(spec: &RunSpec, capabilities: &Capabilities, engine: &EngineFacts) -> Vec<Rlimit> {
    let mut limits = rlimits_of_all(capabilities);
    if let (true, Some(pids)) = (engine.is_rootless && engine.is_podman, spec.limits.pids) {
        // Counted in the container's own user namespace; elsewhere it would count the whole host.
        limits.push(rlimit("nproc", u64::from(pids)));
    }
    let gvisor = is_gvisor(spec.oci_runtime.as_deref()); // which limits no mapping by it
    if let (false, false, Some(memory)) =
        (gvisor, capabilities.holds(Clause::LimitMemory), spec.limits.memory)
    {
        limits.push(rlimit("data", memory));
    }
    limits
}

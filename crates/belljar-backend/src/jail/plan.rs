//! Plans a jail from a run's specification. No I/O: the same input gives the same plan.

use std::path::Path;

use belljar_spec::{
    BackendName, Clause, HostUid, Identity, MountKind, Namespace, OsText, PLAN_VERSION, Plan,
    PlannedImage, PlannedMount, Rlimit, Rootfs, RunSpec, Tmpfs,
};

use super::{posture, rootfs};
use crate::backend::{Capabilities, ImageFacts};
use crate::egress;
use crate::error::PlanError;
use crate::planning::{
    self, DEVICES, HOSTNAME, PROC_MASKED, PROC_READ_ONLY, RUN, RUN_SIZE, SHM_SIZE, TMP_SIZE,
    add_volumes, command, given, owned, refuse_runtime, refuse_what_is_not_there, rlimit,
    rlimits_of_all, run_home, tmpfs, tools, volume_in_a_tree, volumes,
};
use crate::shell::{self, Existence};

/// More than any image was found to have.
const MAX_VOLUMES: usize = 64;

/// Where the kernel's own file systems are.
const KERNEL_TREES: [&str; 3] = ["/dev", "/proc", "/sys"];
/// Where files are made for the run.
const ETC: &str = "/etc";

pub(super) fn plan(spec: &RunSpec, capabilities: &Capabilities) -> Result<Plan, PlanError> {
    refuse_what_is_not_there(spec, BackendName::Jail)?;
    refuse_runtime(spec, BackendName::Jail)?;
    let unsupported = |what: String, why: String| PlanError::Unsupported {
        backend: BackendName::Jail,
        what,
        why,
    };
    let image = capabilities.image.as_ref().filter(|_| spec.rootfs == Rootfs::Image);
    let image = image.map(|image| ImageFacts { volumes: usable_volumes(image), ..image.clone() });
    let image = image.as_ref();
    if spec.rootfs == Rootfs::Image && image.is_none() {
        return Err(unsupported("an image".to_owned(), "it was not looked for".to_owned()));
    }
    if let Some(count) = image.map(|image| image.volumes.len()).filter(|count| *count > MAX_VOLUMES)
    {
        let why = format!("each is a file system in memory, and there are at most {MAX_VOLUMES}");
        return Err(unsupported(format!("an image with {count} volumes"), why));
    }
    if let Some((volume, tree)) = image.and_then(|image| volume_in_a_tree(spec, image)) {
        let why =
            format!("it is in {tree}, and nothing of an image is created in a tree of the host");
        return Err(unsupported(format!("the image's volume {volume}"), why));
    }
    let mut mounts = rootfs::mounts(&spec.rootfs, image, HOSTNAME);
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
    let has_memory = matches!(spec.rootfs, Rootfs::Host | Rootfs::Image);
    if has_memory {
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
    if !has_memory && spec.intercepts() && !has_run {
        // Nothing is created in a tree of the host, so the run's authority is reached through memory.
        mounts.push(tmpfs(&Tmpfs { target: OsText::from(RUN), size: RUN_SIZE }));
    }
    if let Some(image) = image {
        add_volumes(&mut mounts, image);
    }
    mounts.extend(egress::trust_directory(spec)); // last: nothing that was given covers it
    let rlimits = rlimits(spec, capabilities);
    let posture = posture::posture(spec, capabilities, &rlimits);

    let inside = image.and_then(|image| image.user).unwrap_or(spec.user);
    let mut plan = Plan {
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
            inside,
            host: match (capabilities.may_choose_uids, image) {
                (true, Some(_)) => HostUid::BlockPerRun,
                (true, None) => HostUid::PerRun,
                (false, _) => HostUid::Caller,
            },
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
        command: command(spec, image),
        shell: None,
        image: image.map(planned_image),
        oci_runtime: None,
        listen: egress::listen(spec, BackendName::Jail)?,
        posture,
    };
    if let Some(ImageFacts { shells: Some(shells), .. }) = image {
        let in_image = |path: &Path| match shells.iter().any(|shell| Path::new(shell) == path) {
            true => Existence::There,
            false => Existence::Missing,
        };
        if let Some(shell) = shell::find(&plan, spec, &mut |path| in_image(path))? {
            plan.set_shell(shell, spec);
        }
    }
    Ok(plan)
}

/// Not in a file system of the kernel, whose own mounts it would replace, and not in place of the files that are made
/// for the run: there the image stays as it is.
fn usable_volumes(image: &ImageFacts) -> Vec<String> {
    let mut all = volumes(image);
    all.retain(|volume| {
        let volume = Path::new(volume);
        !KERNEL_TREES.iter().any(|tree| volume.starts_with(tree))
            && !Path::new(ETC).starts_with(volume)
    });
    all
}

fn planned_image(image: &ImageFacts) -> PlannedImage {
    PlannedImage {
        name: image.name.clone(),
        id: image.id.clone(),
        digest: image.digest.clone(),
        env: image.env.iter().map(|(name, _)| name.clone()).collect(),
        volumes: image.volumes.clone(),
        layers: image.layers.clone(),
    }
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

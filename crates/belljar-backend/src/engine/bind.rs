//! Opens and pins everything that a container is made of, before it is created.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_bind::staging::{self, Offer, Staged};
use belljar_spec::{
    Access, Clause, Expectation, ExpectedKernel, ExpectedMount, HostPaths, MountKind, MountReach,
    OsText, Plan, ToleratedMount, Tree,
};
use bollard::models::ContainerCreateBody;

use super::api::Api;
use super::container_config::{self, INIT_DIRECTORY, INIT_INSIDE, Parts};
use super::container_note::Note;
use super::executable;
use super::host_mounts;
use super::posture::is_gvisor;
use crate::backend::{Bound, BoundSandbox, EngineFacts};
use crate::error::BindError;
use crate::planning::RUN;

/// Ready to be made.
#[derive(Debug)]
pub struct BoundContainer {
    pub(super) api: Arc<Api>,
    pub(super) engine: EngineFacts,
    pub(super) note: Note,
    pub(super) body: ContainerCreateBody,
    pub(super) staged: Staged,
    pub(super) plan: Plan,
    pub(super) directory: PathBuf,
    /// What has to be copied in, where the engine's machine cannot bind it.
    pub(super) upload: Option<PathBuf>,
}

pub(super) fn bind(
    api: &Arc<Api>,
    engine: &EngineFacts,
    plan: &Plan,
    place: &HostPaths,
) -> Result<Bound, BindError> {
    let boxed = |error: Box<dyn std::error::Error + Send + Sync>| BindError(error);
    let files = place.directory.join("given");
    std::fs::create_dir_all(&files).map_err(|error| boxed(error.into()))?;
    let bound = host_mounts::bind(plan, place).map_err(|error| boxed(error.into()))?;
    let mut staged = match engine.is_local {
        true => {
            host_mounts::stage(bound, &place.run, &files).map_err(|error| boxed(error.into()))?
        }
        false => staging::nothing(bound),
    };
    let executable = executable::copy_in(&place.bin).map_err(|error| boxed(error.into()))?;
    let init = Offer {
        source: executable.clone(),
        target: PathBuf::from(INIT_INSIDE),
        read_only: true,
        with_submounts: false,
    };
    if engine.is_local {
        staged.add_file(init).map_err(|error| boxed(error.into()))?;
    }
    let profile = profile_file(&place.bin, container_config::engine_profile(plan))
        .map_err(|error| boxed(error.into()))?;
    let note = note(api, place).map_err(|error| boxed(error.into()))?;
    let body = container_config::container_config(&Parts {
        plan,
        engine,
        run: &place.run,
        note: &note,
        user: staged.user,
        offers: &staged.offers,
        profile: &profile,
    })
    .map_err(|error| boxed(error.into()))?;
    Ok(Bound {
        expectation: expectation(plan, engine, &staged),
        posture: staged.posture.clone(),
        writable_trees: staged.writable_trees.clone(),
        surveyed: staged.surveyed.clone(),
        layered: staged.layered.clone(),
        warnings: staged.warnings.clone(),
        sandbox: BoundSandbox::new(BoundContainer {
            api: Arc::clone(api),
            engine: engine.clone(),
            note,
            body,
            staged,
            plan: plan.clone(),
            directory: place.directory.clone(),
            upload: (!engine.is_local).then_some(executable),
        }),
    })
}

/// How the run's container is found again.
pub(super) fn note(api: &Api, place: &HostPaths) -> std::io::Result<Note> {
    Ok(Note {
        engine: api.endpoint.clone(),
        container: format!("belljar-{}", place.run),
        owner: place.owner.clone(),
        nonce: nonce()?,
    })
}

/// Podman reads the list of system calls from a file.
fn profile_file(bin: &std::path::Path, content: &str) -> std::io::Result<PathBuf> {
    let name = blake3::hash(content.as_bytes()).to_hex();
    let path = bin.join(format!("{}.seccomp.json", &name[..32]));
    if std::fs::read(&path).is_ok_and(|found| found == content.as_bytes()) {
        return Ok(path);
    }
    let temporary = bin.join(format!("seccomp.{}", std::process::id()));
    std::fs::write(&temporary, content)?;
    std::fs::rename(temporary, &path)?;
    Ok(path)
}

fn nonce() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if filled < bytes.len() {
        return Err(std::io::Error::other("no random bytes are to be had"));
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn expectation(plan: &Plan, engine: &EngineFacts, staged: &Staged) -> Expectation {
    let gvisor = is_gvisor(plan.oci_runtime.as_deref());
    let made = |target: &OsText, fstype: Option<&str>, read_only| ExpectedMount {
        target: target.clone(),
        identity: None,
        fstype: fstype.map(str::to_owned),
        read_only,
        devices: true,
        suid: true,
    };
    let mut mounts = vec![made(&OsText::from("/"), None, true)];
    if !gvisor {
        mounts.push(made(&OsText::from("/sys"), Some("tmpfs"), true)); // nothing of the host's in it
        mounts.push(made(&OsText::from("/proc/sys"), Some("proc"), true));
    }
    if !engine.is_local {
        // The executable was copied into it, as root's; it is not among what the command can write.
        mounts.push(made(&OsText::from(INIT_DIRECTORY), None, engine.is_podman));
    }
    // There a runtime may let the image's own directory decide who may write.
    let is_the_images = |target: &OsText| {
        let mut volumes = plan.image.iter().flat_map(|image| &image.volumes);
        target.as_path() == Path::new(RUN)
            || volumes.any(|volume| *target == volume.as_str().into())
    };
    let mut writable = Vec::new();
    for mount in &plan.mounts {
        match &mount.what {
            MountKind::Tmpfs { .. } | MountKind::Sent { .. } => {
                mounts.push(made(&mount.target, Some("tmpfs"), false));
                if !is_the_images(&mount.target) {
                    writable.push(mount.target.clone());
                }
            }
            MountKind::Bind { tree: Tree::Own, access: Access::Writable, .. } => {
                writable.push(mount.target.clone());
            }
            _ => {}
        }
    }
    writable.extend(staged.must_write.iter().cloned());
    // gVisor has different inodes and shows no mount inside a mount; root's staging is what holds there.
    let is_offered =
        |mount: &&ExpectedMount| staged.offers.iter().any(|o| o.target == mount.target.as_path());
    if gvisor {
        let offered = staged.expected.iter().filter(is_offered).cloned();
        mounts.extend(offered.map(|mount| ExpectedMount { identity: None, ..mount }));
    } else {
        mounts.extend(staged.expected.iter().cloned());
    }
    Expectation {
        user: staged.user,
        uid_map: None,
        gid_map: None,
        kernel: match plan.posture.get(Clause::KernelSeparate).is_enforced() && engine.is_local {
            true => ExpectedKernel::OtherThan(belljar_sys::kernel()),
            false => ExpectedKernel::Any,
        },
        groups: Vec::new(),
        mounts,
        tolerated: tolerated(plan, engine),
        private_mounts: false,
        // gVisor has namespaces of its own, and another machine has others of the same names.
        apart_from: match (engine.is_local, gvisor) {
            (true, false) => plan.unshared_namespaces(&belljar_sys::namespaces()),
            _ => Default::default(),
        },
        sizes: if gvisor { Vec::new() } else { plan.sizes() },
        dies_with_launcher: false,
        init: None,
        hostname: None,
        // The engine's list and the command's own.
        seccomp_filters: if gvisor { 0 } else { 2 },
        landlock: match (engine.is_local, gvisor) {
            (true, false) => belljar_sys::landlock_version(),
            _ => 0,
        },
        rlimits: plan.rlimits.iter().map(|limit| (limit.name.clone(), limit.value)).collect(),
        environment: plan.command.env.keys().map(|name| OsText::from(name.as_str())).collect(),
        writable,
    }
}

/// What engines cover in `/proc` by themselves.
const ALSO_MASKED: &[&str] = &["/proc/timer_stats", "/proc/timer_list", "/proc/interrupts"];

/// What engines put into every container, by path. Everything below `/sys` is covered.
fn tolerated(plan: &Plan, engine: &EngineFacts) -> Vec<ToleratedMount> {
    let place = |target: &str, fstypes: &[&str], read_only| ToleratedMount {
        target: OsText::from(target),
        reach: MountReach::Exactly,
        fstypes: fstypes.iter().map(|name| (*name).to_owned()).collect(),
        read_only,
    };
    let mut all = vec![
        place("/proc", &["proc"], false),
        place("/dev", &["tmpfs"], false),
        place("/dev/pts", &["devpts"], false),
        place("/dev/shm", &["tmpfs"], false),
        place("/dev/mqueue", &["mqueue"], false),
        place("/etc/hostname", &[], true),
        ToleratedMount {
            reach: MountReach::AndBelow,
            ..place("/sys", &["sysfs", "tmpfs", "cgroup", "cgroup2"], false)
        },
    ];
    for mount in &plan.mounts {
        if let MountKind::Dev { nodes, .. } = &mount.what {
            // A rootless engine binds what it may not make.
            let nodes = nodes.iter().map(|node| format!("/dev/{node}"));
            all.extend(nodes.map(|node| place(&node, &["devtmpfs", "tmpfs"], false)));
        }
        if let MountKind::Proc { read_only, masked } = &mount.what {
            all.extend(read_only.iter().map(|path| place(path, &["proc"], true)));
            let masked = masked.iter().map(String::as_str).chain(ALSO_MASKED.iter().copied());
            all.extend(masked.map(|path| place(path, &["tmpfs", "devtmpfs"], false)));
        }
    }
    if engine.is_podman {
        all.push(place("/run/.containerenv", &[], true));
    }
    if !engine.is_local {
        // Nothing of ours is put over them there.
        let files = ["/etc/hosts", "/etc/resolv.conf", "/etc/passwd", "/etc/group"];
        all.extend(files.map(|file| place(file, &[], true)));
    }
    all
}

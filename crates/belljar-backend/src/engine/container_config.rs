//! Translates a plan into the create request of the engine's API. Nothing else reaches the engine's
//! configuration, so nothing that the policy does not name can undo it.

use std::collections::HashMap;
use std::path::Path;

use belljar_bind::staging::Offer;
use belljar_spec::denied_call::TRACED_FILTER;
use belljar_spec::init_process::{ARGUMENT, OVER_STDIO};
use belljar_spec::{MountKind, Plan, User};
use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig,
    Mount, MountBindOptions, MountType, MountVolumeOptions, ResourcesUlimits,
};

use super::container_note::Note;
use super::posture::is_gvisor;
use crate::backend::EngineFacts;

/// The wider list of system calls for a container engine, in the form of its API. Each command's filter comes on top.
const ENGINE_PROFILE: &str = include_str!(concat!(env!("OUT_DIR"), "/engine.json"));
/// The same list for commands whose refused calls are reported.
const TRACED_ENGINE_PROFILE: &str = include_str!(concat!(env!("OUT_DIR"), "/engine_traced.json"));

/// The list that goes with the plan's filter.
pub(super) fn engine_profile(plan: &Plan) -> &'static str {
    match plan.filter == TRACED_FILTER {
        true => TRACED_ENGINE_PROFILE,
        false => ENGINE_PROFILE,
    }
}

/// The list for a container in which belljar itself runs, as a file for the engine's command.
pub const CONTAINER_PROFILE: &str = include_str!(concat!(env!("OUT_DIR"), "/container.json"));

/// Where belljar itself is inside.
pub const INIT_INSIDE: &str = "/.belljar/init";
/// Where an engine on another machine has a volume for it.
pub(super) const INIT_DIRECTORY: &str = "/.belljar";

/// The mode of a directory that a tree is sent to.
const ANYONE_IN_THE_CONTAINER: u32 = 0o1777;

/// What reconcile finds a container by.
pub(super) const LABEL_OWNER: &str = "belljar.owner";
pub(super) const LABEL_RUN: &str = "belljar.run";
pub(super) const LABEL_NONCE: &str = "belljar.nonce";

/// Everything that a body is made from.
pub(super) struct Parts<'a> {
    pub(super) plan: &'a Plan,
    pub(super) engine: &'a EngineFacts,
    pub(super) run: &'a str,
    pub(super) note: &'a Note,
    pub(super) user: User,
    pub(super) offers: &'a [Offer],
    /// The list of system calls, for an engine that reads it from a file.
    pub(super) profile: &'a Path,
}

/// Why a path cannot be sent to the engine.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnsupportedPath {
    #[error("{0} is not UTF-8, and the engine's API accepts nothing else")]
    NotUtf8(String),
    #[error(
        "{0} has a comma, a quote or a line break in it, which Podman would read as the next option"
    )]
    Options(String),
}

pub(super) fn container_config(parts: &Parts<'_>) -> Result<ContainerCreateBody, UnsupportedPath> {
    let Parts { plan, engine, run, note, .. } = parts;
    let image = plan.image.as_ref();
    let labels =
        [(LABEL_OWNER, note.owner.as_str()), (LABEL_RUN, run), (LABEL_NONCE, note.nonce.as_str())];
    let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let env = image.iter().flat_map(|image| &image.env).map(|name| unset_variable(name, engine));
    let User { uid, gid } = init_user(parts);
    Ok(ContainerCreateBody {
        image: image.map(|image| image.id.clone()),
        hostname: Some(plan.hostname.clone()),
        user: Some(format!("{uid}:{gid}")),
        entrypoint: Some(vec![INIT_INSIDE.to_owned(), ARGUMENT.to_owned(), OVER_STDIO.to_owned()]),
        cmd: Some(Vec::new()),
        working_dir: Some("/".to_owned()),
        env: Some(env.collect()),
        healthcheck: Some(HealthConfig {
            test: Some(vec!["NONE".to_owned()]),
            ..HealthConfig::default()
        }),
        network_disabled: Some(true),
        tty: Some(false),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        open_stdin: Some(true),
        stdin_once: Some(true), // the end of the attached connection is the end of PID 1's input
        labels: Some(labels.into()),
        host_config: Some(host_config(parts)?),
        ..ContainerCreateBody::default()
    })
}

/// PID 1's own user. In gVisor a process could write to the descriptors of another one with its uid, so
/// there PID 1 keeps the sandbox's root, and the right to become the command's user.
fn init_user(parts: &Parts<'_>) -> User {
    match is_gvisor(parts.plan.oci_runtime.as_deref()) {
        true => User { uid: 0, gid: 0 },
        false => parts.user,
    }
}

/// A name without a value takes an image's variable away; for Podman it would mean the host's.
fn unset_variable(name: &str, engine: &EngineFacts) -> String {
    if engine.is_podman { format!("{name}=") } else { name.to_owned() }
}

fn host_config(parts: &Parts<'_>) -> Result<HostConfig, UnsupportedPath> {
    let Parts { plan, engine, offers, .. } = parts;
    let limits = &plan.limits;
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let memory = limits.memory.map(number);
    let gvisor = is_gvisor(plan.oci_runtime.as_deref());
    let init_capabilities = ["SETUID", "SETGID", "SETPCAP", "KILL"].map(str::to_owned);
    let mut mounts =
        offers.iter().map(|offer| mount(offer, engine)).collect::<Result<Vec<_>, _>>()?;
    if !engine.is_local {
        mounts.push(volume(engine));
    }
    let keep_id = engine.is_podman && engine.is_rootless;
    Ok(HostConfig {
        network_mode: Some("none".to_owned()),
        readonly_rootfs: Some(true),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: gvisor.then(|| init_capabilities.to_vec()),
        privileged: Some(false),
        security_opt: Some(security(parts)),
        masked_paths: Some(proc_paths(plan).1),
        readonly_paths: Some(proc_paths(plan).0),
        memory,
        memory_swap: memory, // memory and swap together: no swap on top
        nano_cpus: limits.millicpus.map(|millis| i64::from(millis) * 1_000_000),
        pids_limit: limits.pids.map(i64::from),
        ulimits: Some(ulimits(plan, engine)),
        oom_score_adj: Some(500), // under pressure the command goes first, not the launcher
        shm_size: shm_size(plan).map(number),
        tmpfs: Some(memory_file_systems(plan, engine, parts.user)?),
        mounts: Some(mounts),
        ipc_mode: Some("private".to_owned()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        userns_mode: keep_id.then(|| "keep-id".to_owned()),
        init: Some(false),
        auto_remove: Some(true),
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        runtime: plan.oci_runtime.clone(),
        sysctls: Some(sysctls(engine)),
        ..HostConfig::default()
    })
}

/// Any port, as in the jail: nothing else lives in this network. Docker does the same by itself.
fn sysctls(engine: &EngineFacts) -> HashMap<String, String> {
    let any_port = ("net.ipv4.ip_unprivileged_port_start".to_owned(), "0".to_owned());
    engine.is_podman.then_some(any_port).into_iter().collect()
}

fn security(parts: &Parts<'_>) -> Vec<String> {
    let Parts { plan, engine, profile, .. } = parts;
    let mut options = vec!["no-new-privileges".to_owned()];
    if engine.is_podman {
        if engine.is_local {
            options.push(format!("seccomp={}", profile.display()));
        } // elsewhere there is no such file, and Podman takes its own list
        options.push(format!("mask={}", proc_paths(plan).1.join(":")));
    } else {
        options.push(format!("seccomp={}", engine_profile(plan)));
    }
    if engine.selinux {
        // A user's tree is never relabelled, and without its label it could not be read.
        options.push("label=disable".to_owned());
    }
    options
}

/// Read-only and masked ones.
fn proc_paths(plan: &Plan) -> (Vec<String>, Vec<String>) {
    let found = plan.mounts.iter().find_map(|mount| match &mount.what {
        MountKind::Proc { read_only, masked } => Some((read_only.clone(), masked.clone())),
        _ => None,
    });
    found.unwrap_or_default()
}

fn shm_size(plan: &Plan) -> Option<u64> {
    plan.mounts.iter().find_map(|mount| match &mount.what {
        MountKind::Dev { shm_size, .. } => Some(*shm_size),
        _ => None,
    })
}

fn ulimits(plan: &Plan, engine: &EngineFacts) -> Vec<ResourcesUlimits> {
    let of_files = plan.rlimits.iter().filter(|limit| limit.name == "nofile");
    let ulimit = |name: &str, value: u64| {
        let value = i64::try_from(value).ok();
        ResourcesUlimits { name: Some(name.to_owned()), soft: value, hard: value }
    };
    let mut all: Vec<_> = of_files.map(|limit| ulimit(&limit.name, limit.value)).collect();
    if let (true, Some(most)) = (engine.is_podman, engine.most_processes) {
        // Podman asks for the most there is, which its own process may not; ours is no less.
        all.push(ulimit("nproc", most));
    }
    all
}

fn memory_file_systems(
    plan: &Plan,
    engine: &EngineFacts,
    user: User,
) -> Result<HashMap<String, String>, UnsupportedPath> {
    let mut all = HashMap::new();
    for mount in &plan.mounts {
        let sized = match &mount.what {
            MountKind::Tmpfs { size, mode } => Some((size, *mode)),
            MountKind::Sent { size, .. } => Some((size, ANYONE_IN_THE_CONTAINER)),
            _ => None,
        };
        if let Some((size, mode)) = sized {
            let mut options = format!("rw,exec,nosuid,nodev,size={size},mode={mode:o}");
            if !engine.is_podman {
                // Runtimes give it the mode of the image's directory after all, so the owner has to be
                // right. Podman does not take one.
                let User { uid, gid } = user;
                options.push_str(&format!(",uid={uid},gid={gid}"));
            }
            all.insert(text(mount.target.as_path())?, options);
        }
    }
    Ok(all)
}

fn mount(offer: &Offer, engine: &EngineFacts) -> Result<Mount, UnsupportedPath> {
    let (source, target) = (text(&offer.source)?, text(&offer.target)?);
    let odd = |path: &&String| path.contains([',', '"', '\n', '\r']);
    if let Some(path) = [&source, &target].into_iter().find(odd).filter(|_| engine.is_podman) {
        return Err(UnsupportedPath::Options(belljar_spec::text::escape(path.as_bytes())));
    }
    Ok(Mount {
        typ: Some(MountType::BIND),
        source: Some(source),
        target: Some(target),
        read_only: Some(offer.read_only),
        // Both engines bind recursively and privately by themselves; Podman no longer recursively when it
        // gets a propagation option.
        bind_options: (!offer.with_submounts)
            .then(|| MountBindOptions { non_recursive: Some(true), ..MountBindOptions::default() }),
        ..Mount::default()
    })
}

/// Empty, whatever the image has in that place; without a name, so that it ends with the container.
/// Docker has no read-only one without a name, and root owns it; Podman has, and would give it to the
/// command's user.
fn volume(engine: &EngineFacts) -> Mount {
    Mount {
        typ: Some(MountType::VOLUME),
        target: Some(INIT_DIRECTORY.to_owned()),
        read_only: Some(engine.is_podman),
        volume_options: Some(MountVolumeOptions {
            no_copy: Some(true),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    }
}

fn text(path: &Path) -> Result<String, UnsupportedPath> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| UnsupportedPath::NotUtf8(belljar_spec::OsText::from(path).to_string()))
}

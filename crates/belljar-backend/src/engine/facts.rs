//! Asks an engine what it lets its containers do.

use std::time::Instant;

use belljar_spec::{BackendName, CgroupUse, Clause};
use bollard::models::{Runtime, SystemInfo, SystemInfoCgroupVersionEnum};

use super::api::{Api, ApiError};
use super::endpoint::Endpoint;
use super::executable;
use super::find::default_sockets::{may_not, start_it};
use super::host_mounts;
use super::locality::{self, Locality};
use super::peer;
use crate::backend::{Capabilities, EngineFacts, Weakness};
use crate::error::Unavailable;

/// Open files that any engine's machine can be asked for.
const FILES_ELSEWHERE: u64 = 16_384;

/// Cheap: it is asked at every start, and the start itself shows the rest.
pub(super) fn capabilities(
    api: &Api,
    backend: BackendName,
    until: Instant,
) -> Result<Capabilities, Unavailable> {
    refuse_another_kind(api, backend)?;
    let info = match known_without_asking(api) {
        Some(info) => info,
        None => api
            .wait_until("ask the engine about itself", until, api.docker.info())
            .map_err(|error| unreachable(&error, backend))?,
    };
    let engine = engine_facts(api, &info)?;
    if engine.is_local {
        host_mounts::check_caller()?;
    }
    executable::check_present()?;
    let is_root = rustix::process::geteuid().is_root();
    let limits = limits(&info, &engine);
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let (name, version) = (if api.is_podman { "podman" } else { "docker" }, info.server_version);
    Ok(Capabilities {
        version: format!("{name} {}", version.unwrap_or_default()),
        limits,
        cgroup: match info.cgroup_version {
            Some(SystemInfoCgroupVersionEnum::_2) => CgroupUse::V2,
            _ => CgroupUse::V1,
        },
        may_choose_uids: is_root && engine.is_local && !engine.is_rootless,
        landlock: if engine.is_local { belljar_sys::landlock_version() } else { 0 },
        max_files: match engine.is_local {
            true => (files.maximum.unwrap_or(1 << 21) / 2).min(1 << 20),
            false => FILES_ELSEWHERE,
        },
        engine: Some(engine),
        image: None,
    })
}

/// Podman takes most of a second to report its facts. Where its own process listens on this machine,
/// all that matters is known without it.
fn known_without_asking(api: &Api) -> Option<SystemInfo> {
    let Endpoint::Unix(socket) = &api.endpoint else { return None };
    let peer = api.wait_for(peer::find(socket)).ok()?.ok().filter(|_| api.is_podman)?;
    if !peer.is_podman() {
        return None;
    }
    let is_v2 = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let selinux = std::path::Path::new("/sys/fs/selinux/enforce").exists();
    Some(SystemInfo {
        os_type: Some("linux".to_owned()),
        architecture: Some(std::env::consts::ARCH.to_owned()),
        server_version: api.podman.clone(),
        security_options: selinux.then(|| vec!["name=selinux".to_owned()]),
        cgroup_version: is_v2.then_some(SystemInfoCgroupVersionEnum::_2),
        memory_limit: Some(true),
        cpu_cfs_quota: Some(true),
        pids_limit: Some(true),
        ..SystemInfo::default()
    })
}

/// Podman answers to Docker's name where it was installed under that name, as the package podman-docker does, and
/// the record names it. Docker never answers to Podman's.
fn refuse_another_kind(api: &Api, backend: BackendName) -> Result<(), Unavailable> {
    match (backend, api.is_podman) {
        (BackendName::Podman, false) => Err(Unavailable::new(
            format!("the engine at {} is not Podman", api.endpoint),
            "use --backend docker for it, or let CONTAINER_HOST name a Podman",
        )),
        _ => Ok(()),
    }
}

pub(super) fn unreachable(error: &ApiError, backend: BackendName) -> Unavailable {
    let fix = match error {
        ApiError::Silent { .. } => format!("restart the {backend} engine: it is there and hangs"),
        ApiError::Unreachable { error, endpoint, .. } => {
            let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
            match kind {
                _ if endpoint.contains("ssh://") => {
                    "see that ssh reaches it without a question, and that the engine runs there"
                        .to_owned()
                }
                _ if endpoint.starts_with("tcp://") => {
                    "see that the address is right, and that the engine runs there".to_owned()
                }
                Some(std::io::ErrorKind::PermissionDenied) => may_not(backend),
                Some(std::io::ErrorKind::TimedOut) => format!("restart the {backend} engine"),
                _ => start_it(backend),
            }
        }
        ApiError::Refused { .. } => format!("see the log of the {backend} engine"),
        ApiError::TooOld { .. } => "upgrade the older one of the two".to_owned(),
    };
    Unavailable::new(belljar_spec::text::error_chain(error), fix)
}

fn engine_facts(api: &Api, info: &SystemInfo) -> Result<EngineFacts, Unavailable> {
    let options = info.security_options.iter().flatten();
    let has = |name: &str| options.clone().any(|option| option.contains(name));
    if info.os_type.as_deref().is_some_and(|os| os != "linux") {
        return Err(Unavailable::new(
            format!("the engine runs {} containers", info.os_type.as_deref().unwrap_or_default()),
            "an engine for Linux containers",
        ));
    }
    // Podman does not report it, so the owner of the listening process counts too.
    let (is_local, listener) = match locality::of(api, info)? {
        Locality::Here { listener } => (true, listener),
        Locality::Elsewhere => (false, 0),
    };
    let is_rootless = has("rootless") || listener != 0;
    let architecture = kernel_name(info.architecture.as_deref().unwrap_or_default());
    if architecture != std::env::consts::ARCH {
        return Err(Unavailable::new(
            format!(
                "the engine's machine is {architecture} and this belljar is for {}: its copy would not run there",
                std::env::consts::ARCH
            ),
            "use an engine of the same architecture",
        ));
    }
    if is_local && is_rootless && !api.is_podman {
        return Err(Unavailable::new(
            "this is a rootless Docker: a container's ordinary user cannot be the owner of your files there",
            "use rootless Podman (--backend podman) or the jail",
        ));
    }
    let own = rustix::process::geteuid().as_raw();
    if is_local && is_rootless && listener != own {
        return Err(Unavailable::new(
            format!("{} is another user's own engine", api.endpoint),
            "use an engine of your own",
        ));
    }
    Ok(EngineFacts {
        api: api.version,
        is_local,
        is_rootless,
        is_podman: api.is_podman,
        runtimes: runtimes(info, |_| true),
        without_groups: runtimes(info, |runtime| has_argument(runtime, "ignore-cgroups")),
        host_sockets: runtimes(info, |runtime| has_argument(runtime, "host-uds")),
        architecture: architecture.to_owned(),
        selinux: has("selinux"),
        most_processes: most_processes(),
        groups_readable: is_local && super::init_process::groups_can_be_read(),
    })
}

/// Podman has Go's names.
fn kernel_name(architecture: &str) -> &str {
    match architecture {
        "amd64" => "x86_64",
        "arm64" => "aarch64",
        other => other,
    }
}

fn runtimes(info: &SystemInfo, wanted: impl Fn(&Runtime) -> bool) -> Vec<String> {
    let all = info.runtimes.iter().flatten().filter(|(_, runtime)| wanted(runtime));
    let mut names: Vec<String> = all.map(|(name, _)| name.clone()).collect();
    names.sort();
    names
}

fn has_argument(runtime: &Runtime, name: &str) -> bool {
    runtime.runtime_args.iter().flatten().any(|argument| argument.contains(name))
}

/// Podman lowers its own limit to what the kernel can number at all.
fn most_processes() -> Option<u64> {
    let own = rustix::process::getrlimit(rustix::process::Resource::Nproc).maximum;
    let numbers = std::fs::read_to_string("/proc/sys/kernel/pid_max").ok();
    let numbers = numbers.and_then(|text| text.trim().parse().ok());
    own.into_iter().chain(numbers).min()
}

/// The controllers that an ordinary user's engine can use, whatever it reports.
fn delegated(info: &SystemInfo) -> Vec<String> {
    if info.cgroup_version != Some(SystemInfoCgroupVersionEnum::_2) {
        return Vec::new(); // cgroup v1 is root's
    }
    let uid = rustix::process::geteuid().as_raw();
    let path =
        format!("/sys/fs/cgroup/user.slice/user-{uid}.slice/user@{uid}.service/cgroup.controllers");
    let list = std::fs::read_to_string(path).unwrap_or_default();
    list.split_whitespace().map(str::to_owned).collect()
}

fn limits(info: &SystemInfo, engine: &EngineFacts) -> Vec<(Clause, Result<String, Weakness>)> {
    let known = [
        (Clause::LimitMemory, info.memory_limit, "memory"),
        (Clause::LimitCpu, info.cpu_cfs_quota, "cpu"),
        (Clause::LimitPids, info.pids_limit, "pids"),
    ];
    let delegated = engine.is_rootless.then(|| delegated(info));
    let is_given = |name: &str| delegated.as_ref().is_none_or(|all| all.iter().any(|n| n == name));
    let held = |works: Option<bool>, name: &str| match (
        works.map(|works| works && is_given(name)),
        engine.groups_readable,
    ) {
        (Some(true), true) => Ok(format!("the engine's {name} control group, read back")),
        (Some(true), false) => Err(Weakness {
            why: format!("the engine's {name} control group cannot be read back from here"),
            fix: "run belljar on the engine's own machine".to_owned(),
        }),
        _ => Err(Weakness {
            why: format!("the engine has no {name} control group for its containers"),
            fix: "delegate control groups to the engine's user, or use a rootful engine".to_owned(),
        }),
    };
    known.into_iter().map(|(clause, works, name)| (clause, held(works, name))).collect()
}

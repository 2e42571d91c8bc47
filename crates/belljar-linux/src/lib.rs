//! The kernel side of Belljar: the built-in jail, and `belljar __init`, PID 1 of every sandbox.
//!
//! Few dependencies, no threads, no policy: the work arrives as a plan. All `unsafe` code
//! of the project is in [`sys`].
#![cfg(target_os = "linux")]

#[macro_use]
mod macros;

pub mod container_init;
pub mod file_clock;
pub mod filter;
pub mod host_program;
pub mod init;
pub mod jail;
pub mod loopback;
mod mountinfo;
pub mod placeholder;
pub mod relay;
pub mod self_confine;
pub mod snapshot;
pub mod staging;
mod step;
pub mod sys;
mod user_limits;

/// Release and version of the running kernel, which together identify its build.
pub fn kernel() -> String {
    let name = rustix::system::uname();
    let (release, version) = (name.release().to_string_lossy(), name.version().to_string_lossy());
    format!("{release} {version}")
}

/// The namespaces that this process is in, by the kernel's names. Those that it does not show are left out.
pub fn namespaces() -> std::collections::BTreeMap<String, String> {
    let names = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
    let shown = names.into_iter().filter_map(|name| {
        let link = std::fs::read_link(format!("/proc/self/ns/{name}")).ok()?;
        Some((name.to_owned(), link.to_str()?.to_owned()))
    });
    shown.collect()
}

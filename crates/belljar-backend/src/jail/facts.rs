//! Reads what this host lets the jail do. Cheap: it is read at every start.

use belljar_linux::jail::cgroup::{self, Controller};
use belljar_spec::Clause;

use crate::backend::{Capabilities, Weakness};
use crate::error::Unavailable;

/// `mount_setattr` and per-namespace limits came with this.
const KERNEL_FLOOR: (u32, u32) = (5, 14);
const KERNEL_FLOOR_ROOT: (u32, u32) = (5, 19);

pub(super) fn capabilities() -> Result<Capabilities, Unavailable> {
    let version = rustix::system::uname().release().to_string_lossy().into_owned();
    let is_root = rustix::process::geteuid().is_root();
    let floor = if is_root { KERNEL_FLOOR_ROOT } else { KERNEL_FLOOR };
    if number(&version) < floor {
        return Err(Unavailable::new(
            format!("the jail needs kernel {}.{} or newer; this is {version}", floor.0, floor.1),
            "a newer kernel, or an engine: --backend docker, --backend podman",
        ));
    }
    if !is_root && let Some(blocked) = user_namespaces_blocked() {
        return Err(blocked);
    }
    let available = cgroup::detect();
    let limits = [
        (Clause::LimitMemory, Controller::Memory),
        (Clause::LimitCpu, Controller::Cpu),
        (Clause::LimitPids, Controller::Pids),
    ];
    let limits = limits.map(|(clause, controller)| {
        let held = available.holds(controller).map_err(|(why, fix)| Weakness { why, fix });
        (clause, held)
    });
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    Ok(Capabilities {
        version,
        limits: limits.to_vec(),
        cgroup: available.used(),
        may_choose_uids: is_root,
        landlock: belljar_sys::landlock_version(),
        // Descriptors on their way between processes are counted for the user, by this limit.
        max_files: (files.maximum.unwrap_or(1 << 21) / 2).min(1 << 20),
        engine: None,
        image: None,
    })
}

/// `6.18.44-something` as numbers.
fn number(release: &str) -> (u32, u32) {
    let mut parts =
        release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// The switches that distributions have for this. Where they say nothing, the start itself shows it.
fn user_namespaces_blocked() -> Option<Unavailable> {
    let knob = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    if knob("/proc/sys/user/max_user_namespaces").as_deref() == Some("0") {
        return Some(Unavailable::new(
            "user namespaces are switched off on this host (user.max_user_namespaces = 0)",
            "sudo belljar setup, which sets it to 15000 for good",
        ));
    }
    if knob("/proc/sys/kernel/unprivileged_userns_clone").as_deref() == Some("0") {
        return Some(Unavailable::new(
            "user namespaces are switched off for ordinary users (kernel.unprivileged_userns_clone = 0)",
            "sudo belljar setup, which sets it to 1 for good",
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn kernel_releases_compare_as_numbers() {
        assert_eq!(number("6.18.44-fc-v445"), (6, 18));
        assert_eq!(number("5.4.0-150-generic"), (5, 4));
        assert!(number("5.14.0") >= (5, 14) && number("5.9.16") < (5, 14));
        assert_eq!(number("what"), (0, 0));
    }
}

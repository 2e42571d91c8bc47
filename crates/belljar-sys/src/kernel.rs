//! Facts about the running kernel and this process: build, namespaces, Landlock.
#![allow(unsafe_code)]

use std::collections::BTreeMap;

use belljar_spec::init_process::LANDLOCK_WANTED;
use rustix::fs::{Mode, OFlags};

use crate::errno::check;

/// The Landlock version that a sandbox of this kernel has and an attestation must report; 0 where it has none.
pub fn landlock_version() -> u32 {
    const ASK_VERSION: libc::c_int = 1;
    // SAFETY: with this flag the kernel takes no pointer.
    let result = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            ASK_VERSION,
        )
    };
    check(result)
        .ok()
        .and_then(|version| u32::try_from(version).ok())
        .unwrap_or(0)
        .min(LANDLOCK_WANTED)
}

/// Release and version of the running kernel, which together identify its build.
pub fn kernel() -> String {
    let name = rustix::system::uname();
    let (release, version) = (name.release().to_string_lossy(), name.version().to_string_lossy());
    format!("{release} {version}")
}

/// The namespaces that this process is in, by the kernel's names. Those that it does not show are left out.
pub fn namespaces() -> BTreeMap<String, String> {
    let names = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
    let place = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = rustix::fs::open("/proc/self/ns", place, Mode::empty()) else {
        return BTreeMap::new();
    };
    let shown = names.into_iter().filter_map(|name| {
        let link = rustix::fs::readlinkat(&directory, name, Vec::new()).ok()?;
        Some((name.to_owned(), link.into_string().ok()?))
    });
    shown.collect()
}

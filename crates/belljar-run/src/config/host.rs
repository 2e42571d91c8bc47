//! Reads the facts about the host that affect a run: memory, home and configuration directories.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use belljar_spec::HostFacts;

pub(super) fn facts(cwd: &Path, env: &BTreeMap<OsString, OsString>) -> HostFacts {
    HostFacts {
        memory_total: memory_total(),
        home: user_home(env),
        cwd: cwd.to_owned(),
        env: env.clone(),
        git_identity: None, // read where it is needed
    }
}

#[cfg(target_os = "linux")]
pub(super) fn memory_total() -> Option<u64> {
    let info = rustix::system::sysinfo();
    // The kernel's word size differs between architectures.
    #[allow(clippy::useless_conversion)]
    let total = u64::try_from(info.totalram).ok()?;
    total.checked_mul(u64::from(info.mem_unit))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn memory_total() -> Option<u64> {
    None
}

pub(crate) fn user_home(env: &BTreeMap<OsString, OsString>) -> Option<PathBuf> {
    absolute(env, "HOME")
}

/// `$XDG_CONFIG_HOME/belljar`, else `~/.config/belljar`.
pub(super) fn user_config(env: &BTreeMap<OsString, OsString>) -> Option<PathBuf> {
    let base = absolute(env, "XDG_CONFIG_HOME");
    let base = base.or_else(|| user_home(env).map(|home| home.join(".config")));
    base.map(|base| base.join("belljar"))
}

pub(super) fn absolute(env: &BTreeMap<OsString, OsString>, name: &str) -> Option<PathBuf> {
    let path = env.get(OsStr::new(name)).map(PathBuf::from);
    path.filter(|path| path.is_absolute()).map(|path| belljar_spec::paths::clean(&path))
}

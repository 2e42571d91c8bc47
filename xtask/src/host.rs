//! Describes this machine: the user, where programs are, where the workspace is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result};

use crate::command;
use crate::test::packages::unpacked;

/// The directories that the jail's `rootfs = "host"` shows, so a program found only in someone's
/// home does not count.
const SYSTEM_PATH: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Debian or a child of it: apt is there and the package names are Debian's.
pub(crate) fn is_debian() -> bool {
    Path::new("/etc/debian_version").exists() && find_program("apt-get").is_some()
}

/// Looks in the system's directories, then among what was unpacked because it cannot be installed here.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let in_directory = |directory: &Path| {
        let path = directory.join(name);
        fs::metadata(&path).is_ok_and(|file| file.is_file()).then_some(path)
    };
    let in_system = SYSTEM_PATH.iter().find_map(|directory| in_directory(Path::new(directory)));
    in_system.or_else(|| in_directory(&unpacked_commands()?))
}

/// The directory of the commands that were unpacked, if there is one.
pub(crate) fn unpacked_commands() -> Option<PathBuf> {
    let target = target_directory().ok()?;
    Some(unpacked::commands(&target)).filter(|directory| directory.is_dir())
}

/// The same, with an error that names what to install.
pub(crate) fn require_program(name: &str, package: &str) -> Result<PathBuf> {
    find_program(name).with_context(|| {
        format!("`{name}` is not there; install it (Debian: apt-get install {package})")
    })
}

/// The root of the checkout.
pub(crate) fn workspace() -> Result<PathBuf> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let parent = manifest.parent().context("xtask's manifest has no parent directory")?;
    Ok(parent.to_path_buf())
}

/// Cargo, in the workspace, without the variables that `cargo run` set for xtask itself: they are
/// not true for what it builds next.
pub(crate) fn cargo() -> Result<Command> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(program);
    cargo.current_dir(workspace()?);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    Ok(cargo)
}

/// Cargo's target directory, wherever the user's configuration puts it.
pub(crate) fn target_directory() -> Result<PathBuf> {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(found.clone());
    }
    let text = command::read(cargo()?.args(["metadata", "--no-deps", "--format-version=1"]))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&text).context("cargo metadata is not JSON")?;
    let target = metadata["target_directory"].as_str();
    let target = target.context("cargo metadata has no target_directory")?;
    Ok(FOUND.get_or_init(|| PathBuf::from(target)).clone())
}

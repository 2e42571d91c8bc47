//! A temporary directory that every user of the machine can reach: the target directory may be
//! under a home of mode 0700, and the rootless tests run as another user.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};

const REMOVE_TRIES: usize = 20;
const REMOVE_PAUSE: Duration = Duration::from_millis(100);

/// Removed when dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(purpose: &str) -> Result<Self> {
        Self::in_one_of(&[std::env::temp_dir(), "/tmp".into(), "/var/tmp".into()], purpose)
    }

    /// On a disk, where `/tmp` may be a tmpfs.
    pub(crate) fn on_disk(purpose: &str) -> Result<Self> {
        Self::in_one_of(&["/var/tmp".into(), std::env::temp_dir()], purpose)
    }

    fn in_one_of(parents: &[PathBuf], purpose: &str) -> Result<Self> {
        for parent in parents {
            if !reachable_by_all(parent) {
                continue;
            }
            let path = parent.join(format!("belljar-{purpose}-{}", std::process::id()));
            // Fails if the name is taken, so no link can have been put there.
            if DirBuilder::new().mode(0o755).create(&path).is_ok() {
                // The umask may have taken bits away.
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
                    .with_context(|| format!("cannot set the mode of {}", path.display()))?;
                return Ok(Self(path));
            }
        }
        bail!("no temporary directory can be made that other users reach: {parents:?}")
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Copies an executable in, for everyone to run.
    pub(crate) fn copy_executable(&self, source: &Path) -> Result<PathBuf> {
        let name = source.file_name().context("an executable without a name")?;
        let copy = self.0.join(name);
        fs::copy(source, &copy).with_context(|| format!("cannot copy {}", source.display()))?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("cannot set the mode of {}", copy.display()))?;
        Ok(copy)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A run's last writer may outlive its launcher for a moment, and still make files in a home.
        let mut removed = fs::remove_dir_all(&self.0);
        for _ in 0..REMOVE_TRIES {
            if removed.is_ok() || !self.0.exists() {
                return;
            }
            sleep(REMOVE_PAUSE);
            removed = fs::remove_dir_all(&self.0);
        }
        if let Err(error) = removed {
            eprintln!("warning: cannot remove {}: {error}", self.0.display());
        }
    }
}

/// Whether every user can get to a directory.
pub(crate) fn reachable_by_all(path: &Path) -> bool {
    path.is_absolute()
        && path.ancestors().all(|directory| {
            fs::metadata(directory).is_ok_and(|found| found.permissions().mode() & 0o001 != 0)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_below_a_private_one_is_not_reachable() {
        let scratch = Scratch::new("scratch-test").unwrap();
        let inner = scratch.path().join("private/inner");
        fs::create_dir_all(&inner).unwrap();
        assert!(reachable_by_all(&inner));
        let private = scratch.path().join("private");
        fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(!reachable_by_all(&inner));
    }
}

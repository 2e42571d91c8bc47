//! Who starts the programs, where from, and with which home: the same for every peer.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::host;
use crate::test::TestUser;

#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) name: String,
    ids: Option<(u32, u32)>,
    /// Belljar's home; also where the peer's two syncs go, so that the disk is the same.
    pub(crate) home: PathBuf,
    pub(crate) workspace: PathBuf,
}

impl Identity {
    pub(crate) fn ourselves(scratch: &Path) -> Result<Self> {
        Self::new(scratch, if host::is_root() { "root" } else { "user" }, None)
    }

    pub(crate) fn other(scratch: &Path, user: &TestUser) -> Result<Self> {
        Self::new(scratch, "user", Some((user.uid, user.gid)))
    }

    fn new(scratch: &Path, name: &str, ids: Option<(u32, u32)>) -> Result<Self> {
        let make = |kind: &str| {
            let path = scratch.join(format!("{kind}-{name}"));
            fs::create_dir(&path)
                .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o700)))
                .and_then(|()| match ids {
                    Some((uid, gid)) => chown(&path, Some(uid), Some(gid)),
                    None => Ok(()),
                })
                .with_context(|| format!("cannot make {}", path.display()))?;
            Ok::<PathBuf, anyhow::Error>(path)
        };
        Ok(Self { name: name.to_owned(), ids, home: make("home")?, workspace: make("workspace")? })
    }

    /// The same with another home for belljar.
    pub(crate) fn with_home(&self, home: &Path) -> Self {
        Self { home: home.to_owned(), ..self.clone() }
    }

    /// `None`: ourselves.
    pub(crate) fn ids(&self) -> Option<(u32, u32)> {
        self.ids
    }

    /// A command as this user, in the workspace, with a small environment.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.workspace)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", &self.home)
            .env("BELLJAR_HOME", &self.home);
        if let Some((uid, gid)) = self.ids {
            command.uid(uid).gid(gid);
        }
        command
    }
}

//! The ordinary users that the rootless tests run as. Made once and kept: they have no password, and
//! nothing is ever left running under them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::{command, host};

const NAME: &str = "belljar-test";
/// Another one, so that what an engine keeps for its user never meets the jail's tests.
const OWNER_OF_PODMAN: &str = "belljar-podman";

#[derive(Clone)]
pub(crate) struct TestUser {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: PathBuf,
}

impl TestUser {
    /// Makes it if it is missing. Needs root.
    pub(crate) fn ensure() -> Result<Self> {
        Self::ensure_named(NAME)
    }

    /// The same for the one with an engine of its own.
    pub(crate) fn ensure_for_podman() -> Result<Self> {
        Self::ensure_named(OWNER_OF_PODMAN)
    }

    fn ensure_named(name: &str) -> Result<Self> {
        if let Some(user) = Self::find_named(name)? {
            return Ok(user);
        }
        let useradd = host::require_program("useradd", "passwd")?;
        command::check(
            Command::new(useradd)
                .args(["--create-home", "--user-group", "--shell", "/bin/sh"])
                .args(["--comment", "belljar's rootless tests"])
                .arg(name),
            Duration::from_secs(30),
        )?;
        Self::find_named(name)?.with_context(|| format!("useradd made no user {name}"))
    }

    pub(crate) fn find() -> Result<Option<Self>> {
        Self::find_named(NAME)
    }

    fn find_named(name: &str) -> Result<Option<Self>> {
        let text = fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
        Ok(in_passwd(&text, name))
    }

    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        vec![
            ("BELLJAR_TEST_USER".into(), self.name.clone()),
            ("BELLJAR_TEST_UID".into(), self.uid.to_string()),
            ("BELLJAR_TEST_GID".into(), self.gid.to_string()),
            ("BELLJAR_TEST_USER_HOME".into(), self.home.display().to_string()),
        ]
    }
}

fn in_passwd(text: &str, name: &str) -> Option<TestUser> {
    text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [found, _password, uid, gid, _comment, home, ..] = fields[..] else {
            return None;
        };
        if found != name {
            return None;
        }
        Some(TestUser {
            name: found.to_owned(),
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            home: PathBuf::from(home),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_name_matches() {
        let text = "root:x:0:0::/root:/bin/sh\nbelljar-testing:x:7:7::/x:/bin/sh\nbroken\n\
                    belljar-test:x:1001:1002:a b:/home/belljar-test:/bin/sh\n";
        let user = in_passwd(text, "belljar-test").unwrap();
        assert_eq!((user.uid, user.gid), (1001, 1002));
        assert_eq!(user.home, PathBuf::from("/home/belljar-test"));
        assert!(in_passwd(text, "belljar").is_none());
    }
}

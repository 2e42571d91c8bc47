//! Credentials for a registry, from the files and helpers of docker's and podman's own commands.
//!
//! A value found here goes into the one request that needs it, and nowhere else: no error, no record and no
//! `Debug` holds it.

mod config;
mod helper;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;

use zeroize::Zeroizing;

use self::config::ConfigFile;
use crate::reference::{DOCKER_HUB, Reference};

/// What Docker calls its own registry, in files and to helpers.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// A name and what proves it. Wiped when it is dropped.
pub struct Credentials {
    user: Zeroizing<String>,
    proof: Proof,
}

enum Proof {
    Password(Zeroizing<String>),
    /// Given by the registry once, in place of a password.
    IdentityToken(Zeroizing<String>),
}

/// What is sent to prove who asks.
#[derive(Clone, Copy)]
pub enum Secret<'a> {
    Password { user: &'a str, password: &'a str },
    IdentityToken(&'a str),
}

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(hidden)")
    }
}

impl Credentials {
    pub fn password(user: String, password: String) -> Self {
        Self { user: user.into(), proof: Proof::Password(password.into()) }
    }

    pub fn identity_token(token: String) -> Self {
        Self { user: String::new().into(), proof: Proof::IdentityToken(token.into()) }
    }

    /// The value itself.
    pub fn secret(&self) -> Secret<'_> {
        match &self.proof {
            Proof::Password(password) => Secret::Password { user: &self.user, password },
            Proof::IdentityToken(token) => Secret::IdentityToken(token),
        }
    }

    /// Replaces the value in a text that came from elsewhere.
    pub fn cover(&self, text: String) -> String {
        let value = match &self.proof {
            Proof::Password(value) | Proof::IdentityToken(value) => value.as_str(),
        };
        match value.is_empty() {
            true => text,
            false => text.replace(value, "***"),
        }
    }
}

/// Where credentials are looked for.
#[derive(Clone, Debug)]
pub struct CredentialSources {
    /// The first that knows the registry counts.
    pub files: Vec<PathBuf>,
    pub helpers: HelperPrograms,
}

/// How helper programs are found and started. Which programs of the host may be executed is the caller's to
/// decide: one that a run could have written must not be.
#[derive(Clone, Debug)]
pub struct HelperPrograms {
    /// The executable of a name, searched for on a `PATH`.
    pub find: fn(&OsStr, &OsStr) -> Option<PathBuf>,
    pub search_path: OsString,
    /// `PATH` for the helper itself.
    pub own_path: OsString,
}

/// Whose files count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthFiles {
    Docker,
    /// Podman reads docker's file after its own.
    PodmanThenDocker,
}

impl CredentialSources {
    /// As the engine's own command would look, in this process's environment.
    pub fn of_this_user(
        whose: AuthFiles,
        find: fn(&OsStr, &OsStr) -> Option<PathBuf>,
        own_path: OsString,
    ) -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let below = |name: &str, path: &str| set(name).map(|base| PathBuf::from(base).join(path));
        let mut files = Vec::new();
        if whose == AuthFiles::PodmanThenDocker {
            let uid = rustix::process::geteuid().as_raw();
            let session = below("XDG_RUNTIME_DIR", "containers/auth.json")
                .unwrap_or_else(|| format!("/run/containers/{uid}/auth.json").into());
            let default = below("XDG_CONFIG_HOME", "containers/auth.json")
                .or_else(|| below("HOME", ".config/containers/auth.json"));
            files.extend(set("REGISTRY_AUTH_FILE").map(PathBuf::from));
            files.push(session);
            files.extend(default);
        }
        let docker =
            below("DOCKER_CONFIG", "config.json").or_else(|| below("HOME", ".docker/config.json"));
        files.extend(docker);
        let search_path = set("PATH").unwrap_or_default();
        Self { files, helpers: HelperPrograms { find, search_path, own_path } }
    }
}

/// What was found. Trouble is no end: most images need no credentials at all, and a helper that is
/// missing is common. It is reported if the registry then refuses.
#[derive(Debug, Default)]
pub struct CredentialLookup {
    pub credentials: Option<Credentials>,
    pub trouble: Option<String>,
}

/// The credentials for this image's registry.
pub fn look_up_credentials(reference: &Reference, places: &CredentialSources) -> CredentialLookup {
    let mut trouble = None;
    for path in &places.files {
        let found = match ConfigFile::read(path) {
            Ok(None) => continue,
            Ok(Some(file)) => in_file(&file, reference, places),
            Err(error) => Err(error.to_string()),
        };
        match found {
            Ok(Some(credentials)) => {
                return CredentialLookup { credentials: Some(credentials), trouble };
            }
            Ok(None) => {}
            Err(error) => {
                trouble.get_or_insert(error);
            }
        }
    }
    CredentialLookup { credentials: None, trouble }
}

/// A helper for this registry, then the helper for all, then the entry in the file itself.
fn in_file(
    file: &ConfigFile,
    reference: &Reference,
    places: &CredentialSources,
) -> Result<Option<Credentials>, String> {
    let mut failed = None;
    if let Some(name) = file.helper(reference) {
        match helper::get(name, registry_key(reference.registry()), &places.helpers) {
            Ok(Some(credentials)) => return Ok(Some(credentials)),
            Ok(None) => {}
            Err(error) => failed = Some(error.to_string()),
        }
    }
    match (file.stored(reference), failed) {
        (Ok(Some(credentials)), _) => Ok(Some(credentials)),
        (Ok(None), None) => Ok(None),
        (_, Some(error)) => Err(error),
        (Err(error), None) => Err(error.to_string()),
    }
}

/// What files, helpers and engines call a registry.
pub fn registry_key(registry: &str) -> &str {
    match registry {
        DOCKER_HUB => DOCKER_HUB_KEY,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_shows_a_value() {
        let found = CredentialLookup {
            credentials: Some(Credentials::password("ann".into(), "hunter2".into())),
            trouble: None,
        };
        let shown = format!("{found:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("ann"), "{shown}");
        let message = "bad login ann:hunter2 at registry".to_owned();
        let covered = found.credentials.unwrap().cover(message);
        assert_eq!(covered, "bad login ann:*** at registry");
    }
}

//! Credentials for a registry, from the files and helpers of docker's and podman's own commands.
//!
//! A value found here goes to the engine, in the one request that needs it, and nowhere else: no error,
//! no record and no `Debug` holds it.

mod config;
mod helper;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use bollard::auth::DockerCredentials;
use zeroize::Zeroizing;

use self::config::ConfigFile;
use super::reference::{DOCKER_HUB, Reference};
use crate::engine::api::Api;

/// What Docker calls its own registry, in files and to helpers.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// A name and what proves it. Wiped when it is dropped.
pub(super) struct Credentials {
    user: Zeroizing<String>,
    proof: Proof,
}

enum Proof {
    Password(Zeroizing<String>),
    /// Given by the registry once, in place of a password.
    IdentityToken(Zeroizing<String>),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(hidden)")
    }
}

impl Credentials {
    pub(super) fn password(user: String, password: String) -> Self {
        Self { user: user.into(), proof: Proof::Password(password.into()) }
    }

    pub(super) fn identity_token(token: String) -> Self {
        Self { user: String::new().into(), proof: Proof::IdentityToken(token.into()) }
    }

    /// As an engine takes them.
    pub(super) fn for_engine(&self, registry: &str) -> DockerCredentials {
        let mut sent = DockerCredentials {
            serveraddress: Some(key_of(registry).to_owned()),
            ..DockerCredentials::default()
        };
        match &self.proof {
            Proof::Password(password) => {
                sent.username = Some(self.user.to_string());
                sent.password = Some(password.to_string());
            }
            Proof::IdentityToken(token) => sent.identitytoken = Some(token.to_string()),
        }
        sent
    }

    /// Takes the value out of words that came from elsewhere.
    pub(super) fn cover(&self, text: String) -> String {
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
pub(super) struct Places {
    /// The first that knows the registry counts.
    pub(super) files: Vec<PathBuf>,
    /// `PATH`, for helpers.
    pub(super) path: OsString,
}

impl Places {
    /// As the engine's own command would look, in this process's environment.
    pub(super) fn of_this_user(api: &Api) -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let below = |name: &str, path: &str| set(name).map(|base| PathBuf::from(base).join(path));
        let mut files = Vec::new();
        if api.is_podman {
            let uid = rustix::process::geteuid().as_raw();
            let session = below("XDG_RUNTIME_DIR", "containers/auth.json")
                .unwrap_or_else(|| format!("/run/containers/{uid}/auth.json").into());
            let kept = below("XDG_CONFIG_HOME", "containers/auth.json")
                .or_else(|| below("HOME", ".config/containers/auth.json"));
            files.extend(set("REGISTRY_AUTH_FILE").map(PathBuf::from));
            files.push(session);
            files.extend(kept);
        }
        let docker =
            below("DOCKER_CONFIG", "config.json").or_else(|| below("HOME", ".docker/config.json"));
        files.extend(docker);
        Self { files, path: set("PATH").unwrap_or_default() }
    }
}

/// What was found. Trouble is no end: most images need no credentials at all, and a helper that is
/// missing is common. It is reported if the registry then refuses.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    pub(super) credentials: Option<Credentials>,
    pub(super) trouble: Option<String>,
}

/// The credentials for this image's registry.
pub(super) fn look_up(reference: &Reference, places: &Places) -> Lookup {
    let mut trouble = None;
    for path in &places.files {
        let found = match ConfigFile::read(path) {
            Ok(None) => continue,
            Ok(Some(file)) => in_file(&file, reference, places),
            Err(error) => Err(error.to_string()),
        };
        match found {
            Ok(Some(credentials)) => return Lookup { credentials: Some(credentials), trouble },
            Ok(None) => {}
            Err(error) => {
                trouble.get_or_insert(error);
            }
        }
    }
    Lookup { credentials: None, trouble }
}

/// A helper for this registry, then the helper for all, then what stands in the file itself.
fn in_file(
    file: &ConfigFile,
    reference: &Reference,
    places: &Places,
) -> Result<Option<Credentials>, String> {
    let mut failed = None;
    if let Some(name) = file.helper(reference) {
        match helper::get(name, key_of(reference.registry()), &places.path) {
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

/// What files and helpers call a registry.
fn key_of(registry: &str) -> &str {
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
        let found = Lookup {
            credentials: Some(Credentials::password("ann".into(), "hunter2".into())),
            trouble: None,
        };
        let shown = format!("{found:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("ann"), "{shown}");
        let message = "bad login ann:hunter2 at registry".to_owned();
        let covered = found.credentials.unwrap().cover(message);
        assert_eq!(covered, "bad login ann:*** at registry");
    }

    #[test]
    fn the_hub_has_a_key_of_its_own() {
        let sent = Credentials::identity_token("t".into()).for_engine("docker.io");
        assert_eq!(sent.serveraddress.as_deref(), Some("https://index.docker.io/v1/"));
        assert_eq!(sent.identitytoken.as_deref(), Some("t"));
        assert_eq!(sent.password, None);
    }
}

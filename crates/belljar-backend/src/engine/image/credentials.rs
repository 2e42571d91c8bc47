//! Credentials for a registry, in the form that engines take them.

use std::ffi::OsStr;
use std::path::PathBuf;

use belljar_bind::host_program;
use belljar_image::{AuthFiles, CredentialSources, Credentials, Secret, registry_key};
use bollard::auth::DockerCredentials;

use crate::engine::api::Api;

/// Where the engine's own command would look.
pub(super) fn sources(api: &Api) -> CredentialSources {
    let whose = match api.is_podman {
        true => AuthFiles::PodmanThenDocker,
        false => AuthFiles::Docker,
    };
    CredentialSources::of_this_user(whose, find_helper, host_program::clean_path())
}

/// Only in absolute directories: a program in the current one may have been put there by a run.
pub(crate) fn find_helper(program: &OsStr, path: &OsStr) -> Option<PathBuf> {
    let trees = host_program::writable_trees().ok()?;
    host_program::find_on(program, path, &trees).ok()
}

pub(super) fn for_engine(credentials: &Credentials, registry: &str) -> DockerCredentials {
    let serveraddress = Some(registry_key(registry).to_owned());
    let sent = DockerCredentials { serveraddress, ..DockerCredentials::default() };
    match credentials.secret() {
        Secret::Password { user, password } => DockerCredentials {
            username: Some(user.to_owned()),
            password: Some(password.to_owned()),
            ..sent
        },
        Secret::IdentityToken(token) => {
            DockerCredentials { identitytoken: Some(token.to_owned()), ..sent }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hub_has_a_key_of_its_own() {
        let sent = for_engine(&Credentials::identity_token("t".into()), "docker.io");
        assert_eq!(sent.serveraddress.as_deref(), Some("https://index.docker.io/v1/"));
        assert_eq!(sent.identitytoken.as_deref(), Some("t"));
        assert_eq!(sent.password, None);
        let sent = for_engine(&Credentials::password("ann".into(), "pw".into()), "reg:5000");
        assert_eq!(sent.serveraddress.as_deref(), Some("reg:5000"));
        assert_eq!((sent.username.as_deref(), sent.password.as_deref()), (Some("ann"), Some("pw")));
    }

    #[test]
    fn a_helper_in_a_relative_directory_is_not_found() {
        assert_eq!(find_helper("sh".as_ref(), OsStr::new(".:bin:")), None);
        assert!(find_helper("sh".as_ref(), OsStr::new("/usr/bin:/bin")).is_some(), "the control");
    }
}

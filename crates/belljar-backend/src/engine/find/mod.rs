//! Finds the engine's endpoint from variables, contexts and default sockets.

mod connection;
mod context;
pub(super) mod default_sockets;
mod pinned;

use std::fmt;
use std::path::PathBuf;

use belljar_spec::BackendName;

use super::endpoint::{BadEndpoint, Endpoint};
use crate::error::Unavailable;

const INSTEAD_OF_TLS: &str = "reach it over ssh: ssh://user@host";

/// Who looks for an engine. What is found depends on nothing else but the files it names.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// A variable that is set and not empty.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    pub uid: u32,
}

impl fmt::Debug for Caller<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").field("uid", &self.uid).finish_non_exhaustive()
    }
}

impl Caller<'_> {
    fn get(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    fn directory(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }
}

/// This process.
pub(super) fn endpoint(backend: BackendName) -> Result<Endpoint, Unavailable> {
    let variable = |name: &str| Some(std::env::var_os(name)?.to_string_lossy().into_owned());
    let uid = rustix::process::geteuid().as_raw();
    endpoint_for(backend, &Caller { variable: &variable, uid })
}

/// What `pinned::variables` has for this process.
pub fn pinned_variables(engines: &[BackendName]) -> Vec<(String, String)> {
    let variable = |name: &str| Some(std::env::var_os(name)?.to_string_lossy().into_owned());
    let uid = rustix::process::geteuid().as_raw();
    pinned::variables(engines, &Caller { variable: &variable, uid })
}

/// Whatever was named is meant, also if nothing answers there.
pub(super) fn endpoint_for(
    backend: BackendName,
    caller: &Caller<'_>,
) -> Result<Endpoint, Unavailable> {
    match named(backend, caller)? {
        Some(endpoint) => Ok(endpoint),
        None => {
            default_sockets::first_that_answers(backend, &default_sockets::sockets(backend, caller))
        }
    }
}

fn named(backend: BackendName, caller: &Caller<'_>) -> Result<Option<Endpoint>, Unavailable> {
    let variable = host_variable(backend);
    match (caller.get(variable), backend) {
        (Some(text), _) => by_variable(backend, variable, &text, caller).map(Some),
        (None, BackendName::Podman) => connection::named(caller),
        (None, _) => context::chosen(caller),
    }
}

fn host_variable(backend: BackendName) -> &'static str {
    match backend {
        BackendName::Podman => "CONTAINER_HOST",
        _ => "DOCKER_HOST",
    }
}

fn by_variable(
    backend: BackendName,
    variable: &str,
    text: &str,
    caller: &Caller<'_>,
) -> Result<Endpoint, Unavailable> {
    let (tls, identity): (&[&str], _) = match backend {
        BackendName::Podman => (
            &["CONTAINER_TLS_CA", "CONTAINER_TLS_CERT", "CONTAINER_TLS_KEY"],
            caller.get("CONTAINER_SSHKEY"),
        ),
        _ => (&["DOCKER_TLS_VERIFY", "DOCKER_TLS", "DOCKER_CERT_PATH"], None),
    };
    let endpoint = Endpoint::of(backend, text)
        .and_then(|endpoint| endpoint.with_identity(identity))
        .map_err(|error| bad(variable, &error))?;
    match (&endpoint, tls.iter().find(|name| caller.get(name).is_some())) {
        // Never plain where something else was asked for.
        (Endpoint::Tcp { .. }, Some(asked)) => Err(Unavailable::new(
            format!("{asked} asks for TLS with {endpoint}, which this version does not support"),
            INSTEAD_OF_TLS,
        )),
        _ => Ok(endpoint),
    }
}

fn bad(by: &str, error: &BadEndpoint) -> Unavailable {
    let fix = match error {
        BadEndpoint::Tls(_) => INSTEAD_OF_TLS.to_owned(),
        BadEndpoint::Unknown(_) => format!("correct {by}"),
    };
    Unavailable::new(format!("{by}: {error}"), fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(backend: BackendName, set: &[(&str, &str)]) -> Result<String, Unavailable> {
        let variable = |name: &str| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        let caller = Caller { variable: &variable, uid: 1000 };
        named(backend, &caller).map(|found| found.map(|at| at.to_string()).unwrap_or_default())
    }

    #[test]
    fn each_engine_has_its_own_variable() {
        let both = [("DOCKER_HOST", "unix:///d"), ("CONTAINER_HOST", "ssh://me@far")];
        assert_eq!(found(BackendName::Docker, &both), Ok("unix:///d".into()));
        assert_eq!(found(BackendName::Podman, &both), Ok("podman+ssh://me@far".into()));
        assert_eq!(found(BackendName::Podman, &[("CONTAINER_HOST", "")]), Ok(String::new()));
        let key = [("CONTAINER_HOST", "ssh://far/p.sock"), ("CONTAINER_SSHKEY", "/k")];
        assert_eq!(
            found(BackendName::Podman, &key),
            Ok("podman+ssh://far/p.sock?identity=/k".into())
        );
    }

    #[test]
    fn tls_is_refused_and_never_left_out() {
        for asked in ["DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"] {
            let refused =
                found(BackendName::Docker, &[("DOCKER_HOST", "tcp://h:2376"), (asked, "1")]);
            let Err(Unavailable { why, fix }) = refused else { panic!("{refused:?}") };
            assert!(why.contains(asked) && fix.contains("ssh://"), "{why}; {fix}");
            // It does not name a socket.
            let socket = [("DOCKER_HOST", "unix:///d"), (asked, "1")];
            assert_eq!(found(BackendName::Docker, &socket), Ok("unix:///d".into()));
        }
        assert!(found(BackendName::Docker, &[("DOCKER_HOST", "https://h:2376")]).is_err());
        assert!(found(BackendName::Docker, &[("DOCKER_HOST", "nonsense")]).is_err());
    }
}

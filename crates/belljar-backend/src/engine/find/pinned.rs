//! What this process finds about engines, as variables for a launcher that is given another home directory.

use std::path::PathBuf;

use belljar_spec::BackendName;

use super::{Caller, endpoint_for, host_variable};

/// The engine at its address, and the directories of the engines' own settings. A launcher with these
/// looks at nothing in its `HOME` to find the engine or the credentials for a registry.
///
/// Only variables that name an engine that exists: the launcher itself reports what is wrong with any other.
pub(super) fn variables(engines: &[BackendName], caller: &Caller<'_>) -> Vec<(String, String)> {
    let mut pinned = Vec::new();
    for backend in engines {
        if let Ok(endpoint) = endpoint_for(*backend, caller) {
            pinned.push((host_variable(*backend).to_owned(), endpoint.to_string()));
        }
    }
    let below_home = |path: &str| caller.directory("HOME").map(|home| home.join(path));
    let docker = caller.directory("DOCKER_CONFIG").or_else(|| below_home(".docker"));
    let default = caller
        .directory("XDG_CONFIG_HOME")
        .or_else(|| below_home(".config"))
        .map(|settings| settings.join("containers/auth.json"));
    let podman = caller.directory("REGISTRY_AUTH_FILE").or(default);
    for (name, path) in [("DOCKER_CONFIG", docker), ("REGISTRY_AUTH_FILE", podman)] {
        let path = path.filter(|path: &PathBuf| path.exists());
        pinned.extend(path.map(|path| (name.to_owned(), path.to_string_lossy().into_owned())));
    }
    pinned
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// What the variables name is what the user's own environment names, whatever another home contains.
    #[test]
    fn a_launcher_with_another_home_finds_the_users_own_engine() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["own/.docker/run", "made-up/.docker"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        let socket = at("own/.docker/run/docker.sock");
        let _engine = UnixListener::bind(&socket).unwrap();
        let meta = at("own/.docker/contexts/meta/1");
        fs::create_dir_all(&meta).unwrap();
        let host = format!("unix://{}", socket.display());
        let context = format!(r#"{{"Name":"mine","Endpoints":{{"docker":{{"Host":"{host}"}}}}}}"#);
        fs::write(meta.join("meta.json"), context).unwrap();
        fs::write(at("own/.docker/config.json"), r#"{"currentContext":"mine"}"#).unwrap();
        fs::write(at("made-up/.docker/config.json"), "a secret\n").unwrap();

        let home = |name: &str| vec![("HOME".to_owned(), at(name).display().to_string())];
        let found = |set: &[(String, String)]| {
            let variable = |name: &str| {
                set.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
            };
            let caller = Caller { variable: &variable, uid: 4_000_000 };
            (endpoint_for(BackendName::Docker, &caller), variables(&[BackendName::Docker], &caller))
        };
        let (own, pinned) = found(&home("own"));
        assert_eq!(own.unwrap().to_string(), host);
        assert!(pinned.contains(&("DOCKER_HOST".to_owned(), host.clone())), "{pinned:?}");
        let settings = at("own/.docker").display().to_string();
        assert!(pinned.contains(&("DOCKER_CONFIG".to_owned(), settings)), "{pinned:?}");
        // The control: without them, the other home is what is read.
        assert!(found(&home("made-up")).0.is_err());
        let both = [home("made-up"), pinned].concat();
        assert_eq!(found(&both).0.unwrap().to_string(), host);
    }
}

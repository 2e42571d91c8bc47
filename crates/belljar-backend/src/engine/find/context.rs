//! The context that `docker context use` chose.

use std::io;
use std::path::{Path, PathBuf};

use belljar_spec::BackendName;
use serde::Deserialize;

use super::{Caller, INSTEAD_OF_TLS, bad};
use crate::engine::endpoint::Endpoint;
use crate::error::Unavailable;

/// The name that means no context.
const DEFAULT: &str = "default";

#[derive(Deserialize)]
struct Config {
    #[serde(rename = "currentContext", default)]
    current_context: String,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(rename = "Name", default)]
    name: String,
    #[serde(rename = "Endpoints", default)]
    endpoints: Endpoints,
}

#[derive(Default, Deserialize)]
struct Endpoints {
    docker: Option<DockerEndpoint>,
}

#[derive(Deserialize)]
struct DockerEndpoint {
    #[serde(rename = "Host", default)]
    host: String,
}

pub(super) fn chosen(caller: &Caller<'_>) -> Result<Option<Endpoint>, Unavailable> {
    let config = caller.directory("DOCKER_CONFIG");
    let config = config.or_else(|| Some(caller.directory("HOME")?.join(".docker")));
    let by_variable = caller.get("DOCKER_CONTEXT");
    let Some(config) = config else {
        return match by_variable {
            Some(name) if name != DEFAULT => Err(unknown(&name, "DOCKER_CONTEXT", None)),
            _ => Ok(None),
        };
    };
    let (name, by) = match by_variable {
        Some(name) => (name, "DOCKER_CONTEXT".to_owned()),
        None => {
            let file = config.join("config.json");
            let current: Option<Config> = read_json(&file)?;
            let name = current.map(|config| config.current_context).unwrap_or_default();
            (name, file.display().to_string())
        }
    };
    if name.is_empty() || name == DEFAULT {
        return Ok(None);
    }
    let contexts = config.join("contexts");
    let (directory, meta) =
        find(&contexts, &name)?.ok_or_else(|| unknown(&name, &by, Some(&contexts)))?;
    let host = meta.endpoints.docker.unwrap_or(DockerEndpoint { host: String::new() }).host;
    let context = format!("docker context \"{}\"", belljar_spec::text::escape(name.as_bytes()));
    let endpoint =
        Endpoint::of(BackendName::Docker, &host).map_err(|error| bad(&context, &error))?;
    let is_tcp = matches!(endpoint, Endpoint::Tcp { .. });
    if is_tcp && contexts.join("tls").join(directory).join("docker").exists() {
        return Err(Unavailable::new(
            format!("{context} asks for TLS with {endpoint}, which this version does not support"),
            INSTEAD_OF_TLS,
        ));
    }
    Ok(Some(endpoint))
}

fn unknown(name: &str, by: &str, contexts: Option<&Path>) -> Unavailable {
    let name = belljar_spec::text::escape(name.as_bytes());
    let place = contexts.map(|path| format!(" in {}", path.display())).unwrap_or_default();
    Unavailable::new(
        format!("{by} names the docker context \"{name}\", which is not there{place}"),
        "see docker context ls",
    )
}

/// Its directory's name is a hash of its own, which the file inside spares us.
fn find(contexts: &Path, name: &str) -> Result<Option<(PathBuf, Meta)>, Unavailable> {
    let Ok(entries) = std::fs::read_dir(contexts.join("meta")) else { return Ok(None) };
    for entry in entries.flatten() {
        let meta: Option<Meta> = read_json(&entry.path().join("meta.json"))?;
        if let Some(meta) = meta.filter(|meta| meta.name == name) {
            return Ok(Some((PathBuf::from(entry.file_name()), meta)));
        }
    }
    Ok(None)
}

/// What is there and cannot be read might name another engine, so it is not passed over.
fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, Unavailable> {
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text,
    };
    let read = text.and_then(|text| serde_json::from_slice(&text).map_err(io::Error::other));
    read.map(Some).map_err(|error| {
        Unavailable::new(
            format!("cannot read {}: {error}", path.display()),
            "correct it, or name the engine by DOCKER_HOST",
        )
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::fs;

    use super::*;

    /// A settings directory with the current context and (name, host, tls).
    fn settings(current: &str, contexts: &[(&str, &str, bool)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let config = format!(r#"{{"currentContext": "{current}", "auths": {{}}}}"#);
        fs::write(directory.path().join("config.json"), config).unwrap();
        for (number, (name, host, tls)) in contexts.iter().enumerate() {
            let meta = directory.path().join(format!("contexts/meta/{number}"));
            fs::create_dir_all(&meta).unwrap();
            let text = format!(
                r#"{{"Name":"{name}","Metadata":{{}},"Endpoints":{{"docker":{{"Host":"{host}","SkipTLSVerify":false}}}}}}"#
            );
            fs::write(meta.join("meta.json"), text).unwrap();
            if *tls {
                let keys = directory.path().join(format!("contexts/tls/{number}/docker"));
                fs::create_dir_all(keys).unwrap();
            }
        }
        directory
    }

    fn found(directory: &Path, set: &[(&str, &str)]) -> Result<String, Unavailable> {
        let config = directory.to_str().unwrap().to_owned();
        let variable = |name: &str| {
            let given = set.iter().find(|(known, _)| *known == name);
            let config = (name == "DOCKER_CONFIG").then(|| config.clone());
            given.map(|(_, value)| (*value).to_owned()).or(config)
        };
        let caller = Caller { variable: &variable, uid: 1000 };
        chosen(&caller).map(|found| found.map(|at| at.to_string()).unwrap_or_default())
    }

    const TWO: &[(&str, &str, bool)] =
        &[("one", "unix:///one.sock", false), ("two", "ssh://me@far", false)];

    #[test]
    fn the_variable_goes_before_the_file() {
        let directory = settings("one", TWO);
        assert_eq!(found(directory.path(), &[]), Ok("unix:///one.sock".into()));
        let two = [("DOCKER_CONTEXT", "two")];
        assert_eq!(found(directory.path(), &two), Ok("ssh://me@far".into()));
        let default = [("DOCKER_CONTEXT", "default")];
        assert_eq!(found(directory.path(), &default), Ok(String::new()));
    }

    #[test]
    fn no_settings_are_no_context() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(found(directory.path(), &[]), Ok(String::new()));
        assert_eq!(found(settings("", TWO).path(), &[]), Ok(String::new()));
        assert_eq!(found(settings("default", TWO).path(), &[]), Ok(String::new()));
    }

    #[test]
    fn a_context_that_is_not_there_or_cannot_be_read_is_an_error() {
        let refused = found(settings("three", TWO).path(), &[]).unwrap_err();
        assert!(refused.why.contains("three") && refused.why.contains("config.json"), "{refused}");
        let directory = settings("one", TWO);
        fs::write(directory.path().join("config.json"), "{").unwrap();
        assert!(found(directory.path(), &[]).unwrap_err().why.contains("config.json"));
        let no_host = settings("one", &[("one", "", false)]);
        assert!(found(no_host.path(), &[]).is_err());
        let nowhere = [("DOCKER_CONTEXT", "two"), ("DOCKER_CONFIG", "")];
        assert!(found(directory.path(), &nowhere).is_err());
    }

    #[test]
    fn a_context_with_keys_is_not_spoken_to_in_plain() {
        let tls = settings("far", &[("far", "tcp://far:2376", true)]);
        assert!(found(tls.path(), &[]).unwrap_err().fix.contains("ssh://"));
        let plain = settings("far", &[("far", "tcp://far:2375", false)]);
        assert_eq!(found(plain.path(), &[]), Ok("tcp://far:2375".into()));
    }
}

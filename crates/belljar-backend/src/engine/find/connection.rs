//! The connection that `CONTAINER_CONNECTION` names. Podman's default connection is not looked at: on
//! Linux its own command does not use it either, unless it is configured to.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use belljar_spec::BackendName;
use serde::Deserialize;

use super::{Caller, bad};
use crate::engine::endpoint::Endpoint;
use crate::error::Unavailable;

const VARIABLE: &str = "CONTAINER_CONNECTION";

/// `podman-connections.json`.
#[derive(Default, Deserialize)]
struct File {
    #[serde(rename = "Connection", default)]
    connection: Connections,
}

#[derive(Default, Deserialize)]
struct Connections {
    #[serde(rename = "Connections", default)]
    connections: BTreeMap<String, Destination>,
}

#[derive(Deserialize)]
struct Destination {
    #[serde(rename = "URI")]
    uri: String,
    #[serde(rename = "Identity", default)]
    identity: String,
}

pub(super) fn named(caller: &Caller<'_>) -> Result<Option<Endpoint>, Unavailable> {
    let Some(name) = caller.get(VARIABLE) else { return Ok(None) };
    let shown = belljar_spec::text::escape(name.as_bytes());
    let Destination { uri, identity } = find(caller, &name)?.ok_or_else(|| {
        Unavailable::new(
            format!("{VARIABLE} names the connection \"{shown}\", which podman does not have"),
            "see podman system connection list",
        )
    })?;
    let endpoint = Endpoint::of(BackendName::Podman, &uri).and_then(|endpoint| {
        endpoint.with_identity(Some(identity).filter(|file| !file.is_empty()))
    });
    endpoint.map(Some).map_err(|error| bad(&format!("podman connection \"{shown}\""), &error))
}

fn find(caller: &Caller<'_>, name: &str) -> Result<Option<Destination>, Unavailable> {
    let settings = caller
        .directory("XDG_CONFIG_HOME")
        .or_else(|| Some(caller.directory("HOME")?.join(".config")))
        .map(|directory| directory.join("containers"));
    let json = caller.directory("PODMAN_CONNECTIONS_CONF");
    let json = json.or_else(|| Some(settings.as_ref()?.join("podman-connections.json")));
    if let Some(text) = read(json.as_deref())? {
        let mut file: File = serde_json::from_slice(&text)
            .map_err(|error| broken(json.as_deref(), &error.to_string()))?;
        if let Some(found) = file.connection.connections.remove(name) {
            return Ok(Some(found));
        }
    }
    let conf: Option<PathBuf> = caller
        .directory("CONTAINERS_CONF")
        .or_else(|| Some(settings.as_ref()?.join("containers.conf")));
    let Some(text) = read(conf.as_deref())? else { return Ok(None) };
    let text = String::from_utf8_lossy(&text);
    in_conf(&text, name).map_err(|error| broken(conf.as_deref(), error.message()))
}

/// `containers.conf`, where older versions stored them.
fn in_conf(text: &str, name: &str) -> Result<Option<Destination>, toml_edit::TomlError> {
    let file: toml_edit::DocumentMut = text.parse()?;
    let at = |item: &toml_edit::Item, key: &str| item.get(key).cloned();
    let found = at(file.as_item(), "engine")
        .and_then(|engine| at(&engine, "service_destinations"))
        .and_then(|destinations| at(&destinations, name));
    let text = |key: &str| Some(found.as_ref()?.get(key)?.as_str()?.to_owned());
    Ok(text("uri").map(|uri| Destination { uri, identity: text("identity").unwrap_or_default() }))
}

fn read(path: Option<&Path>) -> Result<Option<Vec<u8>>, Unavailable> {
    let Some(path) = path else { return Ok(None) };
    match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        text => text.map(Some).map_err(|error| broken(Some(path), &error.to_string())),
    }
}

fn broken(path: Option<&Path>, why: &str) -> Unavailable {
    let path = path.unwrap_or(Path::new("")).display();
    Unavailable::new(
        format!("cannot read {path}: {why}"),
        "correct it, or name the engine by CONTAINER_HOST",
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    fn found(directory: &Path, name: &str) -> Result<String, Unavailable> {
        let home = directory.to_str().unwrap().to_owned();
        let variable = |asked: &str| match asked {
            "HOME" => Some(home.clone()),
            VARIABLE => Some(name.to_owned()),
            _ => None,
        };
        let caller = Caller { variable: &variable, uid: 1000 };
        named(&caller).map(|found| found.map(|at| at.to_string()).unwrap_or_default())
    }

    #[test]
    fn connections_are_in_either_file() {
        let home = tempfile::tempdir().unwrap();
        let settings = home.path().join(".config/containers");
        std::fs::create_dir_all(&settings).unwrap();
        let json = r#"{"Connection":{"Default":"x","Connections":{"far":{"URI":"ssh://me@far:22/run/p.sock","Identity":"/k","IsMachine":false}}}}"#;
        std::fs::write(settings.join("podman-connections.json"), json).unwrap();
        let conf = "[engine.service_destinations.near]\nuri = \"unix:///p.sock\"\n";
        std::fs::write(settings.join("containers.conf"), conf).unwrap();
        assert_eq!(
            found(home.path(), "far"),
            Ok("podman+ssh://me@far:22/run/p.sock?identity=/k".into())
        );
        assert_eq!(found(home.path(), "near"), Ok("unix:///p.sock".into()));
        assert!(found(home.path(), "x").unwrap_err().why.contains("\"x\""));
        assert_eq!(found(home.path(), ""), Ok(String::new()));
        std::fs::write(settings.join("containers.conf"), "[").unwrap();
        assert!(found(home.path(), "near").is_err());
    }
}

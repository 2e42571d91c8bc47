//! One engine, as belljar uses it and as its own command does.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use belljar::spec::{BackendChoice, env};

use crate::bench::identity::Identity;
use crate::engines::podman;
use crate::host;

pub(in crate::bench) const DOCKER_HOST: &str = "DOCKER_HOST";
pub(in crate::bench) const PODMAN_HOST: &str = "CONTAINER_HOST";

/// What belljar does for every container, as far as the engine's own command has it.
const SEALED: [&str; 7] =
    ["--network", "none", "--read-only", "--cap-drop", "ALL", "--user", "1234"];

pub(in crate::bench) struct EngineArm {
    pub(in crate::bench) name: &'static str,
    pub(super) backend: BackendChoice,
    pub(super) image: String,
    /// `NAME=value`, which tells belljar where the engine is.
    address: String,
    /// The engine's own command, as `env` takes it.
    client: Vec<String>,
}

/// Those that run.
pub(in crate::bench) fn all() -> Result<Vec<EngineArm>> {
    let mut arms = Vec::new();
    if let Some(address) = variable(env::TEST_DOCKER) {
        match host::find_program("docker") {
            Some(docker) => arms.push(EngineArm {
                name: "docker",
                backend: BackendChoice::Docker,
                image: variable(env::TEST_IMAGE_DOCKER).context("no image on Docker")?,
                client: vec![format!("{DOCKER_HOST}={address}"), docker.display().to_string()],
                address: format!("{DOCKER_HOST}={address}"),
            }),
            None => eprintln!("no comparison with docker: its command is not installed"),
        }
    }
    if let Some(address) = variable(env::TEST_PODMAN) {
        arms.push(EngineArm {
            name: "podman",
            backend: BackendChoice::Podman,
            image: variable(env::TEST_IMAGE_PODMAN).context("no image on Podman")?,
            client: podman::client(&address)?,
            address: format!("{PODMAN_HOST}={address}"),
        });
    }
    Ok(arms)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

impl EngineArm {
    /// `belljar run …`, after `env`, for more flags.
    pub(in crate::bench) fn belljar(&self, belljar: &Path) -> Vec<String> {
        let mut words = vec![self.address.clone(), belljar.display().to_string()];
        let run = ["run", "--no-config", "-q", "--backend", self.name, "--image", &self.image];
        words.extend(run.map(str::to_owned));
        words
    }

    /// `belljar run … --`, after `env`.
    pub(super) fn belljar_run(&self, belljar: &Path) -> Vec<String> {
        let mut words = self.belljar(belljar);
        words.push("--".to_owned());
        words
    }

    /// `docker run … IMAGE`, after `env`.
    pub(in crate::bench) fn client_run(&self, options: &[&str]) -> Vec<String> {
        let run = ["run", "--rm"].iter().chain(&SEALED).chain(options);
        let words = self.client.iter().cloned().chain(run.map(|word| (*word).to_owned()));
        words.chain([self.image.clone()]).collect()
    }

    /// Any other command of the engine's.
    pub(in crate::bench) fn client(&self, identity: &Identity, words: &[&str]) -> Command {
        let mut client = identity.command(Path::new("env"));
        client.args(&self.client).args(words);
        client
    }

    /// The two that are compared: belljar's name, the other's.
    pub(super) fn names(&self, what: &str) -> [String; 2] {
        [format!("belljar {what}, {}", self.name), format!("{} {what}", self.name)]
    }
}

//! The container engines that `cargo xtask test` started: which exist, how to use them, and what is left on them.

use std::path::{Path, PathBuf};

use belljar::record::HomeKey;
use belljar::spec::env;
use serde_json::Value;

use super::actor::{Actor, must_work, podman_owner, test_user};
use super::http;
use super::private_docker::{BUSYBOX_IMAGE, DEBIAN_IMAGE, EMPTY_IMAGE};
use super::remote_agent::RemoteAgent;
use super::{Lab, as_root};

const LABEL_OWNER: &str = "belljar.owner";
const LABEL_RUN: &str = "belljar.run";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestEngine {
    Docker,
    /// Root's.
    Podman,
    /// An ordinary user's own.
    PodmanRootless,
    /// Docker, with gVisor as the runtime.
    Runsc,
    /// Docker, used by an ordinary user with a belljar that was built without the jail.
    DockerNoJail,
}

impl TestEngine {
    /// Those that every test of engines uses.
    pub const ALL: [Self; 4] = [Self::Docker, Self::Podman, Self::PodmanRootless, Self::Runsc];

    /// As `BELLJAR_MUST_WORK` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::PodmanRootless => "podman-rootless",
            Self::Runsc => "runsc",
            Self::DockerNoJail => "docker-no-jail",
        }
    }

    /// `cargo xtask test` runs the jail's tests once more on an engine, which this names.
    pub fn of_this_test_run() -> Option<Self> {
        let name = std::env::var(env::TEST_ON).ok().filter(|name| name != RemoteAgent::NAME)?;
        let mut known = Self::ALL.into_iter().chain([Self::DockerNoJail]);
        let engine = known.find(|engine| engine.name() == name);
        assert!(engine.is_some(), "{} names no engine: {name}", env::TEST_ON);
        engine
    }

    /// Who has to start belljar there: a rootless engine is its owner's alone.
    pub fn actor(self) -> Actor {
        match self {
            Self::PodmanRootless => Actor::PodmanOwner,
            Self::DockerNoJail => Actor::User,
            Self::Docker | Self::Podman | Self::Runsc => Actor::Me,
        }
    }

    /// `Err` is why it is not here.
    fn find(self) -> Result<EngineAccess, String> {
        if !as_root() {
            return Err("it needs root".to_owned());
        }
        let (backend, address, image) = match self {
            Self::Docker | Self::Runsc | Self::DockerNoJail => {
                ("docker", env::TEST_DOCKER, env::TEST_IMAGE_DOCKER)
            }
            Self::Podman => ("podman", env::TEST_PODMAN, env::TEST_IMAGE_PODMAN),
            Self::PodmanRootless => {
                podman_owner().ok_or("its owner is not known")?;
                ("podman", env::TEST_PODMAN_ROOTLESS, env::TEST_IMAGE_PODMAN)
            }
        };
        let address = variable(address)?;
        let socket: PathBuf =
            address.strip_prefix("unix://").ok_or("its address is no socket's")?.into();
        let runtime = match self {
            Self::Runsc => Some(variable(env::TEST_RUNSC)?),
            _ => None,
        };
        let launcher = match self {
            Self::DockerNoJail => {
                let user = test_user().ok_or("the user belljar-test is not here")?;
                let joined = std::os::unix::fs::chown(&socket, None, Some(user.gid));
                joined
                    .map_err(|error| format!("its socket cannot be given to a group: {error}"))?;
                Some(variable(env::TEST_NO_JAIL)?.into())
            }
            Self::Docker | Self::Podman | Self::PodmanRootless | Self::Runsc => None,
        };
        Ok(EngineAccess { backend, runtime, image: variable(image)?, socket, launcher })
    }

    /// One that is missing is an error where it must work, and named everywhere.
    pub fn access(self) -> Option<EngineAccess> {
        match self.find() {
            Ok(access) => Some(access),
            Err(why) => {
                let name = self.name();
                assert!(!must_work(name), "{name} must work, and is not here: {why}");
                eprintln!("NOT CHECKED: on {name}: {why}");
                None
            }
        }
    }

    /// A lab that runs containers on this engine.
    pub fn lab(self) -> Option<Lab> {
        Some(Lab::on(self.access()?, self.actor()))
    }
}

fn variable(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|_| format!("{name} is not set; `cargo xtask test` sets it"))
}

/// Runs a test on every engine, and prints which.
pub fn each_engine(test: impl Fn(TestEngine, &Lab)) {
    for engine in TestEngine::ALL {
        if let Some(lab) = engine.lab() {
            eprintln!("--- on {}", engine.name());
            test(engine, &lab);
        }
    }
}

/// How belljar and the test connect to an engine.
#[derive(Clone, Debug)]
pub struct EngineAccess {
    pub(super) backend: &'static str,
    pub(super) runtime: Option<String>,
    pub(super) image: String,
    pub(super) socket: PathBuf,
    /// The belljar that starts the runs, where it is another than the one to test: one without the jail.
    pub(super) launcher: Option<PathBuf>,
}

/// A container of belljar's that an engine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub id: String,
    pub run: String,
    /// `created`, `running`, `exited`, …
    pub state: String,
}

impl EngineAccess {
    /// For `belljar run`.
    pub fn flags(&self) -> Vec<String> {
        let mut flags = vec!["--backend", self.backend, "--image", &self.image];
        if let Some(runtime) = &self.runtime {
            flags.extend(["--oci-runtime", runtime]);
        }
        flags.into_iter().map(str::to_owned).collect()
    }

    /// The name of one without a shell, or anything else.
    pub fn empty_image(&self) -> String {
        self.image.replace(BUSYBOX_IMAGE, EMPTY_IMAGE)
    }

    /// The same tree with the directories that a distribution's image has.
    pub fn debian_image(&self) -> String {
        self.image.replace(BUSYBOX_IMAGE, DEBIAN_IMAGE)
    }

    /// Uses another image from now on.
    pub fn with_image(mut self, image: String) -> Self {
        self.image = image;
        self
    }

    /// Variables that the engine's own commands use too.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let name = if self.backend == "podman" { "CONTAINER_HOST" } else { "DOCKER_HOST" };
        vec![(name, format!("unix://{}", self.socket.display()))]
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Asked of the engine itself.
    pub fn get(&self, target: &str) -> Value {
        let answer = http::get(&self.socket, target).and_then(http::Answer::good);
        serde_json::from_slice(&answer.unwrap().body).unwrap()
    }

    /// All containers that belong to belljar homes with this label, stopped ones included.
    fn held_for(&self, owner: &str) -> Vec<Held> {
        let all = self.get("/containers/json?all=1");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let of_owner =
            all.as_array().unwrap().iter().filter(|one| one["Labels"][LABEL_OWNER] == owner);
        of_owner
            .map(|one| Held {
                id: text(&one["Id"]),
                run: text(&one["Labels"][LABEL_RUN]),
                state: text(&one["State"]),
            })
            .collect()
    }
}

impl Lab {
    /// Containers of this home that its engine has now.
    pub fn containers(&self) -> Vec<Held> {
        let engine = self.engine.as_ref().expect("a lab on an engine");
        match self.owner_label() {
            Some(owner) => engine.held_for(&owner),
            None => Vec::new(),
        }
    }

    /// What a home's containers carry. One without a key has never had any.
    fn owner_label(&self) -> Option<String> {
        let home = self.home();
        self.as_owner(|| HomeKey::load(&home).ok()).map(|key| key.owner_label())
    }

    /// What a failed test left behind. An engine that is gone has nothing.
    pub(super) fn remove_containers(&self) {
        let Some(engine) = &self.engine else { return };
        if http::get_within(&engine.socket, "/_ping", std::time::Duration::from_secs(2)).is_err() {
            return;
        }
        for container in self.containers() {
            let target = format!("/containers/{}?force=1&v=1", container.id);
            let _ = http::delete(&engine.socket, &target); // the end of all tests looks again
        }
    }
}

//! Container engines: Docker and Podman, and through them every runtime they know.
//!
//! An engine starts `belljar __init` in a container that has the plan's mounts and nothing else, and
//! hands over its standard streams as the channel. Everything beyond that is the launcher's, as in the
//! jail.

mod api;
mod bind;
mod canary;
mod container;
mod container_config;
mod container_note;
mod dial;
mod endpoint;
mod executable;
mod facts;
mod find;
mod groups;
mod host_mounts;
pub mod image;
mod image_shell;
#[cfg(any(test, not(feature = "jail")))]
mod init_executable;
mod init_process;
mod locality;
mod peer;
mod plan;
mod posture;
mod resolve;
mod ssh;
mod transport;
mod upload;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use belljar_spec::{BackendName, HostPaths, Plan, RunSpec};

pub use api::ApiError;
pub use bind::BoundContainer;
pub use container::{Container, ContainerError};
pub use container_config::{CONTAINER_PROFILE, INIT_INSIDE};
pub use endpoint::{BadEndpoint, Endpoint, Program, SshPlace};
pub use find::{Caller, pinned_variables};

use self::api::{Api, QUICK_TIMEOUT};
use self::container_config::{LABEL_NONCE, LABEL_OWNER, LABEL_RUN};
use self::container_note::Note;
use self::image::{Build, Built, HeldImage};
use crate::backend::{
    Backend, Bound, BoundSandbox, Capabilities, ImageFacts, Images, Pod, PullProgress, SandboxId,
};
use crate::error::{
    BindError, DestroyError, ImageError, LeftBehind, PlanError, StartError, Unavailable,
};
use crate::running::Started;
use crate::shell::{self, Existence};

/// One engine, found and not yet connected to.
#[derive(Debug)]
pub struct Engine {
    name: BackendName,
    endpoint: Endpoint,
    api: OnceLock<Arc<Api>>,
    facts: OnceLock<Capabilities>,
}

impl Engine {
    pub fn find(name: BackendName) -> Result<Self, Unavailable> {
        Ok(Self::at(name, find::endpoint(name)?))
    }

    /// What another user than the one of this process would find.
    pub fn find_for(name: BackendName, caller: &Caller<'_>) -> Result<Self, Unavailable> {
        Ok(Self::at(name, find::endpoint_for(name, caller)?))
    }

    pub fn at(name: BackendName, endpoint: Endpoint) -> Self {
        Self { name, endpoint, api: OnceLock::new(), facts: OnceLock::new() }
    }

    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn api(&self) -> Result<&Arc<Api>, ApiError> {
        self.api_until(Instant::now() + QUICK_TIMEOUT)
    }

    fn api_until(&self, until: Instant) -> Result<&Arc<Api>, ApiError> {
        if self.api.get().is_none() {
            let connected = Api::connect_until(&self.endpoint, until)?;
            let _ = self.api.set(connected); // another one that came first is as good
        }
        self.api.get().ok_or(ApiError::Silent {
            what: "reach the engine",
            endpoint: self.endpoint.to_string(),
            seconds: 0,
        })
    }

    fn facts(&self) -> Result<Capabilities, Unavailable> {
        if let Some(facts) = self.facts.get() {
            return Ok(facts.clone());
        }
        let until = Instant::now() + QUICK_TIMEOUT; // all questions together
        let api = self.api_until(until).map_err(|error| facts::unreachable(&error, self.name))?;
        let found = facts::capabilities(api, self.name, until)?;
        let _ = self.facts.set(found.clone());
        Ok(found)
    }

    /// What the engine has by that name.
    pub fn held_image(&self, name: &image::Reference) -> Result<Option<HeldImage>, ImageError> {
        image::held(self.api_for_image()?, name)
    }

    /// Makes an image. `line` gets each line of the engine's output, unchanged.
    pub fn build_image(
        &self,
        build: Build<'_>,
        watcher: &dyn PullProgress,
        line: &mut (dyn FnMut(&str) + Send),
    ) -> Result<Built, ImageError> {
        image::build(self.api_for_image()?, build, watcher, line)
    }

    /// An image as the archive that `docker save` writes.
    pub fn save_image(&self, name: &str) -> Result<Box<dyn std::io::Read + '_>, ImageError> {
        Ok(Box::new(image::SavedImage::new(self.api_for_image()?, name)?))
    }

    fn api_for_image(&self) -> Result<&Arc<Api>, ImageError> {
        self.api().map_err(|error| {
            let Unavailable { why, fix } = facts::unreachable(&error, self.name);
            ImageError { why, fix }
        })
    }

    /// An image with nothing in it, for a sandbox that only shows whether one can be made: its name.
    pub fn canary_image(&self) -> Result<&'static str, Unavailable> {
        let made = self.api().and_then(|api| canary::image(api));
        made.map_err(|error| facts::unreachable(&error, self.name))
    }
}

impl Engine {
    /// `None` where the engine cannot be asked: then the plain shell is used, which every image has.
    fn programs_of_image(
        &self,
        plan: &Plan,
        spec: &RunSpec,
        paths: &HostPaths,
    ) -> Option<HashMap<PathBuf, Existence>> {
        let image = plan.image.as_ref()?;
        let api = self.api().ok()?;
        let note = bind::note(api, paths).ok()?;
        let found = image_shell::programs(api, &image.id, spec.shell.as_deref(), &note, paths);
        found.inspect_err(|error| tracing::debug!(%error, "cannot look into the image")).ok()
    }
}

impl Backend for Engine {
    fn name(&self) -> BackendName {
        self.name
    }

    fn probe(&self) -> Result<Capabilities, Unavailable> {
        self.facts()
    }

    fn image(&self, spec: &RunSpec, images: &Images<'_>) -> Result<Option<ImageFacts>, ImageError> {
        let api = self.api_for_image()?;
        let facts = self.facts().map_err(|Unavailable { why, fix }| ImageError { why, fix })?;
        let architecture = facts.engine.map(|engine| engine.architecture).unwrap_or_default();
        image::find(api, &architecture, spec, images.fetch).map(Some)
    }

    fn plan(&self, spec: &RunSpec, capabilities: &Capabilities) -> Result<Plan, PlanError> {
        plan::plan(self.name, spec, capabilities)
    }

    fn shell(
        &self,
        plan: &Plan,
        spec: &RunSpec,
        paths: Option<&HostPaths>,
    ) -> Result<Option<String>, PlanError> {
        let known = paths.and_then(|paths| self.programs_of_image(plan, spec, paths));
        let mut look = |path: &Path| {
            let known = known.as_ref().and_then(|known| known.get(path));
            known.copied().unwrap_or(Existence::Unknown)
        };
        shell::find(plan, spec, &mut look)
    }

    fn bind(&self, plan: &Plan, paths: &HostPaths) -> Result<Bound, BindError> {
        let facts = self.facts().map_err(|error| BindError(Box::new(error)))?;
        let api = self.api().map_err(|error| BindError(Box::new(error)))?;
        let engine = facts
            .engine
            .ok_or_else(|| BindError("the engine reported no facts about itself".into()))?;
        bind::bind(api, &engine, plan, paths)
    }

    fn open(&self, _: &Bound) -> Result<Box<dyn Pod>, StartError> {
        Ok(Box::new(EnginePod))
    }
}

/// The container's network namespace, which the engine makes with it.
#[derive(Debug)]
struct EnginePod;

impl Pod for EnginePod {
    fn start(&mut self, sandbox: BoundSandbox) -> Result<Started, StartError> {
        let bound: BoundContainer = sandbox.into_inner()?;
        container::start(bound).map_err(|error| {
            let left = match error.may_have_left_something() {
                true => LeftBehind::Possibly,
                false => LeftBehind::Nothing,
            };
            StartError::leaving(left, error)
        })
    }
}

/// What a dead launcher left: its container, by the note it wrote first, and its stage. Whatever only
/// looks like it belongs to another run.
pub(crate) fn destroy(sandbox: &SandboxId) -> Result<(), DestroyError> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| DestroyError(error);
    let note = Note::read(&sandbox.directory).map_err(|error| failed(error.into()))?;
    if let Some(note) = note {
        let api = Api::connect(&note.engine).map_err(|error| failed(error.into()))?;
        match api.inspect(&note.container) {
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(failed(error.into())),
            Ok(found) => {
                let labels = found.config.labels.unwrap_or_default();
                let has = |name: &str, value: &str| labels.get(name).is_some_and(|v| v == value);
                let is_ours = has(LABEL_OWNER, &note.owner)
                    && has(LABEL_NONCE, &note.nonce)
                    && has(LABEL_RUN, &sandbox.run);
                if is_ours {
                    container::remove(&api, &found.id).map_err(|error| failed(error.into()))?;
                }
            }
        }
    }
    host_mounts::unstage(&sandbox.run).map_err(|error| failed(error.into()))
}

/// Tests cannot wait two minutes. A release has no other lease than the built-in one.
fn lease_for_tests() -> Option<Duration> {
    if !cfg!(debug_assertions) {
        return None;
    }
    let value = std::env::var(belljar_spec::env::TEST_LEASE_MS).ok()?;
    value.parse().ok().map(Duration::from_millis)
}

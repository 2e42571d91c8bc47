//! Container engines: Docker and Podman, and through them every runtime they know.
//!
//! An engine starts `belljar __init` in a container that has the plan's mounts and nothing else, and
//! hands over its standard streams as the channel. Everything beyond that is the launcher's, as in the
//! jail.

mod api;
mod bind;
mod body;
mod canary;
mod container;
mod dial;
mod endpoint;
mod environment;
mod executable;
mod facts;
mod find;
pub mod image;
mod locality;
mod note;
mod peer;
mod plan;
mod posture;
mod resolve;
mod ssh;
mod transport;
mod upload;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use belljar_spec::{BackendName, HostPaths, Plan, RunSpec};
use bollard::query_parameters::ListContainersOptionsBuilder;

pub use api::ApiError;
pub use bind::BoundContainer;
pub use body::INIT_INSIDE;
pub use container::{Container, ContainerError};
pub use endpoint::{BadEndpoint, Endpoint, Program, SshPlace};
pub use find::{Caller, pinned_variables};

use self::api::{Api, QUICK};
use self::body::{LABEL_NONCE, LABEL_OWNER, LABEL_RUN};
use self::image::{Build, Built, HeldImage};
use self::note::Note;
use crate::backend::{
    Backend, BindError, Bound, BoundInner, BoxFuture, Capabilities, DestroyError, Fetch, Found,
    ImageError, ImageFacts, ListError, PlanError, PullProgress, SandboxId, StartError, Started,
    Unavailable,
};

/// One engine, found and not yet spoken to.
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

    /// What somebody else than this process would find.
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
        self.api_until(Instant::now() + QUICK)
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
        let until = Instant::now() + QUICK; // all questions together
        let api = self.api_until(until).map_err(|error| facts::unreachable(&error, self.name))?;
        let found = facts::capabilities(api, self.name, until)?;
        let _ = self.facts.set(found.clone());
        Ok(found)
    }

    /// What the engine has by that name.
    pub fn held_image(&self, name: &image::Reference) -> Result<Option<HeldImage>, ImageError> {
        image::held(self.api_for_image()?, name)
    }

    /// Makes an image. `line` is told what the engine says, as it came.
    pub fn build_image(
        &self,
        build: Build<'_>,
        watcher: &dyn PullProgress,
        line: &mut dyn FnMut(&str),
    ) -> Result<Built, ImageError> {
        image::build(self.api_for_image()?, build, watcher, line)
    }

    fn image_now(&self, spec: &RunSpec, fetch: Fetch<'_>) -> Result<ImageFacts, ImageError> {
        let api = self.api_for_image()?;
        let facts = self.facts().map_err(|Unavailable { why, fix }| ImageError { why, fix })?;
        let architecture = facts.engine.map(|engine| engine.architecture).unwrap_or_default();
        image::find(api, &architecture, spec, fetch)
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

    fn bind_now(&self, plan: &Plan, place: &HostPaths) -> Result<Bound, BindError> {
        let facts = self.facts().map_err(|error| BindError(Box::new(error)))?;
        let api = self.api().map_err(|error| BindError(Box::new(error)))?;
        let engine = facts.engine.ok_or_else(|| BindError("the engine told nothing".into()))?;
        bind::bind(api, &engine, plan, place)
    }

    fn list_now(&self, owner: Option<&str>) -> Result<Vec<Found>, ListError> {
        let api = self.api().map_err(|error| ListError(Box::new(error)))?;
        let label = match owner {
            Some(owner) => format!("{LABEL_OWNER}={owner}"),
            None => LABEL_OWNER.to_owned(),
        };
        let filters = HashMap::from([("label", vec![label])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let found = api
            .wait("list containers", QUICK, api.docker.list_containers(Some(options)))
            .map_err(|error| ListError(Box::new(error)))?;
        let of_run = found.into_iter().filter_map(|container| {
            let run = container.labels?.get(LABEL_RUN)?.clone();
            Some(Found { run, what: format!("container {}", container.id.unwrap_or_default()) })
        });
        Ok(of_run.collect())
    }
}

impl Backend for Engine {
    fn name(&self) -> BackendName {
        self.name
    }

    fn probe(&self) -> BoxFuture<'_, Result<Capabilities, Unavailable>> {
        Box::pin(std::future::ready(self.facts()))
    }

    fn image<'a>(
        &'a self,
        spec: &'a RunSpec,
        fetch: Fetch<'a>,
    ) -> BoxFuture<'a, Result<Option<ImageFacts>, ImageError>> {
        Box::pin(std::future::ready(self.image_now(spec, fetch).map(Some)))
    }

    fn plan(&self, spec: &RunSpec, capabilities: &Capabilities) -> Result<Plan, PlanError> {
        plan::plan(self.name, spec, capabilities)
    }

    fn bind<'a>(
        &'a self,
        plan: &'a Plan,
        place: &'a HostPaths,
    ) -> BoxFuture<'a, Result<Bound, BindError>> {
        Box::pin(std::future::ready(self.bind_now(plan, place)))
    }

    fn start(&self, bound: Bound) -> BoxFuture<'_, Result<Started, StartError>> {
        let started = match bound.inner {
            BoundInner::Engine(bound) => {
                container::start(*bound).map_err(|error| StartError(Box::new(error)))
            }
            _ => Err(StartError("bound by another backend".into())),
        };
        Box::pin(std::future::ready(started))
    }

    fn destroy<'a>(&'a self, sandbox: &'a SandboxId) -> BoxFuture<'a, Result<(), DestroyError>> {
        Box::pin(std::future::ready(destroy(sandbox)))
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Found>, ListError>> {
        Box::pin(std::future::ready(self.list_now(None)))
    }
}

/// What a dead launcher left: its container, by the note it wrote first, and its stage. Whatever only
/// looks like it is somebody else's.
pub fn destroy(sandbox: &SandboxId) -> Result<(), DestroyError> {
    apart(|| destroy_here(sandbox))
}

/// Requests wait on this thread, which one that carries other work must not do.
fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    if tokio::runtime::Handle::try_current().is_err() {
        return work();
    }
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

fn destroy_here(sandbox: &SandboxId) -> Result<(), DestroyError> {
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
    belljar_linux::staging::unstage(&sandbox.run).map_err(|error| failed(error.into()))
}

/// Tests cannot wait two minutes.
fn lease_for_tests() -> Option<Duration> {
    let value = std::env::var(belljar_spec::env::TEST_LEASE_MS).ok()?;
    value.parse().ok().map(Duration::from_millis)
}

//! Sends requests to an engine, each with a time limit: a daemon that hangs counts as one that is not there.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bollard::{API_DEFAULT_VERSION, ClientVersion, Docker};
use tokio::runtime::Runtime;

use super::dial;
use super::endpoint::Endpoint;
use super::ssh::Ssh;
use super::transport::{EngineVersions, Transport};

/// Docker 20.10 and Podman 4. Older ones ignore parts of a request.
const MIN_API: (u32, u32) = (1, 41);
const MIN_PODMAN: u32 = 4;

/// For requests that an engine answers from memory.
pub(crate) const QUICK_TIMEOUT: Duration = Duration::from_secs(5);
/// For requests that make or remove a container, on a machine under heavy load too.
pub(crate) const SLOW_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("cannot {what}: {message}")]
    Refused { what: &'static str, status: u16, message: String },
    #[error("cannot {what}: {endpoint} did not answer within {seconds} seconds")]
    Silent { what: &'static str, endpoint: String, seconds: u64 },
    #[error("the engine at {endpoint} is {found}, and at least {needed} is needed")]
    TooOld { endpoint: String, found: String, needed: String },
    #[error("cannot {what}: {endpoint} cannot be reached")]
    Unreachable {
        what: &'static str,
        endpoint: String,
        #[source]
        error: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl ApiError {
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    /// A second try may succeed: another request is changing the same container.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::Refused { status: 409 | 500.., .. })
    }

    pub(crate) fn is_about_missing_ids(&self) -> bool {
        matches!(self, Self::Refused { message, .. } if message.contains("requires additional UIDs"))
    }
}

/// A container, as far as it matters here.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Inspected {
    pub(crate) id: String,
    pub(crate) state: InspectedState,
    pub(crate) config: InspectedConfig,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct InspectedState {
    pub(crate) pid: i32,
    pub(crate) exit_code: i64,
    pub(crate) error: String,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct InspectedConfig {
    /// Null where there are none.
    pub(crate) labels: Option<HashMap<String, String>>,
}

/// A client of one engine.
#[derive(Debug)]
pub(crate) struct Api {
    runtime: OwnedRuntime,
    pub(crate) docker: Docker,
    pub(crate) endpoint: Endpoint,
    /// The newest API version that both sides support.
    pub(crate) version: (u32, u32),
    pub(crate) is_podman: bool,
    /// Its version, if it is one.
    pub(crate) podman: Option<String>,
    transport: Transport,
    /// The processes that carry the containers' channels.
    lines: Mutex<Vec<Ssh>>,
}

impl Api {
    pub(crate) fn connect(endpoint: &Endpoint) -> Result<Arc<Self>, ApiError> {
        Self::connect_until(endpoint, Instant::now() + QUICK_TIMEOUT)
    }

    pub(crate) fn connect_until(
        endpoint: &Endpoint,
        until: Instant,
    ) -> Result<Arc<Self>, ApiError> {
        let unreachable = |error: Box<dyn std::error::Error + Send + Sync>| ApiError::Unreachable {
            what: "reach the engine",
            endpoint: endpoint.to_string(),
            error,
        };
        // No worker threads: a request makes progress while its caller waits for it.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| unreachable(error.into()))?;
        let transport = Transport::new(endpoint);
        let mut api = Self {
            runtime: OwnedRuntime(Some(runtime)),
            docker: transport
                .client(API_DEFAULT_VERSION)
                .map_err(|error| unreachable(error.into()))?,
            endpoint: endpoint.clone(),
            version: (1, 0),
            is_podman: false,
            podman: None,
            transport,
            lines: Mutex::new(Vec::new()),
        };
        // Not its version: Podman asks the system's package manager before it answers that.
        api.wait_until("ask the engine for its version", until, api.docker.ping())?;
        let versions = api.transport.versions();
        api.negotiate(&versions)?;
        let version = ClientVersion {
            major_version: api.version.0 as usize,
            minor_version: api.version.1 as usize,
        };
        api.docker = api.transport.client(&version).map_err(|error| unreachable(error.into()))?;
        api.transport.use_version(api.version);
        Ok(Arc::new(api))
    }

    /// The newest version that both know.
    fn negotiate(&mut self, about: &EngineVersions) -> Result<(), ApiError> {
        let too_old = |found: String, needed: String| ApiError::TooOld {
            endpoint: self.endpoint.to_string(),
            found,
            needed,
        };
        let ours = API_DEFAULT_VERSION;
        let ours = (ours.major_version as u32, ours.minor_version as u32);
        let theirs = about.api.as_deref().and_then(two_numbers).unwrap_or((0, 0));
        let podman = about.libpod.as_deref().and_then(two_numbers);
        if let Some((major, minor)) = podman.filter(|(major, _)| *major < MIN_PODMAN) {
            let needed = format!("version {MIN_PODMAN}");
            return Err(too_old(format!("Podman {major}.{minor}"), needed));
        }
        let (major, minor) = MIN_API;
        if podman.is_none() && theirs < MIN_API {
            let found = format!("one of API version {}.{}", theirs.0, theirs.1);
            return Err(too_old(found, format!("{major}.{minor}")));
        }
        self.version = theirs.min(ours);
        self.podman = about.libpod.clone();
        self.is_podman = podman.is_some();
        Ok(())
    }

    /// Takes over a connection for a container's standard streams. An `ssh` that carries it lives as long
    /// as this.
    pub(crate) fn attach(&self, container: &str) -> io::Result<OwnedFd> {
        let (stream, ssh) = dial::attach(&self.endpoint, self.version, container)?;
        if let (Ok(mut lines), Some(ssh)) = (self.lines.lock(), ssh) {
            lines.push(ssh);
        }
        Ok(stream)
    }

    /// What the engine knows of a container.
    pub(crate) fn inspect(&self, container: &str) -> Result<Inspected, ApiError> {
        const WHAT: &str = "look at the container";
        let path = format!("/containers/{container}/json");
        let (status, body) = self.wait(WHAT, QUICK_TIMEOUT, self.transport.get(&path))?;
        let text = || String::from_utf8_lossy(&body).trim().to_owned();
        if status != 200 {
            return Err(ApiError::Refused { what: WHAT, status, message: text() });
        }
        serde_json::from_slice(&body).map_err(|error| ApiError::Refused {
            what: WHAT,
            status: 500,
            message: format!("the engine's answer cannot be read: {error}"),
        })
    }

    /// For a time without requests: no connection stays open.
    pub(crate) fn close_idle_connection(&self) {
        self.transport.close_idle_connection();
        let _ = self.wait_for(async {
            for _ in 0..4 {
                tokio::task::yield_now().await; // the connection's task sees it, and ends
            }
        });
    }

    /// Waits for an answer, and no longer than to this moment.
    pub(crate) fn wait_until<T: Send>(
        &self,
        what: &'static str,
        until: Instant,
        request: impl Future<Output = Result<T, bollard::errors::Error>> + Send,
    ) -> Result<T, ApiError> {
        let left = until.saturating_duration_since(Instant::now());
        self.wait_timed(what, left, QUICK_TIMEOUT, request)
    }

    /// Waits for an answer, and no longer than this.
    pub(crate) fn wait<T: Send>(
        &self,
        what: &'static str,
        within: Duration,
        request: impl Future<Output = Result<T, bollard::errors::Error>> + Send,
    ) -> Result<T, ApiError> {
        self.wait_timed(what, within, within, request)
    }

    /// `shown` is the time that an error names.
    fn wait_timed<T: Send>(
        &self,
        what: &'static str,
        within: Duration,
        shown: Duration,
        request: impl Future<Output = Result<T, bollard::errors::Error>> + Send,
    ) -> Result<T, ApiError> {
        let begun = Instant::now();
        let answer = match self.wait_for(async { tokio::time::timeout(within, request).await }) {
            Ok(Ok(Ok(answer))) => Ok(answer),
            Ok(Ok(Err(error))) => Err(self.explain(what, error, shown)),
            Ok(Err(_)) => Err(self.silent(what, shown)),
            Err(closed) => Err(closed),
        };
        let (elapsed, error) =
            (begun.elapsed(), answer.as_ref().err().map(tracing::field::display));
        tracing::debug!(what, ?elapsed, error, "engine request");
        answer
    }

    /// For requests without a time limit. Driven on a separate thread: the caller's may
    /// belong to another runtime, in which no other one can be entered.
    pub(crate) fn wait_for<T: Send>(
        &self,
        work: impl Future<Output = T> + Send,
    ) -> Result<T, ApiError> {
        self.runtime.drive(work).ok_or_else(|| ApiError::Unreachable {
            what: "send a request",
            endpoint: self.endpoint.to_string(),
            error: "the connection was closed".into(),
        })
    }

    pub(crate) fn explain(
        &self,
        what: &'static str,
        error: bollard::errors::Error,
        within: Duration,
    ) -> ApiError {
        use bollard::errors::Error;
        match error {
            Error::DockerResponseServerError { status_code, message } => {
                let message = match message.trim() {
                    "" => format!("the answer is {status_code}, without a reason"),
                    message => message.to_owned(),
                };
                ApiError::Refused { what, status: status_code, message }
            }
            Error::DockerStreamError { error } => {
                ApiError::Refused { what, status: 500, message: error.trim().to_owned() }
            }
            Error::RequestTimeoutError => self.silent(what, within),
            Error::IOError { err } => {
                let endpoint = self.endpoint.to_string();
                ApiError::Unreachable { what, endpoint, error: Box::new(err) }
            }
            other => {
                let endpoint = self.endpoint.to_string();
                ApiError::Unreachable { what, endpoint, error: Box::new(other) }
            }
        }
    }

    fn silent(&self, what: &'static str, within: Duration) -> ApiError {
        ApiError::Silent { what, endpoint: self.endpoint.to_string(), seconds: within.as_secs() }
    }
}

/// A runtime that can be used and dropped by a thread of another one.
#[derive(Debug)]
struct OwnedRuntime(Option<Runtime>);

impl OwnedRuntime {
    /// `None` once it was shut down, which only dropping it does.
    fn drive<T: Send>(&self, work: impl Future<Output = T> + Send) -> Option<T> {
        let runtime = self.0.as_ref()?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| runtime.block_on(work));
            Some(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }
}

impl Drop for OwnedRuntime {
    /// Waiting for its tasks here would panic inside another runtime; there are none that have to end.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The first two numbers of a version.
fn two_numbers(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
    Some((numbers.next()??, numbers.next().flatten().unwrap_or(0)))
}

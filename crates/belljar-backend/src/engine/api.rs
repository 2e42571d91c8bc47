//! Requests to an engine, each bounded in time: a daemon that hangs is a daemon that is not there.

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
use super::transport::{Head, Transport};

/// Docker 20.10 and Podman 4. Older ones would pass over parts of what they are asked for.
const OLDEST_API: (u32, u32) = (1, 41);
const OLDEST_PODMAN: u32 = 4;

/// For what an engine answers from memory.
pub(crate) const QUICK: Duration = Duration::from_secs(5);
/// For what makes or takes away a container, on a machine under heavy load too.
pub(crate) const SLOW: Duration = Duration::from_secs(60);

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

    /// Another answer may come in a moment: something else is being done to the same thing.
    pub(crate) fn may_pass(&self) -> bool {
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

/// One engine, spoken to.
#[derive(Debug)]
pub(crate) struct Api {
    runtime: OwnedRuntime,
    pub(crate) docker: Docker,
    pub(crate) endpoint: Endpoint,
    /// The version that both sides speak.
    pub(crate) version: (u32, u32),
    pub(crate) is_podman: bool,
    /// Its version, if it is one.
    pub(crate) podman: Option<String>,
    transport: Transport,
    /// What the containers' channels go through.
    lines: Mutex<Vec<Ssh>>,
}

impl Api {
    pub(crate) fn connect(endpoint: &Endpoint) -> Result<Arc<Self>, ApiError> {
        Self::connect_until(endpoint, Instant::now() + QUICK)
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
        let head = api.transport.head();
        api.negotiate(&head)?;
        let version = ClientVersion {
            major_version: api.version.0 as usize,
            minor_version: api.version.1 as usize,
        };
        api.docker = api.transport.client(&version).map_err(|error| unreachable(error.into()))?;
        api.transport.speak(api.version);
        Ok(Arc::new(api))
    }

    /// The newest version that both know.
    fn negotiate(&mut self, about: &Head) -> Result<(), ApiError> {
        let too_old = |found: String, needed: String| ApiError::TooOld {
            endpoint: self.endpoint.to_string(),
            found,
            needed,
        };
        let ours = API_DEFAULT_VERSION;
        let ours = (ours.major_version as u32, ours.minor_version as u32);
        let theirs = about.api.as_deref().and_then(two_numbers).unwrap_or((0, 0));
        let podman = about.libpod.as_deref().and_then(two_numbers);
        if let Some((major, minor)) = podman.filter(|(major, _)| *major < OLDEST_PODMAN) {
            let needed = format!("version {OLDEST_PODMAN}");
            return Err(too_old(format!("Podman {major}.{minor}"), needed));
        }
        let (major, minor) = OLDEST_API;
        if podman.is_none() && theirs < OLDEST_API {
            let found = format!("one of API version {}.{}", theirs.0, theirs.1);
            return Err(too_old(found, format!("{major}.{minor}")));
        }
        self.version = theirs.min(ours);
        self.podman = about.libpod.clone();
        self.is_podman = podman.is_some();
        Ok(())
    }

    /// Takes over a connection for a container's standard streams. What it goes through lives as long
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
        let (status, body) = self.wait(WHAT, QUICK, self.transport.get(&path))?;
        let text = || String::from_utf8_lossy(&body).trim().to_owned();
        if status != 200 {
            return Err(ApiError::Refused { what: WHAT, status, message: text() });
        }
        serde_json::from_slice(&body).map_err(|error| ApiError::Refused {
            what: WHAT,
            status: 500,
            message: format!("its answer makes no sense: {error}"),
        })
    }

    /// Nothing is asked for a while: no connection is kept for it.
    pub(crate) fn hang_up(&self) {
        self.transport.hang_up();
        self.wait_for(async {
            for _ in 0..4 {
                tokio::task::yield_now().await; // the connection sees it, and ends
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
        self.wait_timed(what, left, QUICK, request)
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
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.explain(what, error, shown)),
            Err(_) => Err(self.silent(what, shown)),
        };
        let (elapsed, error) =
            (begun.elapsed(), answer.as_ref().err().map(tracing::field::display));
        tracing::debug!(what, ?elapsed, error, "engine request");
        answer
    }

    /// For requests that take as long as they take. Driven on a thread of their own: the caller's may
    /// belong to another runtime, in which no other one can be entered.
    pub(crate) fn wait_for<T: Send>(&self, work: impl Future<Output = T> + Send) -> T {
        self.runtime.drive(work)
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
    fn drive<T: Send>(&self, work: impl Future<Output = T> + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| match &self.0 {
                Some(runtime) => runtime.block_on(work),
                None => unreachable!("taken only when dropped"),
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
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

//! Connects to a supervisor: a new process, the socket of a live run, or a fake in a test.

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Stdio;

use belljar_run::socket_path::SocketPath;
use belljar_spec::RunId;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::error::Error;
use super::locate;

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The byte stream of a connection.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// A connection to a supervisor.
pub struct Connection {
    pub(super) stream: Box<dyn Transport>,
    pub(super) child: Option<Child>,
}

impl Connection {
    pub fn new(stream: impl Transport + 'static) -> Self {
        Self { stream: Box::new(stream), child: None }
    }

    /// The supervisor is a child of this process, to be reaped when the connection has closed.
    pub fn with_child(mut self, child: Child) -> Self {
        self.child = Some(child);
        self
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("child", &self.child).finish_non_exhaustive()
    }
}

/// Which supervisor to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A new one, which waits for a launch request.
    New,
    /// The supervisor of a live run.
    Live { home: PathBuf, run: RunId },
}

/// Connects to supervisors. Tests of embedding programs use [`crate::testing::FakeBackend`].
pub trait Connector: fmt::Debug + Send + Sync {
    fn connect<'a>(&'a self, to: &'a Destination) -> BoxFuture<'a, Result<Connection, Error>>;

    /// The home to use if the builder names none; `None` for the caller's.
    fn home(&self) -> Option<PathBuf> {
        None
    }

    /// The supervisor's executable, for error messages.
    fn executable(&self) -> Option<PathBuf> {
        None
    }
}

/// The real connector: starts `belljar __supervise`, or connects to a socket in the home.
#[derive(Clone, Debug, Default)]
pub struct Supervisors {
    executable: Option<PathBuf>,
}

impl Supervisors {
    /// With the executable that [`super::find_executable`] finds.
    pub fn new() -> Self {
        Self::default()
    }

    pub fn with_executable(path: impl Into<PathBuf>) -> Self {
        Self { executable: Some(path.into()) }
    }

    pub(super) fn find(&self) -> Result<PathBuf, Error> {
        match &self.executable {
            Some(path) => Ok(path.clone()),
            None => locate::find_executable(),
        }
    }

    fn start(&self) -> Result<Connection, Error> {
        let executable = self.find()?;
        tracing::debug!(executable = %executable.display(), "start a supervisor");
        let (ours, theirs) =
            std::os::unix::net::UnixStream::pair().map_err(Error::io("make a socket"))?;
        ours.set_nonblocking(true).map_err(Error::io("make a socket"))?;
        let what = format!("start {}", executable.display());
        let child = command(&executable)
            .arg("__supervise")
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .spawn()
            .map_err(Error::io(what))?;
        let stream = UnixStream::from_std(ours).map_err(Error::io("use a socket"))?;
        Ok(Connection::new(stream).with_child(child))
    }
}

impl Connector for Supervisors {
    fn connect<'a>(&'a self, to: &'a Destination) -> BoxFuture<'a, Result<Connection, Error>> {
        Box::pin(async move {
            match to {
                Destination::New => self.start(),
                Destination::Live { home, run } => connect_live(home, run).await,
            }
        })
    }

    fn executable(&self) -> Option<PathBuf> {
        self.find().ok()
    }
}

async fn connect_live(home: &Path, run: &RunId) -> Result<Connection, Error> {
    let path = home.join("live").join(format!("{run}.sock"));
    match connect_to(&path).await {
        Ok(stream) => Ok(Connection::new(stream)),
        Err(error) => {
            let why = match error.kind() {
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                    format!("run {run} is not alive; belljar ps lists the live runs")
                }
                _ => format!("cannot connect to {}: {error}", path.display()),
            };
            Err(Error::lost(why))
        }
    }
}

/// The address of a socket holds 107 bytes, and a home can be deeper than that.
async fn connect_to(path: &Path) -> std::io::Result<UnixStream> {
    let short = SocketPath::new(path)?;
    UnixStream::connect(short.as_path()).await
}

/// Variables that the supervisor needs to find the home and the engines.
const PASSED_VARIABLES: &[&str] = &[
    "PATH",
    "HOME",
    // The certificate authorities that the run's proxy trusts.
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    belljar_spec::env::HOME,
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "DOCKER_CONFIG",
    "DOCKER_TLS",
    "DOCKER_TLS_VERIFY",
    "DOCKER_CERT_PATH",
    "CONTAINER_HOST",
    "CONTAINER_CONNECTION",
    "CONTAINER_SSHKEY",
    "CONTAINER_TLS_CA",
    "CONTAINER_TLS_CERT",
    "CONTAINER_TLS_KEY",
    "PODMAN_CONNECTIONS_CONF",
    "CONTAINERS_CONF",
    "REGISTRY_AUTH_FILE",
    "SSH_AUTH_SOCK",
    belljar_spec::env::TEST_LEASE_MS,
    // What it logs; it goes no further than the run's proxy.
    belljar_spec::env::LOG,
];

/// A command with only those variables in its environment.
pub(super) fn command(executable: &Path) -> Command {
    let mut command = Command::new(executable);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    for (name, value) in std::env::vars_os() {
        let known = PASSED_VARIABLES.iter().any(|known| name == *known);
        if known || name.as_encoded_bytes().starts_with(b"XDG_") {
            command.env(name, value);
        }
    }
    command
        .envs(belljar_run::debug_log::setting().map(|setting| (belljar_spec::env::LOG, setting)));
    command
}

//! The library's API: starts sandboxes and runs commands in them.
//!
//! Every sandbox has a supervisor, a separate `belljar` process of the same build as this library. The
//! library talks to it over one connection. The embedding program is never forked into a sandbox, so this is
//! safe in a program with many threads. It needs a tokio runtime with I/O and time enabled.

mod backends;
mod builder;
mod client;
mod connector;
mod copy;
mod error;
mod exec;
pub(crate) mod fake;
mod link;
mod locate;
mod output;
mod running;
mod secret;
mod task;

use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_spec::wire::control::{RunStatus, StopReport};
use belljar_spec::{BackendName, OsText, Posture, RunId, SkippedBackend};

pub use backends::{BackendFacts, Unavailable, available_backends};
pub use belljar_workspace::transfer::{CopyError, CopyLimits, CopyReport};
pub use builder::{RunOutput, SandboxBuilder};
pub use client::{Client, LaunchedRun};
pub use connector::{BoxFuture, Connection, Connector, Destination, Supervisors, Transport};
pub use error::Error;
pub use exec::Exec;
pub use locate::find_executable;
pub use output::{DEFAULT_OUTPUT_LIMIT, Omitted, Output};
pub use running::{Input, Reader, Running};
pub use secret::Secret;
pub use task::{Chunk, Source};

/// Whether this handle owns the run.
#[derive(Debug)]
enum Ownership {
    /// The run was started by this handle, and ends with it.
    Owner {
        backend: BackendName,
        posture: Posture,
        skipped_backends: Vec<SkippedBackend>,
    },
    Attached,
}

/// A live sandbox, in which many commands can run at once.
///
/// Dropping a sandbox that this handle started stops the run and everything in it: the connection closes,
/// the supervisor notices and cleans up, and the runtime reaps it in the background. Nothing blocks.
/// [`Sandbox::stop`] does the same and waits. Commands that are still held as [`Running`] end with the
/// sandbox.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), belljar::Error> {
/// use std::time::Duration;
///
/// use belljar::{Sandbox, spec::MountMode};
///
/// let sandbox = Sandbox::builder()
///     .workspace(".", MountMode::Ro)
///     .timeout(Duration::from_secs(60))
///     .start()
///     .await?;
/// let output = sandbox.exec(["sh", "-c", "echo hello; exit 3"]).output().await?;
/// assert_eq!(output.stdout, b"hello\n");
/// assert_eq!(output.exit.code, Some(3));
/// sandbox.stop().await?;
/// # Ok(())
/// # }
/// ```
///
/// A program's tests need no sandbox:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), belljar::Error> {
/// use belljar::{Sandbox, testing::{FakeBackend, FakeReply}};
///
/// let fake = FakeBackend::new().on("make", |call| {
///     assert_eq!(call.argv.len(), 2);
///     FakeReply::stdout("all tests passed\n")
/// });
/// let sandbox = Sandbox::builder().no_config().connector(fake.clone()).start().await?;
/// let output = sandbox.exec(["make", "test"]).output().await?;
/// assert_eq!(output.stdout_text(), "all tests passed\n");
/// assert_eq!(fake.calls().len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Sandbox {
    client: Client,
    run: RunId,
    home: PathBuf,
    ownership: Ownership,
}

impl Sandbox {
    pub fn builder() -> SandboxBuilder {
        SandboxBuilder::default()
    }

    fn new(client: Client, run: RunId, home: PathBuf, ownership: Ownership) -> Self {
        Self { client, run, home, ownership }
    }

    /// Attaches to a live run in the caller's home. Dropping the handle does not stop the run.
    pub async fn open(run: &RunId) -> Result<Self, Error> {
        let env = std::env::vars_os().collect();
        let home = belljar_record::home::Home::open(&env)?;
        Self::attach_to(home.path(), run).await
    }

    /// Attaches to a live run in this home. Dropping the handle does not stop the run.
    pub async fn attach_to(home: &Path, run: &RunId) -> Result<Self, Error> {
        Self::attach_over(&Supervisors::new(), home, run).await
    }

    /// The same, through a custom connector.
    pub async fn attach_over(
        connector: &dyn Connector,
        home: &Path,
        run: &RunId,
    ) -> Result<Self, Error> {
        let to = Destination::Live { home: home.to_owned(), run: *run };
        let client = Client::over(connector, &to).await?;
        Ok(Self::new(client, *run, home.to_owned(), Ownership::Attached))
    }

    pub fn id(&self) -> RunId {
        self.run
    }

    pub fn home(&self) -> &Path {
        &self.home
    }

    /// The enforcement of each clause; `None` for a run that this handle did not start (see its record).
    pub fn posture(&self) -> Option<&Posture> {
        match &self.ownership {
            Ownership::Owner { posture, .. } => Some(posture),
            Ownership::Attached => None,
        }
    }

    pub fn backend(&self) -> Option<BackendName> {
        match &self.ownership {
            Ownership::Owner { backend, .. } => Some(*backend),
            Ownership::Attached => None,
        }
    }

    /// Backends that were tried before this one, and why they were skipped. Empty for a run that this handle
    /// did not start (see its record).
    pub fn skipped_backends(&self) -> &[SkippedBackend] {
        match &self.ownership {
            Ownership::Owner { skipped_backends, .. } => skipped_backends,
            Ownership::Attached => &[],
        }
    }

    /// The connection, for what this type does not offer.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Prepares a command. It starts with [`Exec::output`] or [`Exec::spawn`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), belljar::Error> {
    /// # let fake = belljar::testing::FakeBackend::new();
    /// # let sandbox = belljar::Sandbox::builder().no_config().connector(fake).start().await?;
    /// let mut running = sandbox.exec(["cat"]).stdin("piped").spawn().await?;
    /// while let Some(chunk) = running.next().await {
    ///     assert_eq!(chunk.bytes, b"piped");
    /// }
    /// assert_eq!(running.wait().await?.code, Some(0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn exec<A: Into<std::ffi::OsString>>(&self, argv: impl IntoIterator<Item = A>) -> Exec {
        self.client.exec(argv)
    }

    /// Copies a file or a tree to the host, within the default [`CopyLimits`]. The copy goes below an
    /// existing directory, and replaces an existing file, but never a directory. Links that lead out of the
    /// tree are skipped and reported; after an error nothing is left behind.
    pub async fn copy_out(
        &self,
        inside: impl AsRef<Path>,
        target: impl AsRef<Path>,
    ) -> Result<CopyReport, Error> {
        self.copy_out_within(inside, target, CopyLimits::default()).await
    }

    pub async fn copy_out_within(
        &self,
        inside: impl AsRef<Path>,
        target: impl AsRef<Path>,
        limits: CopyLimits,
    ) -> Result<CopyReport, Error> {
        self.client.copy_out(inside.as_ref().into(), target.as_ref().to_owned(), limits).await
    }

    /// Copies a file or a tree of the host into the sandbox, links as links. With a slash at its end
    /// `inside` is a directory, and the source keeps its name below it.
    pub async fn copy_in(
        &self,
        source: impl AsRef<Path>,
        inside: impl AsRef<Path>,
    ) -> Result<CopyReport, Error> {
        self.client.copy_in(source.as_ref().to_owned(), inside.as_ref().into()).await
    }

    pub async fn status(&self) -> Result<RunStatus, Error> {
        self.client.status().await
    }

    /// Sends TERM to every process inside, and KILL after the run's stop timeout. Returns when the end of the
    /// run is recorded.
    pub async fn stop(&self) -> Result<StopReport, Error> {
        self.client.stop(None).await
    }

    pub async fn stop_within(&self, grace: Duration) -> Result<StopReport, Error> {
        self.client.stop(Some(grace)).await
    }
}

impl Client {
    /// See [`Sandbox::copy_out`].
    pub async fn copy_out(
        &self,
        inside: OsText,
        target: PathBuf,
        limits: CopyLimits,
    ) -> Result<CopyReport, Error> {
        copy::copy_out(|work| self.work(work), inside, target, limits).await
    }

    /// See [`Sandbox::copy_in`].
    pub async fn copy_in(&self, source: PathBuf, inside: OsText) -> Result<CopyReport, Error> {
        copy::copy_in(|work| self.work(work), source, inside).await
    }
}

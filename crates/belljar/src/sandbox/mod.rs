//! Sandboxes for programs: [`Sandbox`] and what belongs to it.
//!
//! Every sandbox has a supervisor, a `belljar` process of its own of the same build as this library,
//! and the library speaks with it over one connection. No process or thread of the embedding program
//! is ever cloned into a sandbox, so all of this is safe in a program with many threads. It needs a
//! tokio runtime with I/O and time enabled.

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
mod task;

use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_spec::wire::control::{RunStatus, StopReport};
use belljar_spec::{BackendName, OsText, Posture, RunId, SkippedBackend};

pub use backends::{BackendFacts, Unavailable, available_backends};
pub use builder::{RunOutput, SandboxBuilder};
pub use client::{Client, LaunchedRun};
pub use connector::{BoxFuture, Connection, Connector, Destination, Supervisors, Transport};
pub use copy::{CopyError, CopyLimits, CopyReport};
pub use error::Error;
pub use exec::Exec;
pub use locate::find_executable;
pub use output::{DEFAULT_OUTPUT_LIMIT, Omitted, Output};
pub use running::{Input, Reader, Running};
pub use task::{Chunk, Source};

/// What this end is to the run.
#[derive(Debug)]
enum Bonded {
    /// It was started here, and ends with this.
    Owner {
        backend: BackendName,
        posture: Posture,
        not_taken: Vec<SkippedBackend>,
    },
    Visitor,
}

/// A sandbox that stands, in which many commands can run at once.
///
/// Dropping one that was started here ends the run and everything in it: the connection closes, the
/// supervisor sees that and cleans up by itself, and the runtime reaps it in the background. Nothing
/// blocks. [`Sandbox::stop`] does the same and waits for it. Commands that are still held as
/// [`Running`] end with the sandbox.
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
    bonded: Bonded,
}

impl Sandbox {
    pub fn builder() -> SandboxBuilder {
        SandboxBuilder::default()
    }

    fn new(client: Client, run: RunId, home: PathBuf, bonded: Bonded) -> Self {
        Self { client, run, home, bonded }
    }

    /// A run that is alive, in the caller's own home. Dropping this does not end it.
    pub async fn open(run: &RunId) -> Result<Self, Error> {
        let env = std::env::vars_os().collect();
        let home = belljar_record::home::Home::open(&env)?;
        Self::attach_to(home.path(), run).await
    }

    /// A run that is alive, in this home. Dropping this does not end it.
    pub async fn attach_to(home: &Path, run: &RunId) -> Result<Self, Error> {
        Self::attach_over(&Supervisors::new(), home, run).await
    }

    /// The same, through a connector of the caller's.
    pub async fn attach_over(
        connector: &dyn Connector,
        home: &Path,
        run: &RunId,
    ) -> Result<Self, Error> {
        let to = Destination::Live { home: home.to_owned(), run: *run };
        let client = Client::over(connector, &to).await?;
        Ok(Self::new(client, *run, home.to_owned(), Bonded::Visitor))
    }

    pub fn id(&self) -> RunId {
        self.run
    }

    pub fn home(&self) -> &Path {
        &self.home
    }

    /// What was promised for each clause; `None` for a run that was started elsewhere, whose record
    /// has it.
    pub fn posture(&self) -> Option<&Posture> {
        match &self.bonded {
            Bonded::Owner { posture, .. } => Some(posture),
            Bonded::Visitor => None,
        }
    }

    pub fn backend(&self) -> Option<BackendName> {
        match &self.bonded {
            Bonded::Owner { backend, .. } => Some(*backend),
            Bonded::Visitor => None,
        }
    }

    /// Backends that come before it in the operator's order, and why they were not taken. Nothing for a run
    /// that was started elsewhere, whose record has it.
    pub fn not_taken(&self) -> &[SkippedBackend] {
        match &self.bonded {
            Bonded::Owner { not_taken, .. } => not_taken,
            Bonded::Visitor => &[],
        }
    }

    /// The connection, for what the command line does.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// One more command. Nothing happens before [`Exec::output`] or [`Exec::spawn`].
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

    /// Copies a file or a tree to the host, within the default [`CopyLimits`]. An existing directory
    /// gets it under its own name, an existing file is replaced, and a directory never is. Links that
    /// lead out of the tree are left out and reported; on an error nothing is left.
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

    /// TERM to everything inside, then, after the run's grace, KILL; comes back when the run's end is
    /// recorded.
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

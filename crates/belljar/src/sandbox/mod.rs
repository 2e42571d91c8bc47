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
mod files;
mod link;
mod locate;
mod output;
mod running;
mod secret;
mod task;

use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_spec::network_list::{NetworkChange, NetworkState};
use belljar_spec::wire::control::{LaunchRequest, RunStatus, StopReport};
use belljar_spec::{BackendName, OsText, Posture, RunId, SkippedBackend};

use crate::recorded::{
    ApplyOptions, ApplyReport, Checkpoint, Diff, Events, Follow, ForkOptions, RecordedRun,
};

pub use backends::{BackendFacts, Unavailable, available_backends};
pub use belljar_spec::wire::ReadOnlyFiles;
pub use belljar_workspace::transfer::{CopyError, CopyLimits, CopyReport};
pub use builder::{RunOutput, SandboxBuilder};
pub use client::{Client, LaunchedRun};
pub use connector::{BoxFuture, Connection, Connector, Destination, Supervisors, Transport};
pub use copy::{CopyRules, CopySource, ExistingDirectory, HostTarget, MissingParents};
pub use error::Error;
pub use exec::Exec;
pub use files::{DEFAULT_FILE_LIMIT, DirEntry, FileError, FileInfo, FileKind};
pub use locate::find_executable;
pub use output::{Collected, DEFAULT_OUTPUT_LIMIT, Omitted, Output};
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

    /// Launches a run that ends with this handle.
    pub(crate) async fn launch(
        connector: &dyn Connector,
        request: LaunchRequest,
    ) -> Result<Self, Error> {
        let home = request.home.as_path().to_owned();
        let mut client = Client::over(connector, &Destination::New).await?;
        let LaunchedRun { run, backend, posture, skipped_backends, .. } =
            client.launch(request, None).await?;
        Ok(Self::new(client, run, home, Ownership::Owner { backend, posture, skipped_backends }))
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

    /// The record of this run: its events, its output, its changes. It can be read after the end too.
    pub fn record(&self) -> RecordedRun {
        RecordedRun::new(self.home.clone(), self.run)
    }

    /// What the run changed in its overlay trees so far; see [`RecordedRun::diff`].
    pub async fn diff(&self) -> Result<Diff, Error> {
        self.record().diff().await
    }

    /// Writes the changes so far to the host's tree; see [`RecordedRun::apply`].
    pub async fn apply(&self, options: ApplyOptions) -> Result<ApplyReport, Error> {
        self.record().apply(options).await
    }

    /// Stops the run and deletes its changes for good; see [`RecordedRun::discard`].
    pub async fn discard(self) -> Result<(), Error> {
        self.stop().await?;
        self.record().discard().await
    }

    /// What the sandbox may reach now.
    pub async fn network(&self) -> Result<NetworkState, Error> {
        self.client.network().await
    }

    /// Replaces what the sandbox may reach by these rules, written as in `network.allow`; none closes all of it. When
    /// this returns, the new list is in force: connections to hosts that it does not have are closed, and none can be
    /// made. Widening is bound by the administrator's ceiling. Secrets stay with their hosts, and no other host gets one.
    ///
    /// Refused for a sandbox that was started without any host ([`crate::SandboxBuilder::allow_host`]): it has no proxy.
    pub async fn set_network<R: Into<String>>(
        &self,
        rules: impl IntoIterator<Item = R>,
    ) -> Result<NetworkState, Error> {
        let set = Some(rules.into_iter().map(Into::into).collect());
        self.change_network(NetworkChange { set, ..NetworkChange::default() }).await
    }

    /// Adds and removes hosts; see [`Sandbox::set_network`].
    pub async fn change_network(&self, change: NetworkChange) -> Result<NetworkState, Error> {
        self.client.change_network(change).await
    }

    /// Keeps the present state of the run's overlay trees and of its home directory, so that [`Sandbox::fork`] can
    /// start from it. Refused while a command runs; a process that a command left in the background may still write,
    /// which [`Checkpoint::report`] counts. The newest 32 are kept, in half of the run's disk limit.
    pub async fn checkpoint(&self, note: &str) -> Result<Checkpoint, Error> {
        let note = (!note.is_empty()).then(|| note.to_owned());
        let taken = self.client.checkpoint(note.clone()).await?;
        Ok(Checkpoint::new(self.run, taken, note))
    }

    /// Starts a new sandbox with the same settings, whose overlay trees and home directory are as they were at the
    /// checkpoint; nothing else of this sandbox is in it, such as processes or files in `/tmp`. A tree that is
    /// mounted `rw` is shared. For a run that has ended, see [`RecordedRun::fork`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use belljar::{Sandbox, spec::MountMode};
    ///
    /// let project = tempfile::tempdir()?;
    /// let sandbox = Sandbox::builder().workspace(project.path(), MountMode::Overlay).start().await?;
    /// sandbox.write_file("plan.txt", "A").await?;
    /// let checkpoint = sandbox.checkpoint("before the experiment").await?;
    /// sandbox.write_file("plan.txt", "B").await?;
    ///
    /// let fork = sandbox.fork(&checkpoint).await?;
    /// assert_eq!(fork.read_file("plan.txt").await?, b"A");
    /// assert_eq!(sandbox.read_file("plan.txt").await?, b"B");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn fork(&self, checkpoint: &Checkpoint) -> Result<Self, Error> {
        self.record().fork(ForkOptions::default().from(checkpoint.number)).await
    }

    /// Follows the events of the run to its end; see [`RecordedRun::events`].
    pub async fn events(&self) -> Result<Events, Error> {
        self.record().events(Follow::UntilEnd).await
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

    /// Waits for the end of the run without requesting it.
    pub async fn wait(&self) -> Result<StopReport, Error> {
        self.client.stopped().await
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
        self.copy_out_by(inside, target.into(), limits, ReadOnlyFiles::Replace).await
    }

    /// As [`Client::copy_out`]; `read_only` decides about a file on the host that nobody may write.
    pub async fn copy_out_by(
        &self,
        inside: OsText,
        target: HostTarget,
        limits: CopyLimits,
        read_only: ReadOnlyFiles,
    ) -> Result<CopyReport, Error> {
        copy::copy_out(|work| self.work(work), inside, target, limits, read_only).await
    }

    /// See [`Sandbox::copy_in`].
    pub async fn copy_in(&self, source: PathBuf, inside: OsText) -> Result<CopyReport, Error> {
        self.copy_in_by(CopySource::Path(source), inside, CopyRules::default()).await
    }

    /// Copies the source to `inside`, which is a directory if it has a slash at its end, or if the rules say that an
    /// existing one is.
    pub async fn copy_in_by(
        &self,
        source: CopySource,
        inside: OsText,
        rules: CopyRules,
    ) -> Result<CopyReport, Error> {
        let mut target = copy::target_inside(&source, inside.clone())?;
        if rules.existing == ExistingDirectory::Parent
            && target == inside
            && self.is_directory(&target).await?
        {
            target = copy::below(&source, &target)?;
        }
        if rules.parents == MissingParents::Make {
            self.make_parents(target.as_path()).await?;
        }
        copy::copy_in(|work| self.work(work), source, target, rules.read_only).await
    }

    /// Whether the path is a directory, or a link to one.
    async fn is_directory(&self, path: &OsText) -> Result<bool, Error> {
        match self.metadata(&path.as_path().join(".")).await {
            Ok(found) => Ok(found.is_some_and(|found| found.kind == FileKind::Directory)),
            Err(Error::File(_)) => Ok(false), // such as a file, which has nothing in it
            Err(error) => Err(error),
        }
    }
}

//! Blocking variant of `Sandbox`.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use belljar_spec::network_list::{NetworkChange, NetworkState};
use belljar_spec::wire::control::{RunStatus, StopReport};
use belljar_spec::{BackendName, Posture, RunId, SkippedBackend};

use super::command::Exec;
use super::recorded::{Events, RecordedRun};
use super::runtime::block_on;
use crate::{
    ApplyOptions, ApplyReport, Checkpoint, CopyLimits, CopyReport, Diff, DirEntry, Error, FileInfo,
    SandboxBuilder,
};

/// See [`crate::Sandbox`]: dropping a sandbox that this handle started stops the run.
#[derive(Debug)]
pub struct Sandbox {
    inner: crate::Sandbox,
}

impl Sandbox {
    /// The settings, for [`Sandbox::start`] or [`super::run`].
    pub fn builder() -> SandboxBuilder {
        crate::Sandbox::builder()
    }

    /// Starts a sandbox that lives until it is stopped or dropped.
    pub fn start(settings: SandboxBuilder) -> Result<Self, Error> {
        block_on(settings.start()).map(Self::from)
    }

    /// See [`crate::Sandbox::open`].
    pub fn open(run: &RunId) -> Result<Self, Error> {
        block_on(crate::Sandbox::open(run)).map(Self::from)
    }

    /// See [`crate::Sandbox::attach_to`].
    pub fn attach_to(home: &Path, run: &RunId) -> Result<Self, Error> {
        block_on(crate::Sandbox::attach_to(home, run)).map(Self::from)
    }

    pub fn id(&self) -> RunId {
        self.inner.id()
    }

    pub fn home(&self) -> &Path {
        self.inner.home()
    }

    pub fn posture(&self) -> Option<&Posture> {
        self.inner.posture()
    }

    pub fn backend(&self) -> Option<BackendName> {
        self.inner.backend()
    }

    pub fn skipped_backends(&self) -> &[SkippedBackend] {
        self.inner.skipped_backends()
    }

    /// Prepares a command.
    pub fn exec<A: Into<OsString>>(&self, argv: impl IntoIterator<Item = A>) -> Exec {
        Exec::new(self.inner.exec(argv))
    }

    pub fn read_file(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        block_on(self.inner.read_file(path))
    }

    pub fn read_file_within(&self, path: impl AsRef<Path>, limit: u64) -> Result<Vec<u8>, Error> {
        block_on(self.inner.read_file_within(path, limit))
    }

    pub fn write_file(&self, path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Result<(), Error> {
        block_on(self.inner.write_file(path, bytes))
    }

    pub fn write_file_with_mode(
        &self,
        path: impl AsRef<Path>,
        bytes: impl AsRef<[u8]>,
        mode: u32,
    ) -> Result<(), Error> {
        block_on(self.inner.write_file_with_mode(path, bytes, mode))
    }

    pub fn list_dir(&self, path: impl AsRef<Path>) -> Result<Vec<DirEntry>, Error> {
        block_on(self.inner.list_dir(path))
    }

    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Option<FileInfo>, Error> {
        block_on(self.inner.metadata(path))
    }

    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool, Error> {
        block_on(self.inner.exists(path))
    }

    pub fn copy_out(
        &self,
        inside: impl AsRef<Path>,
        target: impl AsRef<Path>,
    ) -> Result<CopyReport, Error> {
        block_on(self.inner.copy_out(inside, target))
    }

    pub fn copy_out_within(
        &self,
        inside: impl AsRef<Path>,
        target: impl AsRef<Path>,
        limits: CopyLimits,
    ) -> Result<CopyReport, Error> {
        block_on(self.inner.copy_out_within(inside, target, limits))
    }

    pub fn copy_in(
        &self,
        source: impl AsRef<Path>,
        inside: impl AsRef<Path>,
    ) -> Result<CopyReport, Error> {
        block_on(self.inner.copy_in(source, inside))
    }

    pub fn record(&self) -> RecordedRun {
        RecordedRun::from(self.inner.record())
    }

    pub fn diff(&self) -> Result<Diff, Error> {
        block_on(self.inner.diff())
    }

    pub fn apply(&self, options: ApplyOptions) -> Result<ApplyReport, Error> {
        block_on(self.inner.apply(options))
    }

    pub fn discard(self) -> Result<(), Error> {
        block_on(self.inner.discard())
    }

    pub fn network(&self) -> Result<NetworkState, Error> {
        block_on(self.inner.network())
    }

    /// See [`crate::Sandbox::set_network`].
    pub fn set_network<R: Into<String>>(
        &self,
        rules: impl IntoIterator<Item = R>,
    ) -> Result<NetworkState, Error> {
        block_on(self.inner.set_network(rules))
    }

    /// See [`crate::Sandbox::change_network`].
    pub fn change_network(&self, change: NetworkChange) -> Result<NetworkState, Error> {
        block_on(self.inner.change_network(change))
    }

    pub fn checkpoint(&self, note: &str) -> Result<Checkpoint, Error> {
        block_on(self.inner.checkpoint(note))
    }

    pub fn fork(&self, checkpoint: &Checkpoint) -> Result<Self, Error> {
        block_on(self.inner.fork(checkpoint)).map(Self::from)
    }

    /// The events to the end of the run: the iterator waits for each.
    pub fn events(&self) -> Result<Events, Error> {
        block_on(self.inner.events()).map(Events::from)
    }

    pub fn status(&self) -> Result<RunStatus, Error> {
        block_on(self.inner.status())
    }

    /// See [`crate::Sandbox::stop`].
    pub fn stop(&self) -> Result<StopReport, Error> {
        block_on(self.inner.stop())
    }

    pub fn stop_within(&self, grace: Duration) -> Result<StopReport, Error> {
        block_on(self.inner.stop_within(grace))
    }

    /// Waits for the end of the run without requesting it.
    pub fn wait(&self) -> Result<StopReport, Error> {
        block_on(self.inner.wait())
    }
}

impl From<crate::Sandbox> for Sandbox {
    fn from(inner: crate::Sandbox) -> Self {
        Self { inner }
    }
}

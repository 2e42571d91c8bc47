//! Blocking variants of `RecordedRun` and its streams.

use std::path::Path;

use belljar_record::store::RunInfo;
use belljar_spec::{Event, RunId};

use super::runtime::{block_on, block_on_value};
use super::sandbox::Sandbox;
use crate::{ApplyOptions, ApplyReport, Checkpoint, Diff, Error, Follow, ForkOptions, LogPiece};

/// See [`crate::RecordedRun`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRun {
    inner: crate::RecordedRun,
}

impl RecordedRun {
    pub fn open(query: &str) -> Result<Self, Error> {
        block_on(crate::RecordedRun::open(query)).map(Self::from)
    }

    pub fn open_in(home: &Path, query: &str) -> Result<Self, Error> {
        block_on(crate::RecordedRun::open_in(home, query)).map(Self::from)
    }

    pub fn id(&self) -> RunId {
        self.inner.id()
    }

    pub fn home(&self) -> &Path {
        self.inner.home()
    }

    pub fn info(&self) -> Result<RunInfo, Error> {
        block_on(self.inner.info())
    }

    pub fn diff(&self) -> Result<Diff, Error> {
        block_on(self.inner.diff())
    }

    pub fn patch(&self) -> Result<Vec<u8>, Error> {
        block_on(self.inner.patch())
    }

    pub fn apply(&self, options: ApplyOptions) -> Result<ApplyReport, Error> {
        block_on(self.inner.apply(options))
    }

    pub fn discard(&self) -> Result<(), Error> {
        block_on(self.inner.discard())
    }

    pub fn checkpoints(&self) -> Result<Vec<Checkpoint>, Error> {
        block_on(self.inner.checkpoints())
    }

    pub fn fork(&self, options: ForkOptions) -> Result<Sandbox, Error> {
        block_on(self.inner.fork(options)).map(Sandbox::from)
    }

    pub fn resume(&self, options: ForkOptions) -> Result<Sandbox, Error> {
        block_on(self.inner.resume(options)).map(Sandbox::from)
    }

    pub fn events(&self, follow: Follow) -> Result<Events, Error> {
        block_on(self.inner.events(follow)).map(Events::from)
    }

    pub fn logs(&self, follow: Follow) -> Result<Logs, Error> {
        block_on(self.inner.logs(follow)).map(|inner| Logs { inner })
    }
}

impl From<crate::RecordedRun> for RecordedRun {
    fn from(inner: crate::RecordedRun) -> Self {
        Self { inner }
    }
}

/// The events of a run; the iterator waits for each.
#[derive(Debug)]
pub struct Events {
    inner: crate::Events,
}

impl From<crate::Events> for Events {
    fn from(inner: crate::Events) -> Self {
        Self { inner }
    }
}

impl Iterator for Events {
    type Item = Result<Event, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on_value(self.inner.next()).unwrap_or_else(|error| Some(Err(error)))
    }
}

/// The recorded output of a run; the iterator waits for each piece.
#[derive(Debug)]
pub struct Logs {
    inner: crate::Logs,
}

impl Iterator for Logs {
    type Item = Result<LogPiece, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on_value(self.inner.next()).unwrap_or_else(|error| Some(Err(error)))
    }
}

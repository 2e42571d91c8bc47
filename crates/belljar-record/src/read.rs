//! Reads a log, also while it grows.

use std::io;
use std::path::{Path, PathBuf};

use belljar_spec::{Event, EventKind, OutputStream};

use super::chain::{self, LineReader, Next};
use super::output::OutputEvent;
use super::{EVENTS, RunKey, file, upgrade};

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read the log {path}: {error}", path = .path.display())]
    Io {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error(
        "the line at byte {offset} of {path} is not an event of this run; for details run: belljar verify",
        path = .path.display()
    )]
    BadLine { path: PathBuf, offset: u64 },
}

/// Whether lines are taken as they are.
#[derive(Debug)]
enum Trust {
    AsTheyAre,
    Signed(RunKey),
}

/// Gives out events one by one. At the end it can be asked again after more was written.
#[derive(Debug)]
pub struct EventReader {
    path: PathBuf,
    lines: LineReader,
    trust: Trust,
    names: Names,
}

/// Whether events have the names of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    Present,
    /// Of a record that an older version wrote: they are renamed when they are read.
    Old,
}

impl EventReader {
    pub fn open(directory: &Path) -> Result<Self, ReadError> {
        Self::open_at(directory, 0)
    }

    /// From an [`EventReader::offset`] of before.
    pub fn open_at(directory: &Path, offset: u64) -> Result<Self, ReadError> {
        let path = directory.join(EVENTS);
        let failed = |error| ReadError::Io { path: path.clone(), error };
        let file = file::open(&path).map_err(failed)?;
        // The first event has the version; who starts there reads it anyway.
        let names =
            if offset == 0 { Names::Present } else { first_names(&path).map_err(failed)? };
        Ok(Self { path, lines: LineReader::new(file, offset), trust: Trust::AsTheyAre, names })
    }

    /// Every line must be one that this run wrote. Their order is for `verify_run` to judge.
    #[must_use]
    pub fn checked_with(self, key: RunKey) -> Self {
        Self { trust: Trust::Signed(key), ..self }
    }

    /// Of the first byte that was not given out.
    pub fn offset(&self) -> u64 {
        self.lines.offset()
    }

    fn with_present_names(&mut self, mut event: Event) -> Event {
        if event.kind == EventKind::RunStart {
            self.names = names_of(&event);
        }
        if self.names == Names::Old {
            upgrade::event(event.kind, &mut event.data);
        }
        event
    }

    /// Nothing means: nothing more so far. A line that is not whole yet is not given out.
    #[allow(clippy::should_implement_trait, reason = "the end is not for ever")]
    pub fn next(&mut self) -> Result<Option<Event>, ReadError> {
        let offset = self.lines.offset();
        let event = match self.lines.next() {
            Err(error) => return Err(ReadError::Io { path: self.path.clone(), error }),
            Ok(Next::End | Next::Partial) => return Ok(None),
            Ok(Next::TooLong) => None,
            Ok(Next::Line(line)) => match &self.trust {
                Trust::AsTheyAre => serde_json::from_slice(line).ok(),
                Trust::Signed(key) => chain::check(line, key),
            },
        };
        match event {
            Some(event) => Ok(Some(self.with_present_names(event))),
            None => Err(ReadError::BadLine { path: self.path.clone(), offset }),
        }
    }
}

/// The names that the record at this path has, by its first event.
fn first_names(path: &Path) -> std::io::Result<Names> {
    let mut lines = LineReader::new(file::open(path)?, 0);
    let first: Option<Event> = match lines.next()? {
        Next::Line(line) => serde_json::from_slice(line).ok(),
        Next::End | Next::Partial | Next::TooLong => None,
    };
    Ok(first.map_or(Names::Present, |first| names_of(&first)))
}

fn names_of(start: &Event) -> Names {
    if upgrade::has_old_names(&start.data) { Names::Old } else { Names::Present }
}

/// Bytes of a stream that came together, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputPiece {
    pub time: String,
    pub exec: u32,
    pub stream: OutputStream,
    pub offset: u64,
    pub length: u64,
    /// For [`super::OutputReader::open`].
    pub limit: u64,
}

/// Pieces of all streams in the order in which they were recorded.
#[derive(Debug)]
pub struct Interleaved {
    events: EventReader,
}

/// What was put out, by all commands of a run.
pub fn interleaved(directory: &Path) -> Result<Interleaved, ReadError> {
    Ok(Interleaved { events: EventReader::open(directory)? })
}

impl Interleaved {
    /// Nothing means: nothing more so far.
    #[allow(clippy::should_implement_trait, reason = "the end is not for ever")]
    pub fn next(&mut self) -> Result<Option<OutputPiece>, ReadError> {
        loop {
            let offset = self.events.offset();
            let Some(event) = self.events.next()? else { return Ok(None) };
            if event.kind != EventKind::Output {
                continue;
            }
            let output: OutputEvent = serde_json::from_value(event.data)
                .map_err(|_| ReadError::BadLine { path: self.events.path.clone(), offset })?;
            let OutputEvent { exec, stream, offset, length, limit, .. } = output;
            return Ok(Some(OutputPiece { time: event.time, exec, stream, offset, length, limit }));
        }
    }
}

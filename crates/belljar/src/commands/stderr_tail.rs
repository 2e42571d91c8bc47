//! Reads the last lines of a failed command's output, which usually explain the failure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use belljar::record::{OutputEvent, OutputReader, Piece};
use belljar::spec::{Event, EventKind, OutputStream};
use serde::Deserialize;

/// Bytes read from the end of a stream.
const MAX_BYTES: u64 = 4096;

/// A command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FailedExec {
    pub(super) exec: u32,
    /// Whether its standard output is plain text, which may explain the failure too.
    pub(super) is_plain: bool,
}

pub(super) struct StderrTails {
    directory: PathBuf,
    streams: BTreeMap<(u32, bool), Stored>,
}

#[derive(Clone, Copy)]
struct Stored {
    total: u64,
    limit: u64,
}

impl StderrTails {
    pub(super) fn of(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), streams: BTreeMap::new() }
    }

    /// Notes the length of an output stream.
    pub(super) fn note(&mut self, event: &Event) {
        if event.kind != EventKind::Output {
            return;
        }
        if let Ok(OutputEvent { exec, stream, offset, length, limit, .. }) =
            OutputEvent::deserialize(&event.data)
        {
            let total = offset.saturating_add(length);
            self.streams.insert((exec, stream == OutputStream::Stderr), Stored { total, limit });
        }
    }

    /// The last lines of stderr, or of a plain stdout; empty if there was no output.
    pub(super) fn last(&self, failed: FailedExec) -> String {
        let error = self.end_of(failed.exec, OutputStream::Stderr);
        match error.trim().is_empty() && failed.is_plain {
            true => self.end_of(failed.exec, OutputStream::Stdout),
            false => error,
        }
    }

    /// Read errors are ignored here; `belljar logs` and `verify` report them.
    fn end_of(&self, exec: u32, stream: OutputStream) -> String {
        let is_error = stream == OutputStream::Stderr;
        let Some(Stored { total, limit }) = self.streams.get(&(exec, is_error)) else {
            return String::new();
        };
        let Ok(reader) = OutputReader::open(&self.directory, exec, stream, *total, *limit) else {
            return String::new();
        };
        let (mut at, mut bytes) = (total.saturating_sub(MAX_BYTES), Vec::new());
        let is_cut = at > 0;
        let mut buffer = [0; MAX_BYTES as usize];
        loop {
            match reader.read_at(at, &mut buffer) {
                Ok(Piece::Bytes(length)) => {
                    bytes.extend_from_slice(&buffer[..length]);
                    at += length as u64;
                }
                Ok(Piece::Lost { until }) => at = until,
                Ok(Piece::End) | Err(_) => break,
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        match text.split_once('\n') {
            Some((_, whole)) if is_cut => whole.to_owned(),
            _ => text.into_owned(),
        }
    }
}

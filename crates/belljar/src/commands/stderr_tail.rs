//! The last lines that an agent, or its set-up, complained with. Its own format has no place for them, and they say
//! why it failed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use belljar::record::{OutputEvent, OutputReader, Piece};
use belljar::spec::{Event, EventKind, OutputStream};
use serde::Deserialize;

/// Of the end of a stream.
const MOST_BYTES: u64 = 4096;

/// A command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) exec: u32,
    /// Whether it has no format, so that standard output may say why as well.
    pub(super) is_plain: bool,
}

pub(super) struct Complaints {
    directory: PathBuf,
    streams: BTreeMap<(u32, bool), Stored>,
}

#[derive(Clone, Copy)]
struct Stored {
    total: u64,
    limit: u64,
}

impl Complaints {
    pub(super) fn of(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), streams: BTreeMap::new() }
    }

    /// Where the streams end, as far as the log has come.
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

    /// Nothing, where nothing was said.
    pub(super) fn last(&self, failed: Failed) -> String {
        let error = self.end_of(failed.exec, OutputStream::Stderr);
        match error.trim().is_empty() && failed.is_plain {
            true => self.end_of(failed.exec, OutputStream::Stdout),
            false => error,
        }
    }

    /// What cannot be read is told by `belljar logs` and `verify`.
    fn end_of(&self, exec: u32, stream: OutputStream) -> String {
        let is_error = stream == OutputStream::Stderr;
        let Some(Stored { total, limit }) = self.streams.get(&(exec, is_error)) else {
            return String::new();
        };
        let Ok(reader) = OutputReader::open(&self.directory, exec, stream, *total, *limit) else {
            return String::new();
        };
        let (mut at, mut bytes) = (total.saturating_sub(MOST_BYTES), Vec::new());
        let begins_within = at > 0;
        let mut buffer = [0; MOST_BYTES as usize];
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
            Some((_, whole)) if begins_within => whole.to_owned(),
            _ => text.into_owned(),
        }
    }
}

//! One output stream of one command, as a file: its beginning, and its end in a ring behind it.
//!
//! With `half` of the limit: offset `o` of the stream is at position `o` below `half`, and at
//! `half + (o - half) % half` from there on. Nothing is moved when the stream outgrows the file.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use belljar_spec::OutputStream;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::file;
use super::mask::{Masker, Secrets};

/// One event covers at most this much.
pub(super) const CHUNK: u64 = 1 << 20;
const MAX_CHUNK: u64 = 64 << 20;
/// Numbers in events stay below 2^53, and no file is that long.
const MAX_LIMIT: u64 = 1 << 52;

/// The content of an `output` event: these bytes were stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputEvent {
    /// 0 is the run's own command.
    pub exec: u32,
    pub stream: OutputStream,
    /// In the stream.
    pub offset: u64,
    pub length: u64,
    /// BLAKE3 of the bytes as they are stored.
    pub hash: String,
    /// How much of the stream the file keeps: where a byte lies depends on it.
    pub limit: u64,
}

/// The hash of the first kept bytes after a loss. The event that covers the first of them covers
/// lost bytes too, so its own hash cannot be checked any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TailHash {
    pub offset: u64,
    pub length: u64,
    pub hash: String,
}

/// A stream at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    pub total: u64,
    /// Bytes in the middle that were not kept.
    pub lost: u64,
    /// How many secrets were covered.
    pub masked: u64,
    /// Only if something was lost and something after it is there.
    pub tail: Option<TailHash>,
}

#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    #[error("cannot make the output file {path}: {error}", path = .path.display())]
    Create {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("cannot store output in {path}: {error}", path = .path.display())]
    Write {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("cannot sync {path} to disk: {error}", path = .path.display())]
    Sync {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("cannot read output from {path}: {error}", path = .path.display())]
    Read {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
}

/// The name in the run directory.
pub(super) fn name(exec: u32, stream: OutputStream) -> String {
    match exec {
        0 => format!("{}.bin", stream.name()),
        _ => format!("exec-{exec}.{}.bin", stream.name()),
    }
}

/// How a stream lies in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) half: u64,
}

impl Layout {
    pub(super) fn new(limit: u64) -> Self {
        Self { half: limit.min(MAX_LIMIT) / 2 }
    }

    /// Where a byte lies, and how many follow it there without a jump. None is kept with a limit of
    /// 0 or 1.
    pub(super) fn place(self, offset: u64) -> (u64, u64) {
        match offset.checked_sub(self.half) {
            None => (offset, self.half - offset),
            Some(_) if self.half == 0 => (0, u64::MAX),
            Some(after) => {
                let at = after % self.half;
                (self.half + at, self.half - at)
            }
        }
    }

    /// The first byte after the loss; `half` if nothing was lost.
    pub(super) fn tail_from(self, total: u64) -> u64 {
        self.half.max(total.saturating_sub(self.half))
    }

    pub(super) fn lost(self, total: u64) -> u64 {
        total.saturating_sub(2 * self.half)
    }

    pub(super) fn file_length(self, total: u64) -> u64 {
        total.min(2 * self.half)
    }
}

/// The content of the next event.
#[derive(Debug, Default)]
struct Open {
    length: u64,
    hasher: blake3::Hasher,
}

#[derive(Clone, Copy, Debug)]
enum OutputFault {
    Write(Errno),
    Sync(Errno),
}

/// The writer of one stream. Its file is made with the first byte.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    exec: u32,
    stream: OutputStream,
    limit: u64,
    layout: Layout,
    file: Option<File>,
    masker: Masker,
    scratch: Vec<u8>,
    total: u64,
    open: Open,
    full: VecDeque<OutputEvent>,
    unsynced: bool,
    fault: Option<OutputFault>,
}

impl OutputFile {
    pub fn new(
        directory: &Path,
        exec: u32,
        stream: OutputStream,
        secrets: Secrets,
        limit: u64,
    ) -> Self {
        Self {
            path: directory.join(name(exec, stream)),
            exec,
            stream,
            limit: limit.min(MAX_LIMIT),
            layout: Layout::new(limit),
            file: None,
            masker: Masker::new(secrets),
            scratch: Vec::new(),
            total: 0,
            open: Open::default(),
            full: VecDeque::new(),
            unsynced: false,
            fault: None,
        }
    }

    /// Covers secrets and stores the rest. After a failure every later call fails too: a gap in the
    /// stream must not look like its end.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        self.usable()?;
        if self.masker.is_idle() {
            return self.store(bytes);
        }
        let mut masked = std::mem::take(&mut self.scratch);
        masked.clear();
        self.masker.push(bytes, &mut masked);
        let stored = self.store(&masked);
        self.scratch = masked;
        stored
    }

    /// What was stored since the last one; several if it was much.
    pub fn take_event(&mut self) -> Option<OutputEvent> {
        if self.full.is_empty() {
            self.close_chunk();
        }
        self.full.pop_front()
    }

    /// Only if there is as much as one event can cover.
    pub(super) fn take_full_event(&mut self) -> Option<OutputEvent> {
        self.full.pop_front()
    }

    /// Whether bytes are stored that no event covers.
    pub(super) fn has_uncovered(&self) -> bool {
        self.open.length > 0 || !self.full.is_empty()
    }

    /// The stream is over. Its last events are to be taken after this.
    pub fn finish(&mut self) -> Result<Finished, OutputError> {
        self.usable()?;
        let mut rest = Vec::new();
        self.masker.finish(&mut rest);
        self.store(&rest)?;
        Ok(Finished {
            total: self.total,
            lost: self.layout.lost(self.total),
            masked: self.masker.count(),
            tail: self.tail_hash()?,
        })
    }

    /// What is stored is on the disk.
    pub fn sync(&mut self) -> Result<(), OutputError> {
        self.usable()?;
        let Some(file) = self.file.as_ref().filter(|_| self.unsynced) else { return Ok(()) };
        if let Err(errno) = rustix::fs::fdatasync(file) {
            return Err(self.fail(OutputFault::Sync(errno)));
        }
        self.unsynced = false;
        Ok(())
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// More is to be covered from now on.
    pub(super) fn cover_too(&mut self, secrets: Secrets) {
        self.masker.cover_too(secrets);
    }

    fn store(&mut self, mut bytes: &[u8]) -> Result<(), OutputError> {
        while !bytes.is_empty() {
            let (position, run) = self.layout.place(self.total);
            let most = run.min(self.chunk() - self.open.length).min(bytes.len() as u64);
            let piece = &bytes[..usize::try_from(most).unwrap_or(bytes.len())];
            let written =
                if self.layout.half == 0 { piece.len() } else { self.put(piece, position)? };
            self.count(&piece[..written]);
            bytes = &bytes[written..];
        }
        Ok(())
    }

    fn put(&mut self, piece: &[u8], position: u64) -> Result<usize, OutputError> {
        let file = match &self.file {
            Some(file) => file,
            None => {
                let made = file::create(&self.path);
                let made =
                    made.map_err(|error| OutputError::Create { path: self.path.clone(), error });
                self.file.insert(made?)
            }
        };
        loop {
            match file.write_at(piece, position) {
                Ok(0) => return Err(self.fail(OutputFault::Write(Errno::IO))),
                Ok(length) => {
                    self.unsynced = true;
                    return Ok(length);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                    return Err(self.fail(OutputFault::Write(errno)));
                }
            }
        }
    }

    fn count(&mut self, stored: &[u8]) {
        self.open.hasher.update(stored);
        self.open.length += stored.len() as u64;
        self.total += stored.len() as u64;
        // No event covers bytes on both sides of the place where the ring begins.
        if self.open.length >= self.chunk() || self.total == self.layout.half {
            self.close_chunk();
        }
    }

    /// What one event covers at most. Past the limit that is more: a command that writes a lot must
    /// not fill the disk with events about what is not kept.
    fn chunk(&self) -> u64 {
        if self.total < 2 * self.layout.half { CHUNK } else { self.largest_chunk() }
    }

    fn largest_chunk(&self) -> u64 {
        (self.layout.half / 2).clamp(CHUNK, MAX_CHUNK)
    }

    fn close_chunk(&mut self) {
        if self.open.length == 0 {
            return;
        }
        self.full.push_back(OutputEvent {
            exec: self.exec,
            stream: self.stream,
            offset: self.total - self.open.length,
            length: self.open.length,
            hash: self.open.hasher.finalize().to_hex().to_string(),
            limit: self.limit,
        });
        self.open.length = 0;
        self.open.hasher.reset();
    }

    fn tail_hash(&self) -> Result<Option<TailHash>, OutputError> {
        let Some(file) = self.file.as_ref().filter(|_| self.layout.lost(self.total) > 0) else {
            return Ok(None);
        };
        let offset = self.layout.tail_from(self.total);
        let length = (self.total - offset).min(self.largest_chunk());
        let hash = hash_range(file, self.layout, offset, length)
            .map_err(|error| OutputError::Read { path: self.path.clone(), error })?;
        Ok(Some(TailHash { offset, length, hash: hash.to_hex().to_string() }))
    }

    fn usable(&self) -> Result<(), OutputError> {
        self.fault.map_or(Ok(()), |fault| Err(self.error(fault)))
    }

    fn fail(&mut self, fault: OutputFault) -> OutputError {
        self.fault = Some(fault);
        self.error(fault)
    }

    fn error(&self, fault: OutputFault) -> OutputError {
        let path = self.path.clone();
        match fault {
            OutputFault::Write(errno) => OutputError::Write { path, error: errno.into() },
            OutputFault::Sync(errno) => OutputError::Sync { path, error: errno.into() },
        }
    }
}

/// The hash of a part of the stream that is kept.
pub(super) fn hash_range(
    file: &File,
    layout: Layout,
    mut offset: u64,
    mut length: u64,
) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; usize::try_from(length.min(256 << 10)).unwrap_or_default()];
    while length > 0 {
        let (position, run) = layout.place(offset);
        let most = run.min(length).min(buffer.len() as u64);
        let piece = &mut buffer[..usize::try_from(most).unwrap_or_default()];
        if file::read_full_at(file, piece, position)? < piece.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        hasher.update(piece);
        offset += most;
        length -= most;
    }
    Ok(hasher.finalize())
}

//! Reads an output stream back by its own offsets, whatever the file does with them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use belljar_spec::OutputStream;

use super::file;
use super::output::{Layout, OutputError, name};

/// What is at an offset of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// So many bytes were read, at least one.
    Bytes(usize),
    /// Not kept; what comes next begins at `until`.
    Lost { until: u64 },
    /// Nothing more so far.
    End,
}

/// Reads one stream of one command. While the run still writes, bytes near the loss may be newer
/// than they should be: the ring goes on under the reader.
#[derive(Debug)]
pub struct OutputReader {
    path: PathBuf,
    /// Made with the first byte that is kept: none before.
    file: Option<File>,
    layout: Layout,
    total: u64,
}

impl OutputReader {
    /// `total` and `limit` come from the log's events.
    pub fn open(
        directory: &Path,
        exec: u32,
        stream: OutputStream,
        total: u64,
        limit: u64,
    ) -> Result<Self, OutputError> {
        let path = directory.join(name(exec, stream));
        let mut reader = Self { path, file: None, layout: Layout::new(limit), total: 0 };
        reader.grow(total)?;
        Ok(reader)
    }

    /// More was stored since.
    pub fn grow(&mut self, total: u64) -> Result<(), OutputError> {
        if self.file.is_none() && self.layout.file_length(total) > 0 {
            self.file = Some(file::open(&self.path).map_err(|error| self.failed(error))?);
        }
        self.total = self.total.max(total);
        Ok(())
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// How many bytes in the middle were not kept.
    pub fn lost(&self) -> u64 {
        self.layout.lost(self.total)
    }

    /// Reads what is at `offset` of the stream, as far as the buffer and the kept part go.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<Piece, OutputError> {
        if offset >= self.total || buffer.is_empty() {
            return Ok(Piece::End);
        }
        let tail = self.layout.tail_from(self.total);
        if offset >= self.layout.half && offset < tail {
            return Ok(Piece::Lost { until: tail });
        }
        let Some(file) = &self.file else { return Ok(Piece::Lost { until: self.total }) };
        let (position, run) = self.layout.place(offset);
        let most = run.min(self.total - offset).min(buffer.len() as u64);
        let piece = &mut buffer[..usize::try_from(most).unwrap_or_default()];
        match file::read_full_at(file, piece, position) {
            Ok(0) => Err(self.failed(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "it is shorter than the log states; for details run: belljar verify",
            ))),
            Ok(length) => Ok(Piece::Bytes(length)),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, error: io::Error) -> OutputError {
        OutputError::Read { path: self.path.clone(), error }
    }
}

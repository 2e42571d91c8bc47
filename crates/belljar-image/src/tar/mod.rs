//! Reads tar archives as a stream: ustar, GNU long names, PAX records, sparse files of every format.
//!
//! The archive is hostile. The `tar` crate reads a long name or a PAX header of any size into memory,
//! trusts no limit of ours, and knows one of the four sparse formats; so the format is read here. Nothing
//! is interpreted: names are bytes, and whether they may be used is decided by who unpacks them.

mod header;
mod pax;
mod reader;
mod sparse;
mod writer;

pub(crate) use reader::{TarEntry, TarKind, TarReader};
pub(crate) use writer::TarWriter;

use std::io;

/// What one archive may make us hold in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TarLimits {
    /// Of one name or link target.
    pub(crate) path_bytes: u64,
    /// Of one entry's PAX records.
    pub(crate) pax_bytes: u64,
    /// Pieces of data of one sparse file.
    pub(crate) sparse_segments: usize,
}

impl Default for TarLimits {
    fn default() -> Self {
        Self { path_bytes: 4096, pax_bytes: 1 << 20, sparse_segments: 1 << 16 }
    }
}

/// An archive cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    #[error("cannot read the archive")]
    Read(#[source] io::Error),
    #[error("the archive ends in the middle of an entry")]
    Truncated,
    #[error("the archive has no valid header at byte {at}")]
    Header { at: u64 },
    #[error("the header at byte {at} has a number that is none or too large: {field}")]
    Number { at: u64, field: &'static str },
    #[error("the header at byte {at} has {what} of more than {most} bytes")]
    TooLong { at: u64, what: &'static str, most: u64 },
    #[error("the PAX records at byte {at} are malformed")]
    Pax { at: u64 },
    #[error("the map of the sparse file at byte {at} is malformed or too long")]
    Sparse { at: u64 },
}

pub(crate) fn read_failed(error: io::Error) -> TarError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => TarError::Truncated,
        _ => TarError::Read(error),
    }
}

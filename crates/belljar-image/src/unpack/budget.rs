//! Counts what a layer has made us do, and stops it at the limits.

use super::error::UnpackProblem;
use super::options::UnpackLimits;

pub(super) struct Budget<'a> {
    limits: &'a UnpackLimits,
    entries: u64,
    bytes: u64,
    xattr_bytes: u64,
    deferred_bytes: u64,
}

impl<'a> Budget<'a> {
    pub(super) fn new(limits: &'a UnpackLimits) -> Self {
        Self { limits, entries: 0, bytes: 0, xattr_bytes: 0, deferred_bytes: 0 }
    }

    pub(super) fn entry(&mut self) -> Result<(), UnpackProblem> {
        self.entries += 1;
        below("entries", self.entries, self.limits.entries)
    }

    /// Before anything of the file is written.
    pub(super) fn file(&mut self, size: u64) -> Result<(), UnpackProblem> {
        below("bytes in one file", size, self.limits.file_bytes)?;
        self.bytes = self.bytes.saturating_add(size);
        below("bytes in all files", self.bytes, self.limits.layer_bytes)
    }

    /// How much of the uncompressed archive has been read.
    pub(super) fn archive_position(&self, position: u64) -> Result<(), UnpackProblem> {
        below("uncompressed bytes", position, self.limits.layer_bytes)
    }

    /// Whether these attributes still fit, for one entry with `of_entry` bytes so far.
    pub(super) fn xattr(&mut self, bytes: u64, of_entry: u64) -> bool {
        let total = self.xattr_bytes.saturating_add(bytes);
        let fits = total <= self.limits.layer_xattr_bytes && of_entry <= self.limits.xattr_bytes;
        if fits {
            self.xattr_bytes = total;
        }
        fits
    }

    /// A path that is kept until the end.
    pub(super) fn deferred(&mut self, path: usize) -> Result<(), UnpackProblem> {
        // With what the lists themselves take for it.
        self.deferred_bytes = self.deferred_bytes.saturating_add(path as u64 + 64);
        below("bytes of whiteout paths", self.deferred_bytes, self.limits.deferred_bytes)
    }
}

fn below(what: &'static str, found: u64, most: u64) -> Result<(), UnpackProblem> {
    match found <= most {
        true => Ok(()),
        false => Err(UnpackProblem::Limit { what, most }),
    }
}

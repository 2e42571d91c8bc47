//! Reserves room on the disk behind the log's end.

use std::fs::File;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

/// Taken at once.
const STEP: u64 = 64 << 10;
/// Ahead of the end at all times: `run.stop` fits in.
const KEPT: u64 = 16 << 10;

#[derive(Debug)]
pub(super) struct Reserve {
    /// The disk has room for the file up to here.
    until: u64,
    support: Support,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Support {
    Yes,
    /// The file system knows no such thing: writes are tried as they are.
    No,
}

impl Reserve {
    pub(super) fn new() -> Self {
        Self { until: 0, support: Support::Yes }
    }

    /// Makes sure that a file which ends at `end` has the kept room behind it.
    pub(super) fn extend(&mut self, file: &File, end: u64) -> Result<(), Errno> {
        if self.support == Support::No || end + KEPT <= self.until {
            return Ok(());
        }
        let until = (end + KEPT).next_multiple_of(STEP);
        let (from, length) = (self.until, until - self.until);
        let taken = retry(|| fallocate(file, FallocateFlags::KEEP_SIZE, from, length));
        match taken {
            Ok(()) => {
                self.until = until;
                Ok(())
            }
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.support = Support::No;
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }

    /// Bytes that can be written from `end` on, whatever else fills the disk.
    pub(super) fn room(&self, end: u64) -> u64 {
        match self.support {
            Support::Yes => self.until.saturating_sub(end),
            Support::No => u64::MAX,
        }
    }
}

fn retry(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

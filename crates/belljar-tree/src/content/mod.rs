//! Copies the content of one file to another: shared blocks where the file system can, holes stay holes.

mod compare;

pub use compare::{CompareError, ContentComparison, compare_content};

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::ftruncate;
use rustix::io::{Errno, pread, pwrite};

const BUFFER: usize = 256 << 10;

/// How much of a file is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentBounds {
    /// Its size as it was looked at. What it grows by meanwhile is left, and where it shrinks the copy
    /// ends with a hole.
    pub size: u64,
    /// The most bytes that may be written. Holes take none.
    pub budget: u64,
}

/// What a copy came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopiedContent {
    /// Written; or, of shared blocks, what they take on disk.
    pub bytes: u64,
    pub method: CopyMethod,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMethod {
    /// Both files share their blocks.
    Reflink,
    /// Bytes were written.
    Copy,
}

/// A content could not be copied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyContentError {
    #[error("the content takes more than {budget} bytes, the most that may be written")]
    OverBudget { budget: u64 },
    #[error("cannot read the content")]
    Read(#[source] Errno),
    #[error("cannot write the content")]
    Write(#[source] Errno),
}

impl CopyContentError {
    pub fn errno(&self) -> Errno {
        match self {
            Self::OverBudget { .. } => Errno::FBIG,
            Self::Read(error) | Self::Write(error) => *error,
        }
    }
}

crate::error::common_methods!(CopyContentError);

/// Copies into an empty file that is open for writing. The offset of `from` may move.
pub fn copy_content(
    from: impl AsFd,
    to: impl AsFd,
    bounds: ContentBounds,
) -> Result<CopiedContent, CopyContentError> {
    let (from, to) = (from.as_fd(), to.as_fd());
    let ContentBounds { size, budget } = bounds;
    #[cfg(target_os = "linux")]
    if size > 0
        && let Some(bytes) = reflink(from, to, bounds)?
    {
        return Ok(CopiedContent { bytes, method: CopyMethod::Reflink });
    }
    ftruncate(to, size).map_err(CopyContentError::Write)?;
    let mut budget = Budget { most: budget, left: budget };
    let mut at = 0;
    while let Some((start, end)) = next_data(from, at, size)? {
        copy_range(from, to, (start, end), &mut budget)?;
        at = end;
    }
    Ok(CopiedContent { bytes: budget.most - budget.left, method: CopyMethod::Copy })
}

struct Budget {
    most: u64,
    left: u64,
}

impl Budget {
    /// How much of a piece may be written.
    fn allow(&self, bytes: u64) -> Result<usize, CopyContentError> {
        match bytes.min(self.left) {
            0 if bytes > 0 => Err(CopyContentError::OverBudget { budget: self.most }),
            allowed => Ok(usize::try_from(allowed).unwrap_or(usize::MAX)),
        }
    }

    fn spend(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes as u64);
    }
}

/// Nothing where the file system cannot, or where this is more than may be written.
#[cfg(target_os = "linux")]
fn reflink(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    ContentBounds { size, budget }: ContentBounds,
) -> Result<Option<u64>, CopyContentError> {
    use crate::metadata::Metadata;
    let found = Metadata::from_stat(rustix::fs::fstat(from).map_err(CopyContentError::Read)?);
    let on_disk = found.disk_bytes().min(found.size());
    // It may have grown: then only what it was is copied, as far as the budget goes.
    if on_disk > budget || rustix::fs::ioctl_ficlone(to, from).is_err() {
        return Ok(None);
    }
    ftruncate(to, size).map_err(CopyContentError::Write)?;
    Ok(Some(on_disk))
}

/// The next part of a file that is not a hole, before `size`.
#[cfg(target_os = "linux")]
fn next_data(
    file: BorrowedFd<'_>,
    at: u64,
    size: u64,
) -> Result<Option<(u64, u64)>, CopyContentError> {
    use rustix::fs::{SeekFrom, seek};
    if at >= size {
        return Ok(None);
    }
    let start = match seek(file, SeekFrom::Data(at)) {
        Err(Errno::NXIO) => return Ok(None),        // a hole to the end
        Err(Errno::INVAL | Errno::OPNOTSUPP) => at, // holes are not reported
        start => start.map_err(CopyContentError::Read)?,
    };
    // Past `start` even if a hole was punched there in between.
    let end = seek(file, SeekFrom::Hole(start)).unwrap_or(size).max(start.saturating_add(1));
    Ok((start < size).then_some((start, end.min(size))))
}

#[cfg(not(target_os = "linux"))]
fn next_data(
    _: BorrowedFd<'_>,
    at: u64,
    size: u64,
) -> Result<Option<(u64, u64)>, CopyContentError> {
    Ok((at < size).then_some((at, size)))
}

#[cfg(target_os = "linux")]
fn copy_range(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    (start, end): (u64, u64),
    budget: &mut Budget,
) -> Result<(), CopyContentError> {
    let (mut read_at, mut write_at) = (start, start);
    while read_at < end {
        let length = budget.allow(end - read_at)?.min(1 << 30);
        let copied =
            rustix::fs::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), length);
        match copied {
            Ok(copied) if copied > 0 => budget.spend(copied),
            Err(Errno::INTR) => {}
            // Its end, or a file system that copies nothing this way.
            Ok(_)
            | Err(Errno::XDEV | Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM) => {
                return copy_by_hand(from, to, (read_at, end), budget);
            }
            Err(error) => return Err(CopyContentError::Write(error)),
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn copy_range(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    range: (u64, u64),
    budget: &mut Budget,
) -> Result<(), CopyContentError> {
    copy_by_hand(from, to, range, budget)
}

/// Blocks of zeros are left as holes.
fn copy_by_hand(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    (start, end): (u64, u64),
    budget: &mut Budget,
) -> Result<(), CopyContentError> {
    let mut buffer = vec![0; BUFFER];
    let mut at = start;
    while at < end {
        let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        let read = match pread(from, &mut buffer[..most], at) {
            Ok(0) => return Ok(()), // cut short meanwhile
            Err(Errno::INTR) => continue,
            read => read.map_err(CopyContentError::Read)?,
        };
        if buffer[..read].iter().any(|byte| *byte != 0) {
            write_all(to, &buffer[..read], at, budget)?;
        }
        at += read as u64;
    }
    Ok(())
}

fn write_all(
    to: BorrowedFd<'_>,
    mut bytes: &[u8],
    mut at: u64,
    budget: &mut Budget,
) -> Result<(), CopyContentError> {
    while !bytes.is_empty() {
        let most = budget.allow(bytes.len() as u64)?;
        match pwrite(to, &bytes[..most], at) {
            Ok(0) => return Err(CopyContentError::Write(Errno::IO)),
            Err(Errno::INTR) => {}
            written => {
                let written = written.map_err(CopyContentError::Write)?;
                budget.spend(written);
                at += written as u64;
                bytes = &bytes[written..];
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;

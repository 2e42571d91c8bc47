//! Compares the content of two files without reading holes, so that a large sparse file costs nothing.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::{Errno, pread};

use crate::metadata::Metadata;

const BUFFER: usize = 256 << 10;
/// Where a file system does not report holes, a larger file would have to be read for days.
const MAX_COMPARED: u64 = 1 << 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentComparison {
    Same,
    /// Or too large to be read, and so taken for different.
    Different,
}

/// Two contents could not be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    #[error("cannot read the content to compare it")]
    Read(#[from] Errno),
}

/// Whether two files have the same content at the moment. Their offsets may move.
pub fn compare_content(
    one: impl AsFd,
    other: impl AsFd,
) -> Result<ContentComparison, CompareError> {
    let (one, other) = (one.as_fd(), other.as_fd());
    let (first, second) = (Metadata::of(one)?, Metadata::of(other)?);
    if first.identity() == second.identity() {
        return Ok(ContentComparison::Same);
    }
    let size = first.size();
    if size != second.size() {
        return Ok(ContentComparison::Different);
    }
    if size > MAX_COMPARED && (next_data(one, 0, size)? < size || next_data(other, 0, size)? < size)
    {
        return Ok(ContentComparison::Different);
    }
    let (mut left, mut right) = (vec![0; BUFFER], vec![0; BUFFER]);
    let mut offset = 0;
    loop {
        offset = next_data(one, offset, size)?.min(next_data(other, offset, size)?);
        if offset >= size {
            return Ok(ContentComparison::Same);
        }
        let most = usize::try_from(size - offset).unwrap_or(BUFFER).min(BUFFER);
        let count = read_at(one, &mut left[..most], offset)?;
        if count != read_at(other, &mut right[..most], offset)? || left[..count] != right[..count] {
            return Ok(ContentComparison::Different);
        }
        if count == 0 {
            return Ok(ContentComparison::Same); // both were cut short meanwhile
        }
        offset += count as u64;
    }
}

/// Where the next bytes are that are not a hole; `size` where there are none.
#[cfg(target_os = "linux")]
fn next_data(file: BorrowedFd<'_>, offset: u64, size: u64) -> Result<u64, Errno> {
    use rustix::fs::{SeekFrom, seek};
    match seek(file, SeekFrom::Data(offset)) {
        Err(Errno::NXIO) => Ok(size),
        // Not known: everything may be data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(offset),
        found => found,
    }
}

#[cfg(not(target_os = "linux"))]
fn next_data(_: BorrowedFd<'_>, offset: u64, _: u64) -> Result<u64, Errno> {
    Ok(offset)
}

/// As much as fits, but for the end of the file.
fn read_at(file: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut filled = 0;
    while filled < buffer.len() {
        match pread(file, &mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

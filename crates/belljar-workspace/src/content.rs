//! Content of two files, compared without reading what is not there: a hole costs nothing, whatever its size.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, fstat, seek};
use rustix::io::Errno;

const AT_ONCE: usize = 256 << 10;
/// Where a file system tells nothing of holes, a larger file would have to be read for days.
const LARGEST: u64 = 1 << 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Same,
    Different,
}

pub(super) fn compare(one: &File, other: &File) -> io::Result<Content> {
    let (first, second) = (fstat(one)?, fstat(other)?);
    if (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino) {
        return Ok(Content::Same);
    }
    let size = u64::try_from(first.st_size).unwrap_or(0);
    if first.st_size != second.st_size {
        return Ok(Content::Different);
    }
    if size > LARGEST && (next_data(one, 0, size)? < size || next_data(other, 0, size)? < size) {
        return Ok(Content::Different);
    }
    let (mut left, mut right) = (vec![0; AT_ONCE], vec![0; AT_ONCE]);
    let mut offset = 0;
    loop {
        offset = next_data(one, offset, size)?.min(next_data(other, offset, size)?);
        if offset >= size {
            return Ok(Content::Same);
        }
        let most = usize::try_from(size - offset).unwrap_or(AT_ONCE).min(AT_ONCE);
        let count = read_at(one, &mut left[..most], offset)?;
        if count != read_at(other, &mut right[..most], offset)? || left[..count] != right[..count] {
            return Ok(Content::Different);
        }
        if count == 0 {
            return Ok(Content::Same); // both were cut off meanwhile
        }
        offset += count as u64;
    }
}

/// Where the next bytes are that are not a hole; `size` where there are none.
fn next_data(file: &File, offset: u64, size: u64) -> Result<u64, Errno> {
    match seek(file.as_fd(), SeekFrom::Data(offset)) {
        Err(Errno::NXIO) => Ok(size),
        // Not known: everything may be data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(offset),
        found => found,
    }
}

/// As much as fits, but for the end of the file.
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

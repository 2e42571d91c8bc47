//! Opening the files of a record: never through a link, never anything but a regular file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// Only its owner reads and writes it.
pub(super) const PRIVATE: u32 = 0o600;

/// To read. Does not wait for the other end of a FIFO either.
pub(super) fn open(path: &Path) -> io::Result<File> {
    open_as(path, OFlags::RDONLY)
}

/// To read and write a file that is there.
pub(super) fn open_writable(path: &Path) -> io::Result<File> {
    open_as(path, OFlags::RDWR)
}

fn open_as(path: &Path, access: OFlags) -> io::Result<File> {
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::LOOP) => return Err(no_regular_file()),
        Err(errno) => return Err(errno.into()),
    };
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(no_regular_file());
    }
    Ok(file.into())
}

fn no_regular_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")
}

/// A file that was not there before.
pub(super) fn create(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::from_raw_mode(PRIVATE))?.into())
}

/// As much as there is, up to the buffer's length.
pub(super) fn read_full_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(length) => read += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

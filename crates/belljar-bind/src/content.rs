//! Copies the content and times of a file from one descriptor to another.

use std::os::fd::OwnedFd;

use rustix::fs::{
    SeekFrom, Stat, Timespec, Timestamps, copy_file_range, ftruncate, ioctl_ficlone, seek,
};
use rustix::io::{Errno, pread, pwrite};

pub(crate) fn times(stat: &Stat) -> Timestamps {
    let time = |secs, nanos| Timespec { tv_sec: secs, tv_nsec: nanos as _ };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// Shares the blocks where the file system can; holes stay holes. What a file grows by meanwhile is left.
pub(crate) fn content(from: &OwnedFd, to: &OwnedFd, size: u64) -> Result<(), Errno> {
    if size == 0 || ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    ftruncate(to, size)?;
    let mut at = 0;
    while at < size {
        let start = match seek(from, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break, // a hole to the end
            Err(Errno::INVAL) => at,   // holes are not reported
            start => start?,
        };
        let end = seek(from, SeekFrom::Hole(start)).unwrap_or(size).min(size);
        if end <= start {
            break;
        }
        range(from, to, start, end)?;
        at = end;
    }
    Ok(())
}

fn range(from: &OwnedFd, to: &OwnedFd, start: u64, end: u64) -> Result<(), Errno> {
    let (mut read_at, mut write_at) = (start, start);
    while read_at < end {
        let length = usize::try_from(end - read_at).unwrap_or(usize::MAX).min(1 << 30);
        match copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), length) {
            Ok(0) => return Ok(()), // cut short meanwhile
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM) => {
                return by_hand(from, to, read_at, end);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn by_hand(from: &OwnedFd, to: &OwnedFd, start: u64, end: u64) -> Result<(), Errno> {
    let mut buffer = vec![0; 128 * 1024];
    let mut at = start;
    while at < end {
        let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        let read = match pread(from, &mut buffer[..wanted], at) {
            Ok(0) => return Ok(()),
            Err(Errno::INTR) => continue,
            read => read?,
        };
        let mut written = 0;
        while written < read {
            written += pwrite(to, &buffer[written..read], at + written as u64)?;
        }
        at += read as u64;
    }
    Ok(())
}

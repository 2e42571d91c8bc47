//! Content of a file into a new one.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::{SeekFrom, ftruncate, seek};
use rustix::io::Errno;

/// By sharing blocks where the file system can, else block by block; holes stay holes.
pub(super) fn copy(from: &File, to: &File, size: u64) -> io::Result<()> {
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        ftruncate(to, size)?; // it may have grown since
        return Ok(());
    }
    ftruncate(to, size)?;
    let mut offset = 0;
    while offset < size {
        let data = match seek(from.as_fd(), SeekFrom::Data(offset)) {
            Err(Errno::NXIO) => return Ok(()),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => offset,
            found => found?,
        };
        let end = match seek(from.as_fd(), SeekFrom::Hole(data)) {
            Err(_) => size,
            Ok(end) => end.min(size),
        };
        copy_range(from, to, data, end)?;
        offset = end.max(data + 1);
    }
    Ok(())
}

fn copy_range(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let mut buffer = vec![0; 256 << 10];
    let mut offset = start;
    while offset < end {
        let most = usize::try_from(end - offset).unwrap_or(buffer.len()).min(buffer.len());
        let count = from.read_at(&mut buffer[..most], offset)?;
        if count == 0 {
            return Ok(()); // cut off meanwhile, which is found out afterwards
        }
        to.write_all_at(&buffer[..count], offset)?;
        offset += count as u64;
    }
    Ok(())
}

//! Writes complete buffers to the caller's descriptors.

use std::io;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Waits for the reader, also if the caller's descriptor is non-blocking.
pub(super) fn write_all(to: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(&to, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(&to, PollFlags::OUT)], None); // the next write reports an error
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Whether the reader has gone, which ends the output and is no error.
pub(super) fn is_closed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

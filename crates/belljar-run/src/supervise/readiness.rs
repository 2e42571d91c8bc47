//! Asking the kernel whether a descriptor would answer now.

use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::SuperviseError;

pub(super) fn is_writable(fd: impl AsFd) -> bool {
    ready(fd, PollFlags::OUT)
}

pub(super) fn is_readable(fd: impl AsFd) -> bool {
    ready(fd, PollFlags::IN)
}

/// An error or a hang-up counts: the call itself then tells.
fn ready(fd: impl AsFd, what: PollFlags) -> bool {
    let mut fds = [PollFd::new(&fd, what)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|count| count > 0)
}

/// Until one of them is ready or the moment has come.
pub(super) fn wait_until(
    fds: &mut [PollFd<'_>],
    moment: Option<Instant>,
) -> Result<(), SuperviseError> {
    let timeout = moment.map(|at| {
        let left = at.saturating_duration_since(Instant::now());
        rustix::time::Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        }
    });
    match poll(fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(SuperviseError::Step("wait", error)),
    }
}

//! Takes a checkpoint in a thread, so that the loop can go on meanwhile.

use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};

use belljar_spec::Moment;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::supervise::readiness::is_readable;
use belljar_workspace::checkpoint::{self, CheckpointError, Subject, Taken};

#[derive(Debug)]
pub(super) struct PendingCheckpoint {
    /// Closed at the other end when it is done.
    done: OwnedFd,
    thread: JoinHandle<Result<Taken, CheckpointError>>,
}

impl PendingCheckpoint {
    pub(super) fn begin(
        subject: Subject,
        iteration: u32,
        since: Moment,
        keep: u32,
    ) -> Result<Self, Errno> {
        let (done, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        let thread = thread::Builder::new().name("checkpoint".to_owned()).spawn(move || {
            let _theirs = theirs;
            let taken = checkpoint::take(&subject, iteration, since);
            if taken.is_ok() {
                checkpoint::prune(&subject.directory, keep);
            }
            taken
        });
        let thread =
            thread.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        Ok(Self { done, thread })
    }

    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.done, PollFlags::IN)
    }

    pub(super) fn is_done(&self) -> bool {
        is_readable(&self.done)
    }

    pub(super) fn finish(self) -> Option<Result<Taken, CheckpointError>> {
        self.thread.join().ok()
    }
}

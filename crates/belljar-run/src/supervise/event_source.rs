//! The common shape of everything that the supervisor's loop waits for.

use std::time::Instant;

use rustix::event::PollFd;

use super::SuperviseError;
use super::readiness::wait_until;
use super::sandbox::SandboxId;

/// One source of events: descriptors to wait for, a moment to wake up at, and a turn to take when the wait is over.
///
/// Every source has a turn after every wait, whatever ended it: a source asks the kernel without blocking, and has
/// nothing to do most of the time.
pub(super) trait EventSource {
    /// The other parts of the supervisor that a turn reads or changes.
    type Parts<'p>;
    /// What the supervisor has to act on after the turn.
    type Event;

    /// Adds the descriptors that end the wait.
    fn watch<'a>(&'a self, poll: &mut PollSet<'a>);

    /// When the source needs a turn even if no descriptor is ready.
    fn deadline(&self) -> Option<Instant>;

    fn take_turn(
        &mut self,
        now: Instant,
        parts: Self::Parts<'_>,
    ) -> Result<Vec<Self::Event>, SuperviseError>;
}

/// The descriptors and the nearest deadline of all sources.
#[derive(Debug, Default)]
pub(super) struct PollSet<'a> {
    fds: Vec<PollFd<'a>>,
    deadline: Option<Instant>,
    /// The index of a descriptor, and the stream of a sandbox that it stands for.
    streams: Vec<(usize, ReadyStream)>,
}

/// A stream of a sandbox's channel whose socket on the host is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadyStream {
    pub(super) sandbox: SandboxId,
    pub(super) stream: u32,
}

impl<'a> PollSet<'a> {
    pub(super) fn add(&mut self, source: &'a impl EventSource) {
        source.watch(self);
        self.deadline = self.deadline.into_iter().chain(source.deadline()).min();
    }

    pub(super) fn fds(&mut self) -> &mut Vec<PollFd<'a>> {
        &mut self.fds
    }

    /// The descriptors that were added last stand for these streams, in this order.
    pub(super) fn name_last(&mut self, sandbox: SandboxId, streams: Vec<u32>) {
        let first = self.fds.len() - streams.len();
        let named = streams.into_iter().map(|stream| ReadyStream { sandbox, stream });
        self.streams.extend((first..).zip(named));
    }

    /// Waits until a descriptor is ready or the deadline has passed.
    pub(super) fn wait(mut self) -> Result<Vec<ReadyStream>, SuperviseError> {
        wait_until(&mut self.fds, self.deadline)?;
        let is_ready = |at: usize| self.fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let ready = self.streams.into_iter().filter(|(at, _)| is_ready(*at));
        Ok(ready.map(|(_, stream)| stream).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use rustix::event::PollFlags;

    use super::*;

    struct TestSource {
        socket: UnixStream,
        deadline: Option<Instant>,
    }

    impl EventSource for TestSource {
        type Parts<'p> = ();
        type Event = Infallible;

        fn watch<'a>(&'a self, poll: &mut PollSet<'a>) {
            poll.fds().push(PollFd::new(&self.socket, PollFlags::IN));
            poll.name_last(SandboxId::MAIN, vec![7]);
        }

        fn deadline(&self) -> Option<Instant> {
            self.deadline
        }

        fn take_turn(&mut self, _: Instant, (): ()) -> Result<Vec<Infallible>, SuperviseError> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn waits_for_the_nearest_deadline_and_names_the_streams_that_are_ready() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (other, _theirs) = UnixStream::pair().unwrap();
        let now = Instant::now();
        let late = TestSource { socket: other, deadline: Some(now + Duration::from_secs(600)) };
        let soon = TestSource { socket: ours, deadline: Some(now + Duration::from_millis(10)) };
        let ready = || {
            let mut poll = PollSet::default();
            poll.add(&late);
            poll.add(&soon);
            poll.wait().unwrap()
        };
        assert_eq!(ready(), [], "nothing is ready, and the nearest deadline ends the wait");
        theirs.write_all(b"x").unwrap();
        assert_eq!(ready(), [ReadyStream { sandbox: SandboxId::MAIN, stream: 7 }]);
    }
}

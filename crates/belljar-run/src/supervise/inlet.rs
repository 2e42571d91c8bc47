//! The standard input of a command: from the caller or a client to a pipe or a stream of the channel.

use std::os::fd::OwnedFd;

use belljar_spec::wire::ByteQueue;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::channel::Channel;
use super::client::{ClientId, Clients};
use super::readiness::is_readable;

const CHUNK: usize = 64 * 1024;

/// Where the input comes from.
#[derive(Debug)]
pub(super) enum InputSource {
    Fd(OwnedFd),
    /// Its bytes are handed to [`Inlet::accept`].
    Client {
        client: ClientId,
        stream: u32,
    },
    /// No client now; one may attach.
    Detached,
    Ended,
}

/// Where it goes.
#[derive(Debug)]
pub(super) enum InputSink {
    Pipe(OwnedFd),
    Channel(u32),
    /// The command reads no more.
    Closed,
}

#[derive(Debug)]
pub(super) struct Inlet {
    from: InputSource,
    to: InputSink,
    waiting: ByteQueue,
    /// How much of it came from an earlier source.
    from_earlier: usize,
}

impl Inlet {
    pub(super) fn new(from: InputSource, to: InputSink) -> Self {
        if let InputSink::Pipe(pipe) = &to {
            let _ = rustix::io::ioctl_fionbio(pipe, true);
        }
        Self { from, to, waiting: ByteQueue::default(), from_earlier: 0 }
    }

    pub(super) fn is_fed_by(&self, id: ClientId, stream: u32) -> bool {
        matches!(self.from, InputSource::Client { client, stream: own } if client == id && own == stream)
    }

    pub(super) fn is_given_by(&self, id: ClientId) -> bool {
        matches!(self.from, InputSource::Client { client, .. } if client == id)
    }

    pub(super) fn goes_to(&self, stream: u32) -> bool {
        matches!(self.to, InputSink::Channel(own) if own == stream)
    }

    pub(super) fn set_source(&mut self, source: InputSource) {
        self.from_earlier = self.waiting.len();
        self.from = source;
    }

    pub(super) fn watch<'a>(&'a self, channel: Option<&Channel>, fds: &mut Vec<PollFd<'a>>) {
        match (&self.from, &self.to) {
            (_, InputSink::Pipe(pipe)) if !self.waiting.is_empty() => {
                fds.push(PollFd::new(pipe, PollFlags::OUT));
            }
            (InputSource::Fd(from), InputSink::Pipe(_)) => {
                fds.push(PollFd::new(from, PollFlags::IN))
            }
            (InputSource::Fd(from), InputSink::Channel(stream))
                if channel.is_some_and(|channel| channel.room(*stream) > 0) =>
            {
                fds.push(PollFd::new(from, PollFlags::IN));
            }
            _ => {}
        }
    }

    /// Bytes of the client, at most a window of them.
    pub(super) fn accept(&mut self, bytes: &[u8]) {
        self.waiting.push(bytes);
    }

    pub(super) fn end(&mut self) {
        self.from = InputSource::Ended;
    }

    /// The command will read no more of it.
    pub(super) fn close(&mut self) {
        self.to = InputSink::Closed;
    }

    pub(super) fn move_bytes(&mut self, mut channel: Option<&mut Channel>, clients: &mut Clients) {
        self.deliver(channel.as_deref_mut(), clients);
        let room = match &self.to {
            InputSink::Pipe(_) if self.waiting.is_empty() => CHUNK,
            InputSink::Channel(stream) if self.waiting.is_empty() => {
                channel.as_deref().map_or(0, |channel| channel.room(*stream)).min(CHUNK)
            }
            _ => 0,
        };
        let InputSource::Fd(from) = &self.from else { return };
        if room == 0 || !is_readable(from) {
            return;
        }
        let mut buffer = [0; CHUNK];
        match rustix::io::read(from, &mut buffer[..room]) {
            Ok(0) => self.from = InputSource::Ended,
            Ok(length) => self.waiting.push(&buffer[..length]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => self.from = InputSource::Ended,
        }
        self.deliver(channel, clients);
    }

    fn deliver(&mut self, mut channel: Option<&mut Channel>, clients: &mut Clients) {
        while !self.waiting.is_empty() {
            let taken = match &self.to {
                InputSink::Channel(stream) => {
                    let stream = *stream;
                    let waiting = self.waiting.as_slice();
                    channel.as_deref_mut().map_or(0, |channel| channel.type_in(stream, waiting))
                }
                InputSink::Pipe(pipe) => match rustix::io::write(pipe, self.waiting.as_slice()) {
                    Ok(length) => length,
                    Err(Errno::AGAIN) => 0,
                    Err(Errno::INTR) => continue,
                    Err(_) => {
                        self.to = InputSink::Closed;
                        continue;
                    }
                },
                InputSink::Closed => self.waiting.len(), // what is left goes nowhere
            };
            if taken == 0 {
                return;
            }
            self.waiting.take(taken);
            let from_earlier = self.from_earlier.min(taken);
            self.from_earlier -= from_earlier;
            if let InputSource::Client { client, stream } = &self.from {
                clients.consumed(*client, *stream, taken - from_earlier);
            }
        }
        if matches!(self.from, InputSource::Ended) {
            // The command reads an end.
            if let (InputSink::Channel(stream), Some(channel)) = (&self.to, channel) {
                channel.end_typing(*stream);
            }
            self.to = InputSink::Closed;
        }
    }
}

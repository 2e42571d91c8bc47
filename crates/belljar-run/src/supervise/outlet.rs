//! One output stream of a command: from its pipe or the channel to the record, and to a follower.
//!
//! Nothing is read while something waits to be passed on, so a slow reader slows the command down and the supervisor
//! does not grow.

use std::os::fd::OwnedFd;

use belljar_spec::OutputStream;
use belljar_spec::wire::ByteQueue;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::capture::HeadAndTail;
use super::channel::Channel;
use super::client::{ClientId, Clients};
use super::readiness::is_writable;
use belljar_record::Captured;

pub(super) const CHUNK: usize = 128 * 1024;
/// What a pipe takes at once if poll reports it writable.
const PIPE_BUF: usize = 4096;
/// What `fs.pipe-max-size` allows to an ordinary user.
const MAX_PIPE: usize = 1024 * 1024;

/// Where a command's bytes come from.
#[derive(Debug)]
pub(super) enum OutputSource {
    Pipe(OwnedFd),
    /// A stream of the channel; its bytes are handed to [`Outlet::accept`].
    Channel(u32),
    Ended,
}

/// Whether a write to a descriptor of the caller can block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteMode {
    /// A file, or a pipe opened so.
    NeverBlocks,
    /// Polled before each write, which is then short enough for a pipe that has room.
    MayBlock,
}

/// Where they go.
#[derive(Debug)]
pub(super) enum OutputSink {
    Fd {
        fd: OwnedFd,
        mode: WriteMode,
    },
    Kept(HeadAndTail),
    Client {
        client: ClientId,
        stream: u32,
    },
    /// Only to the record.
    Nowhere,
}

#[derive(Debug)]
pub(super) struct Outlet {
    pub(super) stream: OutputStream,
    from: OutputSource,
    to: OutputSink,
    waiting: ByteQueue,
    /// How much is read at most, once everything inside is gone.
    left: Option<usize>,
}

impl Outlet {
    pub(super) fn new(stream: OutputStream, from: OutputSource, to: OutputSink) -> Self {
        if let OutputSource::Pipe(pipe) = &from {
            let _ = rustix::io::ioctl_fionbio(pipe, true);
            // Fewer turns for the same bytes; it fails for a user who has many pipes.
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, CHUNK);
        }
        Self { stream, from, to, waiting: ByteQueue::default(), left: None }
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self.from, OutputSource::Ended) && self.waiting.is_empty()
    }

    /// Nothing more will come, and what came is recorded.
    pub(super) fn is_ended(&self) -> bool {
        matches!(self.from, OutputSource::Ended)
    }

    pub(super) fn is_fed_by(&self, stream: u32) -> bool {
        matches!(self.from, OutputSource::Channel(own) if own == stream)
    }

    pub(super) fn follower(&self) -> Option<ClientId> {
        match self.to {
            OutputSink::Client { client, .. } => Some(client),
            _ => None,
        }
    }

    pub(super) fn is_sent_to(&self, id: ClientId, number: u32) -> bool {
        matches!(self.to, OutputSink::Client { client, stream } if client == id && stream == number)
    }

    pub(super) fn goes_to_fd(&self) -> bool {
        matches!(self.to, OutputSink::Fd { .. } | OutputSink::Kept(_))
    }

    /// Sends the bytes elsewhere from now on.
    pub(super) fn redirect(&mut self, to: OutputSink, channel: Option<&mut Channel>) {
        if matches!(to, OutputSink::Nowhere) {
            let dropped = std::mem::take(&mut self.waiting).len();
            self.credit(dropped, channel);
        }
        self.to = to;
    }

    pub(super) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        match (&self.from, &self.to) {
            (_, OutputSink::Fd { fd, .. }) if !self.waiting.is_empty() => {
                fds.push(PollFd::new(fd, PollFlags::OUT));
            }
            (OutputSource::Pipe(from), _) if self.waiting.is_empty() => {
                fds.push(PollFd::new(from, PollFlags::IN));
            }
            _ => {}
        }
    }

    /// The next bytes of the pipe, as many as it has and the buffer takes, if nothing waits.
    pub(super) fn read<'a>(&mut self, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        if !self.waiting.is_empty() && self.left.is_none_or(|left| left == 0) {
            return None;
        }
        let most = buffer.len().min(self.left.unwrap_or(usize::MAX));
        let mut filled = 0;
        while filled < most {
            let OutputSource::Pipe(from) = &self.from else { break };
            match rustix::io::read(from, &mut buffer[filled..most]) {
                Ok(0) => self.from = OutputSource::Ended,
                Ok(length) => filled += length,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.from = OutputSource::Ended,
            }
        }
        self.left = self.left.map(|left| left - filled);
        (filled > 0).then_some(&buffer[..filled])
    }

    /// Bytes that are in the record now.
    pub(super) fn accept(&mut self, bytes: &[u8], channel: Option<&mut Channel>) {
        match &mut self.to {
            OutputSink::Fd { fd, mode: WriteMode::NeverBlocks } if self.waiting.is_empty() => {
                let passed = rustix::io::write(&*fd, bytes).unwrap_or(0); // the next write finds the error
                self.waiting.push(&bytes[passed..]);
                self.credit(passed, channel);
            }
            OutputSink::Fd { .. } | OutputSink::Client { .. } => {
                self.waiting.push(bytes);
            }
            OutputSink::Kept(kept) => {
                kept.keep(bytes);
                self.credit(bytes.len(), channel);
            }
            OutputSink::Nowhere => self.credit(bytes.len(), channel),
        }
    }

    /// Nothing more will come.
    pub(super) fn end(&mut self) {
        self.from = OutputSource::Ended;
    }

    /// Closes the stream, as a reader does that has enough.
    pub(super) fn stop(&mut self, channel: Option<&mut Channel>) {
        match (&self.from, channel) {
            (OutputSource::Channel(stream), Some(channel)) => channel.stop_reading(*stream),
            _ => self.from = OutputSource::Ended,
        }
        self.to = OutputSink::Nowhere;
        self.waiting.clear();
    }

    pub(super) fn channel_is_gone(&mut self) {
        if matches!(self.from, OutputSource::Channel(_)) {
            self.from = OutputSource::Ended;
        }
    }

    /// Everything inside is gone, but another process may hold the pipe: what is in it now is the rest. It is recorded
    /// even if no one reads it, and is at most what a pipe can hold.
    pub(super) fn read_the_rest(&mut self) {
        self.left.get_or_insert(MAX_PIPE);
    }

    pub(super) fn pass_on(&mut self, clients: &mut Clients, channel: Option<&mut Channel>) {
        let mut passed = 0;
        let mut closed = false;
        while passed < self.waiting.len() && !closed {
            let rest = &self.waiting.as_slice()[passed..];
            match &self.to {
                OutputSink::Fd { fd, mode } => {
                    let most = match mode {
                        WriteMode::NeverBlocks => rest.len(),
                        WriteMode::MayBlock if !is_writable(fd) => break,
                        WriteMode::MayBlock => rest.len().min(PIPE_BUF),
                    };
                    match rustix::io::write(fd, &rest[..most]) {
                        Ok(length) => passed += length,
                        Err(Errno::INTR) => {}
                        Err(Errno::AGAIN) => break,
                        Err(_) => closed = true,
                    }
                }
                OutputSink::Client { client, stream } => {
                    match clients.send_data(*client, *stream, rest) {
                        Some(0) => break,
                        Some(length) => passed += length,
                        None => closed = true,
                    }
                }
                OutputSink::Kept(_) | OutputSink::Nowhere => break,
            }
        }
        if closed {
            passed = self.waiting.len();
            self.close();
        }
        self.waiting.take(passed);
        self.credit(passed, channel);
    }

    /// The reader closed its end, as `| head` does, and so the command's is closed. A follower that disconnected only
    /// stops following.
    fn close(&mut self) {
        if matches!(self.to, OutputSink::Fd { .. }) && matches!(self.from, OutputSource::Pipe(_)) {
            self.from = OutputSource::Ended;
        }
        self.to = OutputSink::Nowhere;
    }

    fn credit(&self, count: usize, channel: Option<&mut Channel>) {
        if let (OutputSource::Channel(stream), Some(channel)) = (&self.from, channel) {
            channel.consumed(*stream, count);
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The reader is not waited for any longer.
    pub(super) fn give_up(&mut self) {
        self.waiting.clear();
    }

    pub(super) fn captured(&mut self) -> Captured {
        match std::mem::replace(&mut self.to, OutputSink::Nowhere) {
            OutputSink::Kept(kept) => kept.captured(),
            other => {
                self.to = other;
                Captured::default()
            }
        }
    }
}

impl OutputSink {
    /// The caller's own descriptor. Its flags are shared with other processes, so they are left alone: a
    /// pipe is opened a second time instead, to be written without waiting.
    pub(super) fn fd(fd: OwnedFd) -> Self {
        let kind = rustix::fs::fstat(&fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
        match kind {
            Ok(FileType::RegularFile) => Self::Fd { fd, mode: WriteMode::NeverBlocks },
            Ok(FileType::Fifo) => match open_again(&fd) {
                Ok(own) => Self::Fd { fd: own, mode: WriteMode::NeverBlocks },
                Err(_) => Self::Fd { fd, mode: WriteMode::MayBlock },
            },
            // The null device and the like; a terminal can be stopped.
            Ok(FileType::CharacterDevice) if !rustix::termios::isatty(&fd) => {
                Self::Fd { fd, mode: WriteMode::NeverBlocks }
            }
            _ => Self::Fd { fd, mode: WriteMode::MayBlock },
        }
    }
}

fn open_again(fd: &OwnedFd) -> Result<OwnedFd, Errno> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

//! Moves bytes between the commands' descriptors and the channel's streams, within the windows.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_spec::wire::{Arrival, ByteQueue, Mux};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::connections::Watched;
use super::terminal;

/// Read from a descriptor at once; more where it carries files.
const CHUNK: usize = 16 * 1024;
const WIDE_CHUNK: usize = 64 * 1024;
/// How much the pipe of a copy holds.
const WIDE_PIPE: usize = 256 * 1024;

/// What the loop has to handle besides the pumps.
pub(super) struct Ready {
    pub(super) channel: bool,
    pub(super) children: bool,
    /// Streams with a readable descriptor, or one at its end.
    pub(super) streams: Vec<u32>,
    pub(super) connections: Vec<Watched>,
    /// A refused call waits for its answer, or the last process under a filter is gone.
    pub(super) listeners: bool,
}

/// A descriptor that a command reads or writes the other end of.
struct Pump {
    exec: u32,
    stream: u32,
    fd: OwnedFd,
    out: PumpDirection,
    /// From the channel, not yet taken by the command. Never more than a window.
    pending: ByteQueue,
    /// How much is read at once.
    chunk: usize,
    input: PumpDirection,
    is_terminal: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PumpDirection {
    Unused,
    Open,
    Ended,
    /// Read and dropped: a terminal that is not read would block its command for ever.
    Discarded,
}

#[derive(Default)]
pub(super) struct Pumps(Vec<Pump>);

impl Pumps {
    pub(super) fn add_outlet(&mut self, exec: u32, stream: u32, fd: OwnedFd) {
        self.add(exec, stream, fd, PumpDirection::Open, PumpDirection::Unused);
    }

    pub(super) fn add_inlet(&mut self, exec: u32, stream: u32, fd: OwnedFd) {
        self.add(exec, stream, fd, PumpDirection::Unused, PumpDirection::Open);
    }

    pub(super) fn add_terminal(&mut self, exec: u32, stream: u32, fd: OwnedFd) {
        self.add(exec, stream, fd, PumpDirection::Open, PumpDirection::Open);
        if let Some(pump) = self.0.last_mut() {
            pump.is_terminal = true;
        }
    }

    fn add(
        &mut self,
        exec: u32,
        stream: u32,
        fd: OwnedFd,
        out: PumpDirection,
        input: PumpDirection,
    ) {
        let _ = rustix::io::ioctl_fionbio(&fd, true);
        let is_terminal = false;
        let (pending, chunk) = (ByteQueue::default(), CHUNK);
        self.0.push(Pump { exec, stream, fd, out, input, pending, chunk, is_terminal });
    }

    /// Moves more of this stream at once: it carries files.
    pub(super) fn widen(&mut self, stream: u32, mux: &mut Mux) {
        mux.widen(stream);
        for pump in self.0.iter_mut().filter(|pump| pump.stream == stream) {
            pump.chunk = WIDE_CHUNK;
            // Fewer turns for the same bytes; it fails for a user who has many pipes.
            let _ = rustix::pipe::fcntl_setpipe_size(&pump.fd, WIDE_PIPE);
        }
    }

    /// Adds the descriptors to wait for, and returns the stream of each.
    pub(super) fn watch<'a>(&'a self, mux: &Mux, fds: &mut Vec<PollFd<'a>>) -> Vec<u32> {
        let mut streams = Vec::new();
        for pump in &self.0 {
            let mut events = PollFlags::empty();
            let wanted = match pump.out {
                PumpDirection::Open => mux.room(pump.stream) > 0,
                PumpDirection::Discarded => true,
                PumpDirection::Unused | PumpDirection::Ended => false,
            };
            if wanted {
                events |= PollFlags::IN;
            }
            if !pump.pending.is_empty() {
                events |= PollFlags::OUT;
            }
            if !events.is_empty() {
                fds.push(PollFd::new(&pump.fd, events));
                streams.push(pump.stream);
            }
        }
        streams
    }

    /// Something for a stream arrived.
    pub(super) fn take(&mut self, arrival: Arrival, mux: &mut Mux) {
        let stream = match &arrival {
            Arrival::Data { stream, .. } | Arrival::End { stream } | Arrival::Reset { stream } => {
                *stream
            }
            Arrival::Message(_) => return,
        };
        let Some(pump) = self.0.iter_mut().find(|pump| pump.stream == stream) else { return };
        match arrival {
            Arrival::Data { bytes, .. } if pump.input == PumpDirection::Open => {
                pump.accept(&bytes, mux);
            }
            Arrival::End { .. } => pump.input = PumpDirection::Ended,
            Arrival::Reset { .. } => pump.give_up_output(mux),
            Arrival::Data { .. } | Arrival::Message(_) => {}
        }
    }

    pub(super) fn move_bytes(&mut self, ready: &[u32], mux: &mut Mux) {
        for pump in &mut self.0 {
            pump.deliver(mux);
            if ready.contains(&pump.stream) {
                pump.collect(mux);
            }
        }
        // A pipe closes when its writer is done, so that the command reads an end.
        self.0.retain(|pump| {
            pump.is_terminal
                || pump.out == PumpDirection::Open
                || pump.input == PumpDirection::Open
                || !pump.pending.is_empty()
        });
    }

    /// Takes what a command that ended left in its streams. `true`: nothing is left to send.
    pub(super) fn drained(&mut self, exec: u32, mux: &mut Mux) -> bool {
        for pump in self.0.iter_mut().filter(|pump| pump.exec == exec) {
            while pump.out == PumpDirection::Open {
                if mux.room(pump.stream) == 0 {
                    return false;
                }
                // A process that outlived the command may hold the other end for ever.
                if pump.collect(mux) == 0 {
                    pump.finish(mux);
                }
            }
            if pump.input == PumpDirection::Open {
                mux.reset(pump.stream); // no process is left to read it
            }
        }
        self.forget(exec);
        true
    }

    pub(super) fn forget(&mut self, exec: u32) {
        self.0.retain(|pump| pump.exec != exec);
    }

    pub(super) fn resize(&mut self, exec: u32, rows: u16, columns: u16) {
        for pump in self.0.iter().filter(|pump| pump.exec == exec && pump.is_terminal) {
            let _ = terminal::resize(&pump.fd, rows, columns); // a terminal that is gone has no size
        }
    }
}

impl Pump {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Bytes from the channel; what the command takes at once is not kept.
    fn accept(&mut self, bytes: &[u8], mux: &mut Mux) {
        let mut taken = 0;
        if self.pending.is_empty() {
            taken = rustix::io::write(self.fd(), bytes).unwrap_or(0); // the next write finds the error
            mux.consumed(self.stream, taken);
        }
        self.pending.push(&bytes[taken..]);
    }

    fn deliver(&mut self, mux: &mut Mux) {
        while !self.pending.is_empty() {
            match rustix::io::write(self.fd(), self.pending.as_slice()) {
                Ok(length) => {
                    self.pending.take(length);
                    mux.consumed(self.stream, length);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    // The reader is gone.
                    self.pending.clear();
                    self.input = PumpDirection::Ended;
                    mux.reset(self.stream);
                }
            }
        }
        if self.input == PumpDirection::Ended && self.is_terminal {
            // A terminal's input ends with the end-of-file character.
            let _ = rustix::io::write(self.fd(), &[4]);
            self.input = PumpDirection::Unused;
        }
    }

    /// How many bytes came out.
    fn collect(&mut self, mux: &mut Mux) -> usize {
        if self.out == PumpDirection::Discarded {
            self.discard(&mut [0; CHUNK]);
        }
        let mut buffer = vec![0; mux.room(self.stream).min(self.chunk)];
        let mut total = 0;
        while self.out == PumpDirection::Open {
            let room = mux.room(self.stream).min(buffer.len());
            if room == 0 {
                break;
            }
            match rustix::io::read(self.fd(), &mut buffer[..room]) {
                // The last one to hold a terminal's other end closed it: EIO.
                Ok(0) | Err(Errno::IO) => self.finish(mux),
                Ok(length) => {
                    mux.send_data(self.stream, &buffer[..length]);
                    total += length;
                }
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        total
    }

    fn discard(&mut self, buffer: &mut [u8]) {
        match rustix::io::read(self.fd(), buffer) {
            Ok(0) | Err(Errno::IO) => self.out = PumpDirection::Ended,
            Ok(_) | Err(_) => {} // the rest comes in the next round
        }
    }

    /// The other end takes no more. The writer of a pipe notices it when the pipe closes.
    fn give_up_output(&mut self, mux: &mut Mux) {
        if self.out == PumpDirection::Open {
            self.finish(mux);
            if self.is_terminal {
                self.out = PumpDirection::Discarded;
            }
        }
    }

    fn finish(&mut self, mux: &mut Mux) {
        self.out = PumpDirection::Ended;
        mux.end(self.stream);
    }
}

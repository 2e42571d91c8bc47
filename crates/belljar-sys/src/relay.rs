//! Relays one connection between a socket and a stream of the channel, in both directions, within the windows. Both
//! ends of the channel use it.
//!
//! Each direction ends separately, as it does on the socket. Nothing is read that the stream has no room for,
//! and at most a window of bytes waits for the socket.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeBounds;
use std::os::fd::{AsFd, OwnedFd};

use belljar_spec::wire::{MAX_PAYLOAD, Mux};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, send, shutdown};

/// Before the next connection has its turn.
const AT_ONCE: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RelayDirection {
    Open,
    /// Nothing more comes, and something waits.
    Ending,
    Ended,
}

#[derive(Debug)]
pub struct Relay {
    fd: OwnedFd,
    stream: u32,
    /// From the socket into the stream.
    out: RelayDirection,
    /// From the stream to the socket.
    input: RelayDirection,
    /// From the stream, not yet taken by the socket. Never more than a window.
    pending: Vec<u8>,
}

impl Relay {
    /// The stream is open on this end.
    pub fn new(fd: OwnedFd, stream: u32) -> Result<Self, Errno> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        // What is passed on in pieces must not wait for its other pieces; not every socket knows of that.
        let _ = rustix::net::sockopt::set_tcp_nodelay(&fd, true);
        let (out, input) = (RelayDirection::Open, RelayDirection::Open);
        Ok(Self { fd, stream, out, input, pending: Vec::new() })
    }

    /// The events to wait for; none where only the channel can bring data.
    fn events(&self, mux: &Mux) -> PollFlags {
        let mut events = PollFlags::empty();
        if self.out == RelayDirection::Open && mux.room(self.stream) > 0 {
            events |= PollFlags::IN;
        }
        if !self.pending.is_empty() {
            events |= PollFlags::OUT;
        }
        events
    }

    /// The stream brought bytes.
    pub fn accept(&mut self, bytes: &[u8], mux: &mut Mux) {
        if self.input == RelayDirection::Open {
            self.pending.extend_from_slice(bytes);
            self.deliver(mux);
        }
    }

    /// The stream brings no more.
    pub fn end(&mut self, mux: &mut Mux) {
        if self.input == RelayDirection::Open {
            self.input = RelayDirection::Ending;
            self.deliver(mux);
        }
    }

    /// The other end takes no more.
    pub fn give_up_output(&mut self, mux: &mut Mux) {
        self.out = RelayDirection::Ended;
        mux.end(self.stream);
    }

    /// Nothing is left to be carried: the socket can be closed.
    fn is_over(&self) -> bool {
        self.out == RelayDirection::Ended && self.input == RelayDirection::Ended
    }

    /// Ends both directions at once, and informs the other end.
    fn break_off(&mut self, mux: &mut Mux) {
        self.stop_input(mux);
        self.give_up_output(mux);
    }

    /// Gives the socket what it takes of what waits for it.
    fn deliver(&mut self, mux: &mut Mux) {
        let mut taken = 0;
        while taken < self.pending.len() {
            match send(&self.fd, &self.pending[taken..], SendFlags::NOSIGNAL) {
                Ok(length) => taken += length,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // The socket may still have data to read: a response to what it refused.
                Err(_) => return self.stop_input(mux),
            }
        }
        self.pending.drain(..taken);
        mux.consumed(self.stream, taken);
        if self.input == RelayDirection::Ending && self.pending.is_empty() {
            self.input = RelayDirection::Ended;
            let _ = shutdown(&self.fd, Shutdown::Write); // one that is gone is found by the next read
        }
    }

    /// Takes what the socket has, as far as the stream has room.
    fn collect(&mut self, buffer: &mut [u8], mux: &mut Mux) {
        let mut taken = 0;
        while self.out == RelayDirection::Open && taken < AT_ONCE {
            let room = mux.room(self.stream).min(buffer.len());
            if room == 0 {
                return;
            }
            match rustix::io::read(&self.fd, &mut buffer[..room]) {
                Ok(0) => self.give_up_output(mux),
                Ok(length) => {
                    mux.send_data(self.stream, &buffer[..length]);
                    taken += length;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.break_off(mux),
            }
        }
    }

    fn stop_input(&mut self, mux: &mut Mux) {
        self.pending.clear();
        self.input = RelayDirection::Ended;
        mux.reset(self.stream);
    }
}

/// This stream failed: both ends drop it.
pub fn refuse(stream: u32, mux: &mut Mux) {
    mux.reset(stream);
    mux.end(stream);
}

/// Many of them, which share the channel's room fairly.
#[derive(Debug, Default)]
pub struct Relays {
    open: BTreeMap<u32, Relay>,
    /// Which stream comes first in the next round: this one, or the next that exists.
    first: u32,
}

impl Relays {
    pub fn push(&mut self, relay: Relay) {
        self.open.insert(relay.stream, relay);
    }

    /// How many relays have stream numbers in this range.
    pub fn count(&self, numbers: impl RangeBounds<u32>) -> usize {
        self.open.range(numbers).count()
    }

    pub fn contains(&self, stream: u32) -> bool {
        self.open.contains_key(&stream)
    }

    /// Adds the descriptors to wait for, and returns the stream of each.
    pub fn watch<'a>(&'a self, mux: &Mux, fds: &mut Vec<PollFd<'a>>) -> Vec<u32> {
        let mut streams = Vec::new();
        for (stream, relay) in &self.open {
            let events = relay.events(mux);
            if !events.is_empty() {
                fds.push(PollFd::from_borrowed_fd(relay.fd.as_fd(), events));
                streams.push(*stream);
            }
        }
        streams
    }

    pub fn get(&mut self, stream: u32) -> Option<&mut Relay> {
        self.open.get_mut(&stream)
    }

    /// Moves what can be moved now; reads only from sockets that are ready.
    pub fn move_bytes(&mut self, ready: &[u32], mux: &mut Mux) {
        let ready: BTreeSet<u32> = ready.iter().copied().collect();
        let mut buffer = [0; MAX_PAYLOAD];
        let turns = self.open.range(self.first..).chain(self.open.range(..self.first));
        let turns: Vec<u32> = turns.map(|(stream, _)| *stream).collect();
        for stream in &turns {
            let Some(relay) = self.open.get_mut(stream) else { continue };
            relay.deliver(mux);
            if ready.contains(stream) {
                relay.collect(&mut buffer, mux);
            }
        }
        self.first = turns.get(1).copied().unwrap_or_default();
        self.open.retain(|_, relay| !relay.is_over());
    }

    /// Ends the relays with stream numbers in this range, and informs the other end.
    pub fn break_off(&mut self, numbers: impl RangeBounds<u32>, mux: &mut Mux) {
        for (_, relay) in self.open.range_mut(numbers) {
            relay.break_off(mux);
        }
        self.open.retain(|_, relay| !relay.is_over());
    }

    /// The channel is gone, and every stream with it.
    pub fn clear(&mut self) {
        self.open.clear();
    }
}

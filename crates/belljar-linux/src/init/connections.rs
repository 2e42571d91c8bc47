//! Relays connections between the sandbox's loopback and the channel: those that a process inside makes to a port of
//! the launcher's, and those that the launcher makes to a server inside. PID 1 looks into none of them.

use std::ops::{Range, RangeFrom};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use belljar_spec::wire::{
    Arrival, FIRST_ACCEPT_STREAM, FIRST_CONNECT_STREAM, FromInit, MAX_CONNECTIONS, MAX_CONNECTS,
    Mux, WireError,
};
use belljar_sys::relay::{Relay, Relays, refuse};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use crate::loopback::{Family, begin_connect, listen_on, outcome};

/// How long accepting pauses when there are no free descriptors: clients wait, and the loop must not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Streams of connections that the launcher makes, and of those that are made to it.
const CONNECTED: Range<u32> = FIRST_CONNECT_STREAM..FIRST_ACCEPT_STREAM;
const ACCEPTED: RangeFrom<u32> = FIRST_ACCEPT_STREAM..;

/// A port that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on port {port}")]
pub(super) struct NotListening {
    port: u16,
    #[source]
    error: Errno,
}

/// What a polled descriptor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watched {
    Listener(u16),
    Connecting(u32),
    Stream(u32),
}

struct Listener {
    port: u16,
    fd: OwnedFd,
}

/// A connection in progress to a server inside.
struct Connecting {
    stream: u32,
    port: u16,
    family: Family,
    fd: OwnedFd,
    /// Came before there was a connection; never more than a window.
    early: Vec<u8>,
    ended: bool,
}

#[derive(Default)]
pub(super) struct Connections {
    listeners: Vec<Listener>,
    connecting: Vec<Connecting>,
    open: Relays,
    accepted: u32,
    paused_until: Option<Instant>,
}

impl Connections {
    pub(super) fn listen(&mut self, ports: &[u16]) -> Result<(), NotListening> {
        for port in ports.iter().copied() {
            let fd = listen_on(port).map_err(|error| NotListening { port, error })?;
            self.listeners.push(Listener { port, fd });
        }
        Ok(())
    }

    pub(super) fn connect(
        &mut self,
        stream: u32,
        port: u16,
        mux: &mut Mux,
    ) -> Result<(), WireError> {
        if !CONNECTED.contains(&stream) {
            let what = format!("stream {stream} is not for a connection of the launcher's");
            return Err(WireError::BadMessage(what));
        }
        if mux.open(stream).is_err() {
            mux.decline(stream);
            return Ok(());
        }
        let connected = self.open.count(CONNECTED);
        if connected + self.connecting.len() >= MAX_CONNECTS {
            refuse(stream, mux); // some relays still have data to deliver after the end of their streams
        } else {
            self.try_connect(stream, port, Family::V4, mux);
        }
        Ok(())
    }

    fn try_connect(&mut self, stream: u32, port: u16, family: Family, mux: &mut Mux) {
        let begun = match (begin_connect(family, port), family) {
            (Err(_), Family::V4) => begin_connect(Family::V6, port).map(|fd| (fd, Family::V6)),
            (begun, family) => begun.map(|fd| (fd, family)),
        };
        match begun {
            Ok((fd, family)) => {
                let (early, ended) = (Vec::new(), false);
                self.connecting.push(Connecting { stream, port, family, fd, early, ended });
            }
            Err(_) => refuse(stream, mux), // there is no listener
        }
    }

    /// Adds the descriptors to wait for, and returns what each of them belongs to.
    pub(super) fn watch<'a>(&'a self, mux: &Mux, fds: &mut Vec<PollFd<'a>>) -> Vec<Watched> {
        let mut watched = Vec::new();
        if self.may_accept(mux) && self.paused_until.is_none() {
            for Listener { port, fd } in &self.listeners {
                fds.push(PollFd::new(fd, PollFlags::IN));
                watched.push(Watched::Listener(*port));
            }
        }
        for Connecting { stream, fd, .. } in &self.connecting {
            fds.push(PollFd::new(fd, PollFlags::OUT));
            watched.push(Watched::Connecting(*stream));
        }
        watched.extend(self.open.watch(mux, fds).into_iter().map(Watched::Stream));
        watched
    }

    /// When to look again, if nothing happens before.
    pub(super) fn next_moment(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Something for a connection's stream arrived.
    pub(super) fn take(&mut self, arrival: Arrival, mux: &mut Mux) {
        let stream = match &arrival {
            Arrival::Data { stream, .. } | Arrival::End { stream } | Arrival::Reset { stream } => {
                *stream
            }
            Arrival::Message(_) => return,
        };
        if let Some(relay) = self.open.get(stream) {
            match arrival {
                Arrival::Data { bytes, .. } => relay.accept(&bytes, mux),
                Arrival::End { .. } => relay.end(mux),
                Arrival::Reset { .. } => relay.give_up_output(mux),
                Arrival::Message(_) => {}
            }
            return;
        }
        let waits = |connecting: &Connecting| connecting.stream == stream;
        let Some(at) = self.connecting.iter().position(waits) else { return };
        match arrival {
            Arrival::Data { bytes, .. } => self.connecting[at].early.extend_from_slice(&bytes),
            Arrival::End { .. } => self.connecting[at].ended = true,
            Arrival::Reset { .. } => {
                self.connecting.remove(at);
                refuse(stream, mux);
            }
            Arrival::Message(_) => {}
        }
    }

    pub(super) fn move_bytes(&mut self, ready: &[Watched], mux: &mut Mux) {
        if self.paused_until.is_some_and(|until| Instant::now() >= until) {
            self.paused_until = None;
        }
        let mut streams = Vec::new();
        for watched in ready {
            match *watched {
                Watched::Listener(port) => self.accept(port, mux),
                Watched::Connecting(stream) => self.finish_connect(stream, mux),
                Watched::Stream(stream) => streams.push(stream),
            }
        }
        self.open.move_bytes(&streams, mux);
    }

    /// A stream that was reset is open until the launcher has responded, and a relay may still have data to deliver
    /// after the end of its stream: the number of both is limited.
    fn may_accept(&self, mux: &Mux) -> bool {
        mux.count_open(ACCEPTED).max(self.open.count(ACCEPTED)) < MAX_CONNECTIONS
            && self.accepted < u32::MAX - FIRST_ACCEPT_STREAM
    }

    fn accept(&mut self, port: u16, mux: &mut Mux) {
        while self.may_accept(mux) && self.paused_until.is_none() {
            let Some(listener) = self.listeners.iter().find(|listener| listener.port == port)
            else {
                return;
            };
            match accept_with(&listener.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(fd) => self.accepted(port, fd, mux),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.shut(),
            }
        }
    }

    fn shut(&mut self) {
        self.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
    }

    /// A failed one is closed; nothing that processes inside do here may end PID 1.
    fn accepted(&mut self, port: u16, fd: OwnedFd, mux: &mut Mux) {
        let stream = FIRST_ACCEPT_STREAM + self.accepted;
        let Ok(relay) = Relay::new(fd, stream) else { return };
        if mux.open(stream).is_err() {
            return self.shut();
        }
        self.accepted += 1;
        self.open.push(relay);
        let _ = mux.send(&FromInit::Accepted { stream, port }); // never too long
    }

    fn finish_connect(&mut self, stream: u32, mux: &mut Mux) {
        let waits = |connecting: &Connecting| connecting.stream == stream;
        let Some(at) = self.connecting.iter().position(waits) else { return };
        let Connecting { port, family, fd, early, ended, .. } = self.connecting.remove(at);
        match (outcome(&fd), family) {
            (Ok(()), _) => {
                let Ok(mut relay) = Relay::new(fd, stream) else { return refuse(stream, mux) };
                relay.accept(&early, mux);
                if ended {
                    relay.end(mux);
                }
                self.open.push(relay);
            }
            (Err(_), Family::V4) => {
                self.try_connect(stream, port, Family::V6, mux);
                if let Some(again) = self.connecting.iter_mut().find(|one| waits(one)) {
                    (again.early, again.ended) = (early, ended);
                }
            }
            (Err(_), Family::V6) => refuse(stream, mux),
        }
    }
}

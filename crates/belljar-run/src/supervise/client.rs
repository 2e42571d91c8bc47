//! The connections of clients to the supervisor.
//!
//! A client has the same user as the home's owner, and could do all this by hand. Still no client can make the
//! supervisor grow or stop: windows bound what waits, and an invalid frame ends the connection, not the run.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use belljar_spec::BUILD;
use belljar_spec::RunId;
use belljar_spec::wire::control::{
    CONTROL_MAX, CONTROL_MIN, ClientHello, ControlError, FromSupervisor, Streams, TaskStreams,
    ToSupervisor, frame_version,
};
use belljar_spec::wire::mux::{WIDE_BUDGET, WIDE_WINDOW, parse};
use belljar_spec::wire::{Arrival, Flow, FrameKey, Mux, Side};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::readiness::wait_until;

/// A client that reads nothing is disconnected when this much waits for it besides its streams.
const MAX_PENDING: usize = 1024 * 1024;
/// Before the next source has its turn.
const READ_AT_ONCE: usize = 256 * 1024;
/// At the same time; one more is closed again.
const MAX_CLIENTS: usize = 128;

/// Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClientId(u64);

/// What a client sent.
#[derive(Debug)]
pub(super) enum ClientEvent {
    Request(ToSupervisor),
    Data { stream: u32, bytes: Vec<u8> },
    End { stream: u32 },
    Reset { stream: u32 },
    Closed,
}

/// A connection to one client.
#[derive(Debug)]
pub(crate) struct Connection {
    fd: OwnedFd,
    mux: Mux,
    greeted: bool,
    /// Data waits for the socket to take what is before it: the next turn must come when it has, although nothing is
    /// left to be sent then.
    is_held_up: bool,
    /// Read together with a request that was waited for.
    early: Vec<ClientEvent>,
}

impl Connection {
    pub(crate) fn new(fd: OwnedFd) -> Result<Self, Errno> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let (mux, early) = (Mux::new(Side::Server), Vec::new());
        Ok(Self { fd, mux, greeted: false, is_held_up: false, early })
    }

    /// Waits for the next request, before there is a loop.
    pub(crate) fn next_request(&mut self, within: Duration) -> Option<ToSupervisor> {
        let until = Instant::now() + within;
        while Instant::now() < until {
            let mut events = Vec::new();
            self.read(None, &mut events);
            let mut events = events.into_iter();
            match events.next() {
                Some(ClientEvent::Request(request)) => {
                    self.early = events.collect();
                    return Some(request);
                }
                Some(_) => return None,
                None => {}
            }
            self.flush();
            let mut fds = [self.poll_fd()];
            wait_until(&mut fds, Some(until)).ok()?;
        }
        None
    }

    pub(crate) fn send(&mut self, message: &FromSupervisor) {
        let _ = self.mux.send(message); // none of ours is too long
        self.flush();
    }

    /// Waits a moment for the client to take the last message.
    pub(crate) fn finish(&mut self, within: Duration) {
        let until = Instant::now() + within;
        self.flush();
        while !self.mux.outgoing().is_empty() && Instant::now() < until {
            let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
            if wait_until(&mut fds, Some(until)).is_err() {
                return;
            }
            self.flush();
        }
    }

    /// The streams that a request names, as this end has them.
    fn open_streams(&mut self, task: u32, streams: Streams) -> Result<(), ControlError> {
        let bad = |why: &str| ControlError::BadTask { task, why: why.to_owned() };
        let numbers = TaskStreams::of(task).ok_or_else(|| bad("its number is too high"))?;
        let mut open = |stream, flow| {
            self.mux.open_for(stream, flow).map_err(|_| bad("it is running already"))
        };
        match streams {
            Streams::Unwatched => Ok(()),
            Streams::Terminal(_) => open(numbers.stdin, Flow::Bidirectional),
            Streams::Output => {
                open(numbers.stdout, Flow::Outgoing)?;
                open(numbers.stderr, Flow::Outgoing)
            }
            Streams::InputAndOutput => {
                open(numbers.stdin, Flow::Incoming)?;
                open(numbers.stdout, Flow::Outgoing)?;
                open(numbers.stderr, Flow::Outgoing)
            }
        }
    }

    /// The task never was, or is over: both ends forget its streams.
    pub(super) fn forget_streams(&mut self, task: u32) {
        if let Some(TaskStreams { stdin, stdout, stderr }) = TaskStreams::of(task) {
            for stream in [stdin, stdout, stderr] {
                self.mux.forget(stream);
            }
        }
    }

    fn poll_fd(&self) -> PollFd<'_> {
        let waiting = self.is_held_up || !self.mux.outgoing().is_empty();
        let events = if waiting { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        PollFd::new(&self.fd, events)
    }

    fn flush(&mut self) {
        while !self.mux.outgoing().is_empty() {
            match rustix::io::write(&self.fd, self.mux.outgoing()) {
                Ok(length) => self.mux.sent(length),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    let length = self.mux.outgoing().len();
                    self.mux.sent(length); // the next read finds it closed
                }
            }
        }
    }

    /// Straight into the connection's own buffer, which wipes what a launch brings: values of secrets.
    fn read(&mut self, run: Option<RunId>, events: &mut Vec<ClientEvent>) {
        self.is_held_up = false; // whoever still waits says so again in this turn
        let mut taken = 0;
        while taken < READ_AT_ONCE {
            let fd = &self.fd;
            match self.mux.push_with(|buffer| rustix::io::read(fd, spare_capacity(buffer))) {
                Ok(length) if length > 0 => taken += length,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return,
                _ => return events.push(ClientEvent::Closed),
            }
            loop {
                match self.mux.next_arrival() {
                    Ok(None) => break,
                    Ok(Some(Arrival::Data { stream, bytes })) => {
                        events.push(ClientEvent::Data { stream, bytes });
                    }
                    Ok(Some(Arrival::End { stream })) => events.push(ClientEvent::End { stream }),
                    Ok(Some(Arrival::Reset { stream })) => {
                        self.mux.end(stream);
                        events.push(ClientEvent::Reset { stream });
                    }
                    Ok(Some(Arrival::Message(message))) => match parse(&message) {
                        Ok(ToSupervisor::Hello(hello)) if !self.greeted => {
                            if !self.greet(&hello, run) {
                                return events.push(ClientEvent::Closed);
                            }
                        }
                        Ok(request) if self.greeted => events.extend(self.prepare_for(request)),
                        _ => return events.push(ClientEvent::Closed),
                    },
                    Err(_) => return events.push(ClientEvent::Closed),
                }
            }
        }
    }

    /// A request's streams have to be known before their first bytes are read.
    fn prepare_for(&mut self, request: ToSupervisor) -> Option<ClientEvent> {
        let opened = match &request {
            ToSupervisor::Exec(exec) => Some((exec.task, exec.streams)),
            ToSupervisor::Attach { streams } => Some((0, *streams)),
            ToSupervisor::Launch(launch) => Some((0, launch.streams)),
            _ => None,
        };
        let refused = opened
            .and_then(|(task, streams)| self.open_streams(task, streams).err().map(|e| (task, e)));
        match refused {
            None => Some(ClientEvent::Request(request)),
            Some((task, error)) => {
                self.send(&FromSupervisor::TaskRefused { task, error });
                None
            }
        }
    }

    fn greet(&mut self, hello: &ClientHello, run: Option<RunId>) -> bool {
        let Some(key) = FrameKey::from_hex(&hello.key) else { return false };
        self.mux.rekey(&key);
        self.greeted = true;
        let (ours, theirs) = (BUILD.to_owned(), hello.build.clone());
        let refusal = if hello.max < CONTROL_MIN || hello.min > CONTROL_MAX {
            Some(ControlError::Protocol { min: CONTROL_MIN, max: CONTROL_MAX })
        } else if run.is_none() && ours != theirs {
            // The client decides what is launched: both must understand the same by it.
            Some(ControlError::OtherBuild { ours: theirs, theirs: ours.clone() })
        } else {
            None
        };
        let version = hello.max.min(CONTROL_MAX);
        self.send(&FromSupervisor::Hello { version, build: ours, run });
        self.mux.use_version(frame_version(version));
        match refusal {
            None => true,
            Some(error) => {
                self.send(&FromSupervisor::Refused(error));
                self.finish(Duration::from_secs(1));
                false
            }
        }
    }
}

/// All connections.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    open: BTreeMap<ClientId, Connection>,
    last: u64,
}

impl Clients {
    /// `None` if there are too many.
    pub(super) fn add(&mut self, connection: Connection) -> Option<ClientId> {
        if self.open.len() >= MAX_CLIENTS {
            return None;
        }
        self.last += 1;
        let id = ClientId(self.last);
        self.open.insert(id, connection);
        Some(id)
    }

    pub(super) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        fds.extend(self.open.values().map(Connection::poll_fd));
    }

    pub(super) fn read(&mut self, run: RunId) -> Vec<(ClientId, ClientEvent)> {
        let mut all = Vec::new();
        for (id, connection) in &mut self.open {
            let mut events = std::mem::take(&mut connection.early);
            connection.read(Some(run), &mut events);
            all.extend(events.into_iter().map(|what| (*id, what)));
        }
        all
    }

    pub(super) fn send(&mut self, client: ClientId, message: &FromSupervisor) {
        let Some(connection) = self.open.get_mut(&client) else { return };
        if connection.mux.outgoing().len() > MAX_PENDING {
            // It sends requests and reads no answers. The next read finds it closed.
            let _ = rustix::net::shutdown(&connection.fd, rustix::net::Shutdown::Both);
            return;
        }
        connection.send(message);
    }

    /// To every client: one that does not follow the task may still wait for its start.
    pub(super) fn send_all(&mut self, message: &FromSupervisor) {
        let all: Vec<ClientId> = self.open.keys().copied().collect();
        all.into_iter().for_each(|client| self.send(client, message));
    }

    pub(super) fn get(&mut self, client: ClientId) -> Option<&mut Connection> {
        self.open.get_mut(&client)
    }

    pub(super) fn remove(&mut self, client: ClientId) {
        self.open.remove(&client);
    }

    /// How much was taken; `None` if the client is gone or takes no more of this stream.
    pub(super) fn send_data(&mut self, id: ClientId, stream: u32, bytes: &[u8]) -> Option<usize> {
        let connection = self.open.get_mut(&id)?;
        connection.mux.may_send(stream).then(|| {
            if connection.mux.room(stream) == 0 {
                connection.flush(); // there may be room then
            }
            let taken = connection.mux.send_data(stream, bytes);
            connection.flush();
            connection.is_held_up |= taken < bytes.len() && !connection.mux.outgoing().is_empty();
            taken
        })
    }

    /// Takes more of a stream at once, as long as all clients together do not take too much.
    pub(super) fn widen(&mut self, client: ClientId, stream: u32) {
        let wide: u64 = self.open.values().map(|connection| connection.mux.wide_bytes()).sum();
        if let Some(connection) = self.open.get_mut(&client)
            && wide + WIDE_WINDOW <= WIDE_BUDGET
        {
            connection.mux.widen(stream);
        }
    }

    pub(super) fn consumed(&mut self, client: ClientId, stream: u32, count: usize) {
        if let Some(connection) = self.open.get_mut(&client) {
            connection.mux.consumed(stream, count);
        }
    }

    /// The end of a task: of its streams, then the message about it.
    pub(super) fn end_task(&mut self, client: ClientId, task: u32, message: &FromSupervisor) {
        if let (Some(connection), Some(streams)) =
            (self.open.get_mut(&client), TaskStreams::of(task))
        {
            for stream in [streams.stdin, streams.stdout, streams.stderr] {
                connection.mux.end(stream);
            }
        }
        self.send(client, message);
        if let Some(connection) = self.open.get_mut(&client) {
            connection.forget_streams(task);
        }
    }

    /// For a supervisor whose run is over: only how far the clients have read matters now.
    pub(super) fn take_windows(&mut self) {
        let mut gone = Vec::new();
        for (id, connection) in &mut self.open {
            let mut events = Vec::new();
            connection.read(None, &mut events);
            if events.iter().any(|what| matches!(what, ClientEvent::Closed)) {
                gone.push(*id);
            }
        }
        for id in gone {
            self.open.remove(&id);
        }
    }

    pub(super) fn flush(&mut self) {
        self.open.values_mut().for_each(Connection::flush);
    }

    /// Sends the last message to all of them.
    pub(super) fn close(mut self, message: &FromSupervisor) {
        for connection in self.open.values_mut() {
            connection.send(message);
        }
        for connection in self.open.values_mut() {
            connection.finish(Duration::from_secs(2));
        }
    }
}

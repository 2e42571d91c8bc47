//! A connection with a client that reads late, or is older than the supervisor.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use belljar_spec::wire::mux::WINDOW;
use belljar_spec::wire::{Arrival, FrameVersion};

use super::*;

/// The client's end.
struct Peer {
    socket: UnixStream,
    mux: Mux,
}

impl Peer {
    fn greet(&mut self, max: u32) {
        let key = FrameKey::new([3; 32]);
        let hello = ClientHello { min: 1, max, key: "03".repeat(32), build: BUILD.to_owned() };
        self.send(&ToSupervisor::Hello(hello));
        self.mux.rekey(&key);
    }

    fn send(&mut self, message: &ToSupervisor) {
        self.mux.send(message).unwrap();
        self.flush();
    }

    fn flush(&mut self) {
        let bytes = self.mux.outgoing().to_vec();
        self.socket.write_all(&bytes).unwrap();
        self.mux.sent(bytes.len());
    }

    fn read(&mut self) -> Vec<Arrival> {
        let mut buffer = vec![0; 1 << 20];
        self.socket.set_nonblocking(true).unwrap();
        while let Ok(length) = self.socket.read(&mut buffer) {
            self.mux.push(&buffer[..length]);
        }
        self.socket.set_nonblocking(false).unwrap();
        let mut all = Vec::new();
        while let Some(arrival) = self.mux.next_arrival().unwrap() {
            if let Arrival::Message(text) = &arrival
                && let Ok(FromSupervisor::Hello { version, .. }) = parse(text)
            {
                self.mux.use_version(frame_version(version));
            }
            all.push(arrival);
        }
        all
    }
}

/// A client that has greeted, and the supervisor's side of it.
fn connected(max: u32) -> (Clients, ClientId, Peer) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut clients = Clients::default();
    let id = clients.add(Connection::new(ours.into()).unwrap()).unwrap();
    let mut peer = Peer { socket: theirs, mux: Mux::new(Side::Client) };
    peer.greet(max);
    assert!(clients.read(RunId::from_parts(1, 1)).is_empty());
    assert!(matches!(peer.read()[..], [Arrival::Message(_)]), "the supervisor's hello");
    (clients, id, peer)
}

fn polls_for_writing(clients: &Clients) -> bool {
    // What poll is asked for shows only in its answer: the socket has room in these tests.
    let mut fds = Vec::new();
    clients.watch(&mut fds);
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&now)).unwrap();
    fds.iter().any(|fd| fd.revents().contains(PollFlags::OUT))
}

#[test]
fn data_that_was_held_up_by_the_socket_gets_another_turn() {
    let (mut clients, id, mut peer) = connected(CONTROL_MAX);
    for mux in [&mut peer.mux, &mut clients.open.get_mut(&id).unwrap().mux] {
        (1..=8).for_each(|stream| mux.open(stream).unwrap());
    }
    assert!(!polls_for_writing(&clients), "control: nothing waits");
    // The socket holds less than eight windows.
    let mut left = 0;
    for stream in 1..=8 {
        let mut sent = 0;
        while let Some(now @ 1..) = clients.send_data(id, stream, &vec![7; WINDOW as usize][sent..])
        {
            sent += now;
        }
        left += WINDOW as usize - sent;
    }
    assert!(left > 0, "control: the socket took everything");
    let received: usize = peer.read().iter().map(length).sum();
    clients.flush(); // as at the end of every turn: nothing is left to be sent
    peer.read(); // and there is room again
    assert!(clients.open[&id].mux.outgoing().is_empty());
    assert!(polls_for_writing(&clients), "whoever has more must be asked again");
    assert!(received > 0);
    clients.read(RunId::from_parts(1, 1));
    assert!(!polls_for_writing(&clients), "once, or until it waits again");
}

fn length(arrival: &Arrival) -> usize {
    match arrival {
        Arrival::Data { bytes, .. } => bytes.len(),
        _ => 0,
    }
}

#[test]
fn a_client_that_knows_only_the_first_version_is_served() {
    for (max, version) in [(1, FrameVersion::V1), (2, FrameVersion::V2), (9, FrameVersion::V2)] {
        let (mut clients, id, mut peer) = connected(max);
        peer.send(&ToSupervisor::Status);
        let events = clients.read(RunId::from_parts(1, 1));
        assert!(
            matches!(events[..], [(_, ClientEvent::Request(ToSupervisor::Status))]),
            "{version:?}: {events:?}"
        );
        let why = "a test".to_owned();
        clients.send(id, &FromSupervisor::Refused(ControlError::OutOfTurn { why }));
        assert!(matches!(peer.read()[..], [Arrival::Message(_)]), "{version:?}");
    }
}

#[test]
fn all_clients_together_widen_no_more_than_the_budget() {
    let mut clients = Clients::default();
    let mut peers = Vec::new();
    for _ in 0..3 * WIDE_BUDGET / WIDE_WINDOW {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(ours.into()).unwrap();
        connection.mux.use_version(FrameVersion::V2);
        connection.mux.open_for(5, Flow::Incoming).unwrap();
        let id = clients.add(connection).unwrap();
        clients.widen(id, 5);
        peers.push((id, theirs));
    }
    let wide =
        |clients: &Clients| clients.open.values().map(|open| open.mux.wide_bytes()).sum::<u64>();
    assert_eq!(wide(&clients), WIDE_BUDGET);
    // One that is gone makes room for another.
    clients.remove(peers[0].0);
    let last = peers[peers.len() - 1].0;
    clients.widen(last, 5);
    assert_eq!(wide(&clients), WIDE_BUDGET);
    assert_eq!(clients.open[&last].mux.wide_bytes(), WIDE_WINDOW);
}

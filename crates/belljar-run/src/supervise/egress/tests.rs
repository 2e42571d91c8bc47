//! The supervisor's side, with this process as the proxy and as PID 1.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use belljar_egress::control::{FromProxy, Setup, ToProxy, receive, send};
use belljar_spec::egress::{
    DenyReason, EgressDenied, EgressEvent, EgressPolicy, EgressSpec, PublishSpec, SecretValue, Via,
};
use belljar_spec::wire::mux::parse;
use belljar_spec::wire::{
    Arrival, FIRST_ACCEPT_STREAM, FIRST_CONNECT_STREAM, MAX_CONNECTIONS, Mux, Side, ToInit,
};
use belljar_spec::{EventKind, RunId};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};

use super::{EgressError, NetworkBridge, Ports, Proxy};
use belljar_record::{EventReader, HomeKey, Recorder, Secrets};

const CANARY: &str = "canary-value";

pub(super) fn setup() -> Setup {
    let (run, allow, spec) = ("r".to_owned(), Vec::new(), EgressSpec::default());
    let secrets = vec![SecretValue {
        env: "KEY".to_owned(),
        value: CANARY.to_owned(),
        placeholder: "p".to_owned(),
    }];
    Setup { policy: EgressPolicy { run, allow, setup: None, spec }, secrets }
}

/// The proxy's end. The process is one that does nothing.
pub(super) fn proxy() -> (Proxy, OwnedFd) {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let (words, stderr) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    let child = Command::new("sleep").arg("100").stderr(stderr).spawn().unwrap();
    let proxy = Proxy::with(child, ours, words, setup()).unwrap();
    let (said, _) = receive::<ToProxy>(&theirs).unwrap().unwrap();
    assert!(matches!(said, ToProxy::Setup(setup) if setup.secrets[0].value == CANARY));
    (proxy, theirs)
}

pub(super) fn denied(host: &str) -> FromProxy {
    FromProxy::Event(EgressEvent::Denied(EgressDenied {
        host: host.to_owned(),
        port: Some(443),
        via: Via::Connect,
        reason: DenyReason::NotListed,
        detail: None,
        method: None,
        path: None,
        count: 1,
    }))
}

pub(super) struct Record {
    pub(super) recorder: Recorder,
    directory: tempfile::TempDir,
}

impl Record {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let key = HomeKey::load_or_make(directory.path()).unwrap();
        let key = key.for_run(&RunId::from_parts(1, 2));
        let secrets = Secrets::new([CANARY.as_bytes().to_vec()]);
        let recorder = Recorder::create(directory.path(), key, secrets, 1 << 20).unwrap();
        Self { recorder, directory }
    }

    pub(super) fn kinds(&mut self) -> Vec<EventKind> {
        self.text(); // flushes
        let mut events = EventReader::open(self.directory.path()).unwrap();
        std::iter::from_fn(|| events.next().unwrap()).map(|event| event.kind).collect()
    }

    pub(super) fn log(&self) -> std::path::PathBuf {
        self.directory.path().join("events.jsonl")
    }

    pub(super) fn text(&mut self) -> String {
        self.recorder.flush().unwrap();
        std::fs::read_to_string(self.directory.path().join("events.jsonl")).unwrap()
    }
}

/// Both ends of a channel, and what is said over it.
pub(super) struct Wire {
    pub(super) ours: Mux,
    pub(super) theirs: Mux,
}

impl Wire {
    pub(super) fn new() -> Self {
        Self { ours: Mux::new(Side::Client), theirs: Mux::new(Side::Server) }
    }

    /// What PID 1 reads now.
    pub(super) fn received_inside(&mut self) -> Vec<Arrival> {
        carry(&mut self.ours, &mut self.theirs)
    }

    /// What PID 1 said goes to the connections.
    pub(super) fn pass_to(&mut self, network: &mut NetworkBridge) {
        for arrival in carry(&mut self.theirs, &mut self.ours) {
            match arrival {
                Arrival::Data { stream, bytes } => {
                    network.take_data(stream, &bytes, &mut self.ours);
                }
                Arrival::End { stream } => network.take_end(stream, &mut self.ours),
                Arrival::Reset { stream } => {
                    self.ours.end(stream);
                    network.take_reset(stream, &mut self.ours);
                }
                Arrival::Message(_) => {}
            }
        }
    }

    /// Somebody inside connected.
    pub(super) fn accept(&mut self, number: u32, network: &mut NetworkBridge) -> u32 {
        let stream = FIRST_ACCEPT_STREAM + number;
        self.ours.open(stream).unwrap();
        self.theirs.open(stream).unwrap();
        network.accepted(stream, 61080, &mut self.ours);
        stream
    }
}

fn carry(from: &mut Mux, to: &mut Mux) -> Vec<Arrival> {
    let bytes = from.outgoing().to_vec();
    from.sent(bytes.len());
    to.push(&bytes);
    std::iter::from_fn(|| to.next_arrival().unwrap()).collect()
}

/// One round of the loop: what can be read is read.
pub(super) fn turn(network: &mut NetworkBridge, wire: &mut Wire, record: &mut Record) {
    let mut fds = Vec::new();
    let streams = network.watch(Some(&wire.ours), &mut fds);
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    rustix::event::poll(&mut fds, Some(&now)).unwrap();
    let first = fds.len() - streams.len();
    let ready = streams.into_iter().zip(&fds[first..]);
    let ready: Vec<u32> =
        ready.filter(|(_, fd)| !fd.revents().is_empty()).map(|(stream, _)| stream).collect();
    network.turn(&ready, Some(&mut wire.ours), &mut record.recorder).unwrap();
}

#[test]
fn a_proxy_is_waited_for_and_its_refusal_is_told() {
    let (mut ready, end) = proxy();
    assert!(ready.is_awaited());
    send(end.as_fd(), &FromProxy::Ready { trust: None }, None).unwrap();
    assert!(ready.wait_until_ready().unwrap().is_none() && !ready.is_awaited());

    let (mut refuses, end) = proxy();
    send(end.as_fd(), &FromProxy::Failed { why: "no such rule".to_owned() }, None).unwrap();
    let refused = refuses.wait_until_ready().unwrap_err();
    assert!(matches!(&refused, EgressError::Settings(why) if why == "no such rule"));

    let (mut dies, end) = proxy();
    drop(end);
    assert!(matches!(dies.wait_until_ready(), Err(EgressError::Ended(_))));
}

#[test]
fn sockets_wait_for_a_proxy_that_is_slow_and_all_arrive() {
    const MANY: usize = 1500;
    let (mut proxy, end) = proxy();
    for port in 0..MANY {
        let (ours, _) = UnixStream::pair().unwrap();
        proxy.hand_over_connection(0, port as u16, ours.into());
    }
    rustix::io::ioctl_fionbio(&end, true).unwrap();
    let mut arrived = 0;
    while arrived < MANY {
        match receive::<ToProxy>(&end) {
            Ok(Some((ToProxy::Connection { port }, Some(_)))) => {
                assert_eq!(usize::from(port), arrived);
                arrived += 1;
            }
            Err(_) => assert!(proxy.take_events().gone.is_none()), // it takes more now
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_connection_from_inside_reaches_the_proxy_and_each_direction_ends_on_its_own() {
    let (proxy, end) = proxy();
    let mut network = NetworkBridge::new(Some(proxy), Ports::default());
    let (mut wire, mut record) = (Wire::new(), Record::new());
    let stream = wire.accept(0, &mut network);
    let (said, socket) = receive::<ToProxy>(&end).unwrap().unwrap();
    assert!(matches!(said, ToProxy::Connection { port: 61080 }));
    let mut socket = UnixStream::from(socket.unwrap());
    wire.theirs.send_data(stream, b"question");
    wire.theirs.end(stream);
    wire.pass_to(&mut network);
    turn(&mut network, &mut wire, &mut record);
    let mut question = String::new();
    socket.read_to_string(&mut question).unwrap(); // there is an end
    assert_eq!(question, "question");
    socket.write_all(b"answer").unwrap();
    drop(socket);
    turn(&mut network, &mut wire, &mut record);
    let heard = wire.received_inside();
    let answer = Arrival::Data { stream, bytes: b"answer".to_vec() };
    assert_eq!(heard, [answer, Arrival::End { stream }]);
    assert!(!wire.ours.is_open(stream) && !wire.theirs.is_open(stream));
}

#[test]
fn an_answer_to_what_was_not_read_still_arrives() {
    let (proxy, end) = proxy();
    let mut network = NetworkBridge::new(Some(proxy), Ports::default());
    let (mut wire, mut record) = (Wire::new(), Record::new());
    let stream = wire.accept(0, &mut network);
    let mut socket = UnixStream::from(receive::<ToProxy>(&end).unwrap().unwrap().1.unwrap());
    socket.write_all(b"no").unwrap();
    drop(socket); // refused, while the question is still on its way
    wire.theirs.send_data(stream, b"question");
    wire.pass_to(&mut network);
    turn(&mut network, &mut wire, &mut record);
    let heard = wire.received_inside();
    assert!(heard.contains(&Arrival::Data { stream, bytes: b"no".to_vec() }), "{heard:?}");
    assert!(heard.contains(&Arrival::Reset { stream }), "{heard:?}");
    assert!(heard.contains(&Arrival::End { stream }), "{heard:?}");
}

#[test]
fn events_are_recorded_without_secrets() {
    let (proxy, end) = proxy();
    let mut network = NetworkBridge::new(Some(proxy), Ports::default());
    let (mut wire, mut record) = (Wire::new(), Record::new());
    send(end.as_fd(), &denied(&format!("{CANARY}.example")), None).unwrap();
    let hit =
        belljar_spec::egress::EgressBudgetHit { what: "requests".to_owned(), limit: 7, host: None };
    send(end.as_fd(), &FromProxy::Event(EgressEvent::BudgetHit(hit)), None).unwrap();
    turn(&mut network, &mut wire, &mut record);
    assert_eq!(record.kinds(), [EventKind::EgressDenied, EventKind::LimitHit]);
    let text = record.text();
    assert!(!text.contains(CANARY) && text.contains("************.example"), "{text}");
}

#[test]
fn a_lost_proxy_is_told_once_and_closes_what_it_carried() {
    let (proxy, end) = proxy();
    let mut network = NetworkBridge::new(Some(proxy), Ports::default());
    let (mut wire, mut record) = (Wire::new(), Record::new());
    let carried = wire.accept(0, &mut network);
    drop(end);
    turn(&mut network, &mut wire, &mut record);
    turn(&mut network, &mut wire, &mut record);
    assert_eq!(record.kinds(), [EventKind::EgressLost]);
    let after = wire.accept(1, &mut network);
    let heard = wire.received_inside();
    for stream in [carried, after] {
        assert!(heard.contains(&Arrival::End { stream }), "{heard:?}");
        assert!(heard.contains(&Arrival::Reset { stream }), "{heard:?}");
    }
    network.finish(&mut record.recorder).unwrap();
    assert_eq!(record.kinds(), [EventKind::EgressLost]);
}

#[test]
fn the_last_events_are_waited_for_and_not_for_long() {
    let (tells, end) = proxy();
    let mut network = NetworkBridge::new(Some(tells), Ports::default());
    let mut record = Record::new();
    let telling = std::thread::spawn(move || {
        while receive::<ToProxy>(&end).unwrap().is_some() {}
        send(end.as_fd(), &denied("late.example"), None).unwrap();
    });
    network.end();
    network.finish(&mut record.recorder).unwrap();
    telling.join().unwrap();
    assert_eq!(record.kinds(), [EventKind::EgressDenied], "and no loss is told");

    let (silent, end) = proxy();
    let mut network = NetworkBridge::new(Some(silent), Ports::default());
    let begun = Instant::now();
    network.end();
    network.finish(&mut record.recorder).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5));
    drop(end);
}

#[test]
fn more_connections_than_there_may_be_are_closed() {
    let (proxy, _end) = proxy();
    let mut network = NetworkBridge::new(Some(proxy), Ports::default());
    let mut wire = Wire::new();
    // Their streams are over at once, and what they brought waits for a proxy that takes nothing.
    for number in 0..2 * MAX_CONNECTIONS as u32 + 1 {
        let stream = wire.accept(number, &mut network);
        wire.received_inside();
        wire.theirs.end(stream);
        wire.theirs.reset(stream);
        wire.pass_to(&mut network);
        wire.received_inside();
    }
    assert!(network.relays.count(..) <= 2 * MAX_CONNECTIONS);
}

#[test]
fn a_port_of_the_host_leads_inside() {
    let wanted = PublishSpec::parse("3000").unwrap();
    let ports = Ports::open(&[wanted]).unwrap();
    let published = ports.published()[0];
    assert!(published.host_port != 0 && published.port == 3000);
    let mut network = NetworkBridge::new(None, ports);
    let (mut wire, mut record) = (Wire::new(), Record::new());
    network.prepare(Vec::new(), &mut record.recorder).unwrap();
    assert_eq!(record.kinds(), [EventKind::PortPublished]);

    let mut outside = TcpStream::connect((Ipv4Addr::LOCALHOST, published.host_port)).unwrap();
    outside.write_all(b"hello").unwrap();
    turn(&mut network, &mut wire, &mut record);
    let stream = FIRST_CONNECT_STREAM;
    wire.theirs.open(stream).unwrap();
    turn(&mut network, &mut wire, &mut record);
    let heard = wire.received_inside();
    let Some(Arrival::Message(message)) = heard.first() else { panic!("{heard:?}") };
    let connect: ToInit = parse(message).unwrap();
    assert_eq!(connect, ToInit::Connect { stream, port: 3000 });
    assert_eq!(heard[1], Arrival::Data { stream, bytes: b"hello".to_vec() });
    // Nobody answers inside: whoever came is told by the end.
    wire.theirs.reset(stream);
    wire.theirs.end(stream);
    wire.pass_to(&mut network);
    turn(&mut network, &mut wire, &mut record);
    assert_eq!(outside.read(&mut [0; 8]).unwrap_or(0), 0);
    // When the sandbox is over nobody gets in. A process that another test just started may still hold a copy.
    network.end();
    let until = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect((Ipv4Addr::LOCALHOST, published.host_port)).is_ok() {
        assert!(Instant::now() < until, "the port stays open");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_port_that_somebody_has_is_refused_with_a_way_out() {
    let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let host_port = taken.local_addr().unwrap().port();
    let wanted = PublishSpec { host_port, ..PublishSpec::parse("3000").unwrap() };
    let refused = Ports::open(&[wanted]).unwrap_err();
    assert!(refused.to_string().contains(&format!("127.0.0.1:{host_port}")));
    assert!(refused.fix().unwrap().contains("-p 3000"));
    drop(taken);
    Ports::open(&[wanted]).unwrap();
}

//! Tests a name lookup that is pending when the set-up phase ends, or when the list is changed.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;

use belljar_spec::egress::{EgressPolicy, EgressSpec, PROXY_PORT};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;
use crate::testing::dns;

const NAME: &str = "slow.example";
const TIMEOUT: Duration = Duration::from_secs(20);

/// Answers the pending queries.
fn answer_all(server: &UdpSocket, queries: &[(Vec<u8>, std::net::SocketAddr)]) {
    for (packet, from) in queries {
        let response = dns::response(packet, |_, _| Ok(vec![[127, 0, 0, 1].into()]));
        server.send_to(&response, from).unwrap();
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LookupEnds {
    DuringSetup,
    AfterNarrowing,
    AfterChange,
}

/// How many connections reached the host whose name was looked up.
fn connections_to_host(lookup: LookupEnds) -> usize {
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    host.set_nonblocking(true).unwrap();
    let authority = format!("{NAME}:{}", host.local_addr().unwrap().port());
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(TIMEOUT)).unwrap();
    let spec = EgressSpec { allow_private: vec![authority.clone()], ..EgressSpec::default() };
    let (setup, allow) = (Some(vec![authority.clone()]), Vec::new());
    let policy = EgressPolicy { run: "r".into(), allow, setup, spec };
    let (flags, secrets) = (SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, Vec::new());
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let port = server.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        let mut outbox = Outbox::default();
        let phases = build_phases(Setup { policy, secrets }, outbox.reporter.clone()).unwrap();
        let setup = phases.setup.as_ref().unwrap();
        setup.proxy.resolver.use_only_server(port);
        serve_phases(&theirs.into(), phases, &mut outbox).unwrap();
    });
    rustix::io::ioctl_fionbio(&ours, false).unwrap();
    let (mut inside, handed) = UnixStream::pair().unwrap();
    inside.set_read_timeout(Some(TIMEOUT)).unwrap();
    let connection = ToProxy::Connection { port: PROXY_PORT };
    send(ours.as_fd(), &connection, Some(handed.as_fd())).unwrap();
    drop(handed);
    write!(inside, "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n").unwrap();
    let mut packet = [0; 4096];
    let queries: Vec<_> = (0..2)
        .map(|_| {
            let (length, from) = server.recv_from(&mut packet).unwrap();
            (packet[..length].to_vec(), from)
        })
        .collect();
    if lookup == LookupEnds::AfterNarrowing {
        send(ours.as_fd(), &ToProxy::Narrow, None).unwrap();
        while !matches!(receive(&ours).unwrap().unwrap().0, FromProxy::Narrowed { closed: 1 }) {}
    }
    if lookup == LookupEnds::AfterChange {
        send(ours.as_fd(), &ToProxy::ChangeList(Box::default()), None).unwrap();
        while !matches!(receive(&ours).unwrap().unwrap().0, FromProxy::ListChanged { closed: 1 }) {}
    }
    answer_all(&server, &queries);
    let mut first = [0; 12];
    let received = inside.read(&mut first).unwrap();
    let expected: &[u8] = match lookup {
        LookupEnds::DuringSetup => b"HTTP/1.1 200",
        LookupEnds::AfterNarrowing => b"",
        LookupEnds::AfterChange => b"HTTP/1.1 403",
    };
    assert_eq!(&first[..received], expected);
    std::thread::sleep(Duration::from_millis(300));
    let connections = std::iter::from_fn(|| host.accept().ok()).count();
    drop(ours);
    thread.join().unwrap();
    connections
}

#[test]
fn a_lookup_pending_at_the_end_of_the_setup_is_never_dialled() {
    assert_eq!(connections_to_host(LookupEnds::DuringSetup), 1);
    assert_eq!(connections_to_host(LookupEnds::AfterNarrowing), 0);
}

#[test]
fn a_lookup_pending_when_the_host_is_removed_is_never_dialled() {
    assert_eq!(connections_to_host(LookupEnds::DuringSetup), 1);
    assert_eq!(connections_to_host(LookupEnds::AfterChange), 0);
}

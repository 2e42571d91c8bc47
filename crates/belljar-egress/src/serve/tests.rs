//! A name that is being looked up when the set-up ends.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;

use belljar_spec::egress::{EgressPolicy, EgressSpec, PROXY_PORT};
use hickory_resolver::proto::op::Message;
use hickory_resolver::proto::rr::{RData, Record, RecordType};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;

const NAME: &str = "slow.example";
const PATIENCE: Duration = Duration::from_secs(20);

/// Answers the questions that came, now.
fn answer_all(server: &UdpSocket, asked: &[(Vec<u8>, std::net::SocketAddr)]) {
    for (packet, from) in asked {
        let asked = Message::from_vec(packet).unwrap();
        let query = asked.queries[0].clone();
        let mut answer = Message::response(asked.metadata.id, asked.metadata.op_code);
        answer.add_query(query.clone());
        if query.query_type() == RecordType::A {
            let data = RData::from(std::net::IpAddr::from([127, 0, 0, 1]));
            answer.add_answer(Record::from_rdata(query.name().clone(), 60, data));
        }
        server.send_to(&answer.to_vec().unwrap(), from).unwrap();
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Answered,
    NarrowedAndAnswered,
}

/// How many came to the host whose name was asked for.
fn arrived(then: Then) -> usize {
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    host.set_nonblocking(true).unwrap();
    let authority = format!("{NAME}:{}", host.local_addr().unwrap().port());
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let spec = EgressSpec { allow_private: vec![authority.clone()], ..EgressSpec::default() };
    let (setup, allow) = (Some(vec![authority.clone()]), Vec::new());
    let policy = EgressPolicy { run: "r".into(), allow, setup, spec };
    let (flags, secrets) = (SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, Vec::new());
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let port = server.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        let mut telling = Telling::default();
        let stages = set_up(Setup { policy, secrets }, telling.reporter.clone()).unwrap();
        let setup = stages.setup.as_ref().unwrap();
        setup.proxy.resolver.ask_only(port);
        serve_stages(&theirs.into(), stages, &mut telling).unwrap();
    });
    rustix::io::ioctl_fionbio(&ours, false).unwrap();
    let (mut inside, handed) = UnixStream::pair().unwrap();
    inside.set_read_timeout(Some(PATIENCE)).unwrap();
    let connection = ToProxy::Connection { port: PROXY_PORT };
    send(ours.as_fd(), &connection, Some(handed.as_fd())).unwrap();
    drop(handed);
    write!(inside, "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n").unwrap();
    let mut packet = [0; 4096];
    let asked: Vec<_> = (0..2)
        .map(|_| {
            let (length, from) = server.recv_from(&mut packet).unwrap();
            (packet[..length].to_vec(), from)
        })
        .collect();
    if then == Then::NarrowedAndAnswered {
        send(ours.as_fd(), &ToProxy::Narrow, None).unwrap();
        while !matches!(receive(&ours).unwrap().unwrap().0, FromProxy::Narrowed { closed: 1 }) {}
    }
    answer_all(&server, &asked);
    let mut first = [0; 12];
    let told = inside.read(&mut first).unwrap();
    assert_eq!(told > 0, then == Then::Answered);
    std::thread::sleep(Duration::from_millis(300));
    let arrived = std::iter::from_fn(|| host.accept().ok()).count();
    drop(ours);
    thread.join().unwrap();
    arrived
}

#[test]
fn a_name_that_is_being_looked_up_leads_nowhere_any_more() {
    assert_eq!(arrived(Then::Answered), 1);
    assert_eq!(arrived(Then::NarrowedAndAnswered), 0);
}

//! SOCKS 5, on the same port as HTTP.
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::support::{Proxy, closed_port, echo, private, read_all, server};
use belljar_spec::egress::{DenyReason, EgressSpec, Via};

const GREETING: [u8; 3] = [5, 1, 0];
const CONNECT: u8 = 1;

fn name(name: &str) -> Vec<u8> {
    [&[3, name.len() as u8], name.as_bytes()].concat()
}

fn request(command: u8, target: &[u8], port: u16) -> Vec<u8> {
    [&[5, command, 0], target, &port.to_be_bytes()].concat()
}

/// The reply code, and the stream after it.
fn exchange(proxy: &Proxy, request: &[u8]) -> (u8, TcpStream) {
    let mut stream = proxy.connect();
    stream.write_all(&GREETING).unwrap();
    let mut chosen = [0; 2];
    stream.read_exact(&mut chosen).unwrap();
    assert_eq!(chosen, [5, 0]);
    stream.write_all(request).unwrap();
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!((reply[0], &reply[2..]), (5, &[0, 1, 0, 0, 0, 0, 0, 0][..]));
    (reply[1], stream)
}

#[test]
fn a_name_is_accepted_and_an_address_only_if_a_rule_names_it() {
    let outside = server(echo);
    let port = outside.port();
    let spec = private(&[format!("localhost:{port}")]);
    let mut proxy = Proxy::start(&[format!("127.0.0.1:{port}")], spec);
    for target in [name("localhost"), name("LOCALHOST."), vec![1, 127, 0, 0, 1], name("127.0.0.1")]
    {
        let (reply, mut stream) = exchange(&proxy, &request(CONNECT, &target, port));
        assert_eq!(reply, 0, "{target:?}");
        stream.write_all(b"hello").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&mut stream), b"hello");
    }
    let mapped = [&[4][..], &[0; 10], &[0xff, 0xff, 127, 0, 0, 1]].concat();
    assert_eq!(exchange(&proxy, &request(CONNECT, &mapped, port)).0, 0);
    let loopback = [&[4][..], &[0; 15], &[1]].concat();
    assert_eq!(exchange(&proxy, &request(CONNECT, &loopback, port)).0, 2);
    let denied = proxy.denied();
    assert_eq!((denied.reason, denied.via), (DenyReason::AddressNotListed, Via::Socks));
    assert_eq!(denied.host, "[::1]");
}

#[test]
fn replies_have_the_right_code() {
    let closed = closed_port();
    let allow = [format!("127.0.0.1:{closed}"), "a.example".to_owned()];
    let proxy = Proxy::start(&allow, EgressSpec::default());
    let here = [1, 127, 0, 0, 1];
    for (command, target, port, expected) in [
        (CONNECT, &name("b.example")[..], 443, 2),
        (CONNECT, &name("a.example"), 22, 2),
        (CONNECT, &name("a..example"), 443, 2),
        (CONNECT, &name("127.1"), 443, 2),
        (CONNECT, &name(""), 443, 2),
        (CONNECT, &name("a.example"), 0, 1),
        (CONNECT, &here, closed, 5),
        (2, &here, closed, 7),
        (3, &here, closed, 7),
        (9, &here, closed, 7),
        (CONNECT, &[9], 0, 8),
    ] {
        let (reply, mut stream) = exchange(&proxy, &request(command, target, port));
        assert_eq!(reply, expected, "{command} {target:?} {port}");
        assert!(read_all(&mut stream).is_empty());
    }
}

#[test]
fn other_handshakes_are_refused() {
    let mut proxy = Proxy::start(&[], EgressSpec::default());
    assert_eq!(proxy.exchange(&[5, 1, 2]).as_bytes(), "\u{5}\u{fffd}".as_bytes());
    assert_eq!(proxy.exchange(&[5, 0]).as_bytes(), "\u{5}\u{fffd}".as_bytes());
    assert_eq!(proxy.exchange(&[5]), "");
    assert_eq!(proxy.exchange(&[5, 1, 0, 4, 1, 0, 1]), "\u{5}\0");
    let rejected = proxy.exchange(&[4, 1, 0, 80, 127, 0, 0, 1, 0]);
    assert!(rejected.is_empty() || rejected.as_bytes() == b"\0[\0\0\0\0\0\0", "{rejected:?}");
    assert_eq!(proxy.denied().host, "(SOCKS 4)");
}

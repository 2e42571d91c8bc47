//! How a tunnel ends, for either side.
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::support::{Proxy, server};
use belljar_spec::egress::{EgressEvent, EgressSpec};

#[test]
fn a_client_that_disconnects_closes_the_upstream_connection() {
    let (gone, ended) = channel();
    let outside = server(move |mut stream: TcpStream| {
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        gone.send(()).unwrap();
    });
    let authority = format!("127.0.0.1:{}", outside.port());
    let proxy = Proxy::start(std::slice::from_ref(&authority), EgressSpec::default());
    let mut stream = proxy.tunnel(&authority);
    stream.write_all(b"x").unwrap();
    drop(stream);
    ended.recv_timeout(crate::support::TIMEOUT).unwrap();
}

#[test]
fn the_last_bytes_of_a_server_that_stops_reading_arrive() {
    let outside = server(|mut stream: TcpStream| {
        stream.read_exact(&mut [0; 10]).unwrap();
        stream.write_all(b"enough").unwrap();
        // With much unread, closing is a reset.
    });
    let authority = format!("127.0.0.1:{}", outside.port());
    let proxy = Proxy::start(std::slice::from_ref(&authority), EgressSpec::default());
    let mut stream = proxy.tunnel(&authority);
    stream.write_all(&[0; 1000]).unwrap();
    let mut message = [0; 6];
    stream.read_exact(&mut message).unwrap();
    assert_eq!(&message, b"enough");
    while stream.write_all(&[0; 100_000]).is_ok() {}
    let error = |event: &EgressEvent| match event {
        EgressEvent::Allowed(allowed) => Some(allowed.error.clone()),
        _ => None,
    };
    let mut proxy = proxy;
    assert!(proxy.wait_for(error).is_some());
}

#[test]
fn an_upstream_reset_is_not_a_clean_end_for_the_client() {
    let outside = server(|mut stream: TcpStream| {
        stream.read_exact(&mut [0; 1]).unwrap();
        stream.write_all(b"half").unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let now = Some(Duration::ZERO);
        rustix::net::sockopt::set_socket_linger(&stream, now).unwrap();
    });
    let authority = format!("127.0.0.1:{}", outside.port());
    let proxy = Proxy::start(std::slice::from_ref(&authority), EgressSpec::default());
    let mut stream = proxy.tunnel(&authority);
    stream.write_all(b"x").unwrap();
    let mut got = Vec::new();
    let end = stream.read_to_end(&mut got).unwrap_err();
    assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(got, b"half");
}

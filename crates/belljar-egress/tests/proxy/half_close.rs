//! Clients that close their sending side: some wait for a response, and some are gone.
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::support::{Proxy, private, read_all, server};
use belljar_spec::egress::{Budget, EgressSpec};

/// A server that reads a request, waits, sends its response, and signals when its connection ended.
fn slow_server(wait: Duration, response: &'static str) -> (String, Receiver<Instant>) {
    let (gone, ended) = channel();
    let outside = server(move |mut stream: TcpStream| {
        let mut piece = [0; 4096];
        assert!(stream.read(&mut piece).unwrap() > 0);
        std::thread::sleep(wait);
        let _ = stream.write_all(response.as_bytes());
        while let Ok(1..) = stream.read(&mut piece) {}
        let _ = gone.send(Instant::now());
    });
    (format!("127.0.0.1:{}", outside.port()), ended)
}

fn get(authority: &str) -> String {
    format!("GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n")
}

#[test]
fn a_request_ends_when_its_client_is_gone() {
    let started = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nbegun";
    for response in ["", started] {
        let (authority, ended) = slow_server(Duration::ZERO, response);
        let budget = Budget { connections: Some(1), ..Budget::default() };
        let spec = EgressSpec { budget, ..private(std::slice::from_ref(&authority)) };
        let proxy = Proxy::start(&[], spec);
        let mut stream = proxy.connect();
        stream.write_all(get(&authority).as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let went = Instant::now();
        drop(stream);
        let ended = ended.recv_timeout(Duration::from_secs(7)).unwrap();
        assert!(ended.saturating_duration_since(went) < Duration::from_secs(6));
    }
}

#[test]
fn a_half_closed_client_gets_its_response_and_then_the_close() {
    let response = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nlater";
    let (authority, _ended) = slow_server(Duration::from_secs(1), response);
    let proxy = Proxy::start(&[], private(std::slice::from_ref(&authority)));
    let started = Instant::now();
    let response = proxy.exchange(get(&authority).as_bytes());
    assert!(
        response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("later"),
        "{response}"
    );
    assert!(started.elapsed() < Duration::from_millis(2500), "{:?}", started.elapsed());
}

#[test]
fn a_slow_response_is_not_cut_off() {
    let outside = server(|mut stream: TcpStream| {
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n").unwrap();
        for _ in 0..5 {
            std::thread::sleep(Duration::from_secs(1));
            stream.write_all(b"x").unwrap();
        }
    });
    let authority = format!("127.0.0.1:{}", outside.port());
    let proxy = Proxy::start(&[], private(std::slice::from_ref(&authority)));
    let mut stream = proxy.connect();
    stream.write_all(get(&authority).as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(read_all(&mut stream).ends_with(b"xxxxx"));
}

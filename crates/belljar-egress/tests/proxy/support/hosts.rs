//! Hosts that tests reach through the proxy, and requests to them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::read_head;

/// Echoes the head of each request, on a connection that stays open.
pub fn keep_alive_http(mut stream: TcpStream) {
    loop {
        let head = read_head(&mut stream);
        if head.is_empty() {
            return;
        }
        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{head}", head.len());
        if stream.write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}

pub fn get(stream: &mut TcpStream, authority: &str) -> String {
    write!(stream, "GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n").unwrap();
    read_response(stream)
}

pub fn read_response(stream: &mut TcpStream) -> String {
    let head = read_head(stream);
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).unwrap();
    head + &String::from_utf8(body).unwrap()
}

/// A host whose accept queue is full, so that the next connection is not even answered.
pub fn full_backlog() -> (TcpListener, Vec<TcpStream>) {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    rustix::net::bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let listener = TcpListener::from(socket);
    let to = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&to, Duration::from_millis(200)) {
        waiting.push(stream);
    }
    (listener, waiting)
}

pub fn arrivals(listener: &TcpListener, wait: Duration) -> usize {
    listener.set_nonblocking(true).unwrap();
    let until = Instant::now() + wait;
    let mut arrived = 0;
    while Instant::now() < until {
        match listener.accept() {
            Ok(_) => arrived += 1,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    arrived
}

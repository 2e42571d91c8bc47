//! Connections that PID 1 relays; this process plays the processes inside.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use belljar_spec::ExitStatus;
use belljar_spec::wire::mux::{MAX_STREAMS, WINDOW};
use belljar_spec::wire::{FIRST_ACCEPT_STREAM, FIRST_CONNECT_STREAM, FromInit, MAX_CONNECTIONS};

use super::driver::{Driver, Users};

/// A port without a listener.
fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

fn dial(port: u16) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// All that comes until the end, while PID 1's messages are read.
fn read_all(driver: &mut Driver, stream: &mut TcpStream) -> Vec<u8> {
    stream.set_nonblocking(true).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    let (mut all, mut buffer) = (Vec::new(), [0; 65536]);
    loop {
        assert!(Instant::now() < until, "no end after {} bytes", all.len());
        match stream.read(&mut buffer) {
            Ok(0) => return all,
            Ok(length) => all.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                driver.listen(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn send_all(driver: &mut Driver, stream: u32, bytes: &[u8]) {
    let until = Instant::now() + Duration::from_secs(20);
    let mut sent = 0;
    while sent < bytes.len() {
        assert!(Instant::now() < until, "only {sent} bytes were taken");
        sent += driver.send(stream, &bytes[sent..]);
        driver.listen(Duration::from_millis(1));
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 % 251) as u8).collect()
}

/// A process inside connects; each direction ends separately.
pub(crate) fn out(users: Users) {
    let (port, other) = (free_port(), free_port());
    let mut driver = Driver::listening(users, &[port, other]);
    let mut one = dial(port);
    let stream = driver.accepted(port);
    assert_eq!(stream, FIRST_ACCEPT_STREAM);
    one.write_all(b"question").unwrap();
    one.shutdown(Shutdown::Write).unwrap();
    driver.wait_for_end(stream);
    assert_eq!(driver.text(stream), "question");
    assert!(!driver.is_free(stream), "the other direction is open");
    let answer = pattern(300_000);
    send_all(&mut driver, stream, &answer);
    driver.end(stream);
    assert!(read_all(&mut driver, &mut one) == answer);
    assert!(driver.is_free(stream));
    // Another port, another number.
    let _two = dial(other);
    assert_eq!(driver.accepted(other), FIRST_ACCEPT_STREAM + 1);
}

/// The launcher connects: to either loopback, and to a port without a listener.
pub(crate) fn into_the_sandbox(users: Users) {
    let mut driver = Driver::start(users);
    let four = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let six = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    for (at, server) in [four, six].into_iter().enumerate() {
        let (stream, port) =
            (FIRST_CONNECT_STREAM + at as u32, server.local_addr().unwrap().port());
        driver.connect(stream, port);
        assert_eq!(driver.send(stream, b"early"), 5); // before anybody knows whether it will come about
        driver.end(stream);
        driver.listen(Duration::from_millis(50));
        let (mut inside, _) = server.accept().unwrap();
        assert_eq!(read_all(&mut driver, &mut inside), b"early");
        inside.set_nonblocking(false).unwrap();
        inside.write_all(b"answer").unwrap();
        drop(inside);
        driver.wait_for_end(stream);
        assert_eq!(driver.text(stream), "answer");
        assert!(driver.is_free(stream));
    }
    let closed = FIRST_CONNECT_STREAM + 2;
    driver.connect(closed, free_port());
    driver.wait_for_end(closed);
    driver.wait_for_reset(closed);
    assert!(driver.is_free(closed));
}

/// Whatever either end does to a connection, PID 1 lives on and keeps nothing of it.
pub(crate) fn that_break(users: Users) {
    let port = free_port();
    let mut driver = Driver::listening(users, &[port]);
    let before = driver.open_files();
    for round in 0..40 {
        let mut one = dial(port);
        let stream = driver.accepted(port);
        one.write_all(&pattern(1000)).unwrap();
        match round % 4 {
            0 => drop(one), // with unread data in flight: a reset
            1 => {
                driver.give_up(stream);
                driver.end(stream);
                assert!(read_to_failure(&mut driver, &mut one));
            }
            2 => {
                send_all(&mut driver, stream, &pattern(20_000));
                drop(one);
            }
            _ => {
                one.shutdown(Shutdown::Both).unwrap();
                send_all(&mut driver, stream, &pattern(10));
            }
        }
        driver.end(stream);
        let until = Instant::now() + Duration::from_secs(20);
        while !driver.is_free(stream) {
            assert!(Instant::now() < until, "round {round}: the stream stays");
            driver.listen(Duration::from_millis(2));
        }
    }
    driver.listen(Duration::from_millis(50));
    assert_eq!(driver.open_files(), before);
}

/// Until the connection is over, for whatever reason.
fn read_to_failure(driver: &mut Driver, stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        driver.listen(Duration::from_millis(2));
        match stream.read(&mut [0; 1000]) {
            Ok(0) => return true,
            Err(error) if error.kind() != ErrorKind::WouldBlock => return true,
            _ => {}
        }
    }
    false
}

/// No more at once than there may be; commands find a stream all the same.
pub(crate) fn wait_in_line(users: Users) {
    let port = free_port();
    let mut driver = Driver::listening(users, &[port]);
    let mut connections: Vec<TcpStream> = (0..MAX_CONNECTIONS + 20).map(|_| dial(port)).collect();
    let streams: Vec<u32> = (0..MAX_CONNECTIONS).map(|_| driver.accepted(port)).collect();
    let more = |message: &FromInit| matches!(message, FromInit::Accepted { .. });
    assert!(!driver.listen(Duration::from_millis(200)).iter().any(more), "the rest waits");
    let command = driver.shell("echo here");
    assert_eq!(driver.exited(command.exec), ExitStatus::Code(0));
    assert_eq!(driver.text(command.stdout), "here\n");
    for (connection, stream) in connections.drain(..30).zip(&streams) {
        drop(connection);
        driver.end(*stream);
    }
    for _ in 0..20 {
        driver.accepted(port);
    }
}

/// Data that is not read waits at its source.
pub(crate) fn of_slow_readers(users: Users) {
    let port = free_port();
    let mut driver = Driver::listening(users, &[port]);
    let before = driver.resident_kib();
    let connections: Vec<TcpStream> = (0..50).map(|_| dial(port)).collect();
    let streams: Vec<u32> = connections.iter().map(|_| driver.accepted(port)).collect();
    let bytes = pattern(8 * 1024 * 1024);
    let mut taken = vec![0; streams.len()];
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        for (stream, taken) in streams.iter().zip(&mut taken) {
            *taken += driver.send(*stream, &bytes[*taken..]);
        }
        driver.listen(Duration::from_millis(1));
    }
    assert!(taken.iter().all(|taken| *taken < bytes.len()), "{taken:?}");
    let grown = driver.resident_kib().saturating_sub(before);
    let limit = streams.len() as u64 * WINDOW / 1024 * 2 + 4096;
    assert!(grown < limit, "{grown} KiB for what waits, not below {limit}");
    // The control: PID 1 still answers.
    let command = driver.shell("echo here");
    assert_eq!(driver.exited(command.exec), ExitStatus::Code(0));
}

/// However many are made and broken off while the launcher is elsewhere, PID 1 lives on.
pub(crate) fn that_break_while_nobody_listens(users: Users) {
    let port = free_port();
    let mut driver = Driver::listening(users, &[port]);
    let mut broken = 0;
    let until = Instant::now() + Duration::from_secs(20);
    while broken < 3 * MAX_STREAMS && Instant::now() < until {
        let address = (Ipv4Addr::LOCALHOST, port).into();
        // When PID 1 accepts no more, the backlog is full, and no other client gets in.
        let Ok(one) = TcpStream::connect_timeout(&address, Duration::from_millis(100)) else {
            break;
        };
        rustix::net::sockopt::set_socket_linger(&one, Some(Duration::ZERO)).unwrap();
        drop(one); // a reset
        broken += 1;
    }
    assert!(broken > MAX_STREAMS, "only {broken} were made");
    std::thread::sleep(Duration::from_millis(100));
    let command = driver.shell("echo here");
    assert_eq!(driver.exited(command.exec), ExitStatus::Code(0));
    driver.listen(Duration::from_millis(500));
    // Everything is free again.
    let _one = dial(port);
    while driver.accepted(port) < FIRST_ACCEPT_STREAM + MAX_CONNECTIONS as u32 {}
    let streams = FIRST_ACCEPT_STREAM..FIRST_ACCEPT_STREAM + MAX_CONNECTIONS as u32;
    assert!(streams.into_iter().all(|stream| driver.is_free(stream)));
}

/// A launcher that requests more streams than there can be gets an error, and nothing else happens.
pub(crate) fn that_find_no_stream(users: Users) {
    let mut driver = Driver::start(users);
    let port = free_port();
    // PID 1 frees none of them before it has received the launcher's end of it.
    for number in 0..MAX_STREAMS as u32 {
        driver.connect(FIRST_CONNECT_STREAM + number, port);
    }
    driver.flush();
    driver.forget(FIRST_CONNECT_STREAM);
    let one_more = FIRST_CONNECT_STREAM + MAX_STREAMS as u32;
    driver.connect(one_more, port);
    assert_eq!(driver.send(one_more, b"early"), 5);
    driver.wait_for_end(one_more);
    assert!(driver.is_free(one_more));
    driver.listen(Duration::from_millis(100));
    let command = driver.shell("echo here");
    assert_eq!(driver.exited(command.exec), ExitStatus::Code(0));
}

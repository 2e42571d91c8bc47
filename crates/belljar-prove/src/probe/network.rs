//! Opens sockets and connections.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::time::{Duration, Instant};

use belljar_linux::sys::attempt;
use rustix::io::Errno;

use super::{Arguments, ProbeError, Probed};
use crate::probe_report::ProbeReport;

const PATIENCE: Duration = Duration::from_secs(2);

fn outcome<T>(result: std::io::Result<T>) -> Result<(), Errno> {
    result.map(drop).map_err(|error| match error.kind() {
        std::io::ErrorKind::TimedOut => Errno::TIMEDOUT,
        _ => Errno::from_io_error(&error).unwrap_or(Errno::IO),
    })
}

/// Sockets that are files; `@name` is an abstract one.
pub(super) fn connect_unix(args: &Arguments<'_>) -> Probed {
    let mut report = ProbeReport::default();
    for at in 0..args.0.len() {
        let name = args.text(at, "a socket")?;
        let address = match name.strip_prefix('@') {
            Some(abstract_name) => UnixAddr::from_abstract_name(abstract_name),
            None => UnixAddr::from_pathname(name),
        };
        report.tried(name, outcome(address.and_then(|address| UnixStream::connect_addr(&address))));
    }
    Ok(report)
}

/// `tcp:ADDRESS` and `udp:ADDRESS`. With `own` first, the address is given to this network's loopback
/// and somebody listens there: only in a network that was made for it.
pub(super) fn connect(args: &Arguments<'_>) -> Probed {
    let own = args.text(0, "given or own")? == "own";
    let mut report = ProbeReport::default();
    let mut listeners = Vec::new();
    for at in 1..args.0.len() {
        let text = args.text(at, "an address")?;
        let (kind, address) = text.split_once(':').ok_or(ProbeError::Argument("tcp: or udp:"))?;
        let address: SocketAddr =
            address.parse().map_err(|_| ProbeError::Argument("an address"))?;
        if own {
            attempt::add_loopback_address(address.ip())
                .map_err(ProbeError::step("add an address"))?;
            if kind == "tcp" {
                let listener = listen_when_ready(address)
                    .map_err(|error| ProbeError::Step(format!("listen on {address}"), error))?;
                listeners.push(listener);
            }
        }
        let began = Instant::now();
        let reach = || match kind {
            "tcp" => outcome(TcpStream::connect_timeout(&address, PATIENCE)),
            _ => outcome(send(address)),
        };
        let mut result = reach();
        // An address that was just given is there before the route to it is.
        while own && result == Err(Errno::NETUNREACH) && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
            result = reach();
        }
        report.tried(text, result);
        report.fact(&format!("ms {text}"), began.elapsed().as_millis());
    }
    Ok(report)
}

/// A new IPv6 address is not usable at once.
fn listen_when_ready(address: SocketAddr) -> std::io::Result<TcpListener> {
    let until = Instant::now() + PATIENCE;
    loop {
        match TcpListener::bind(address) {
            Err(error)
                if error.kind() == std::io::ErrorKind::AddrNotAvailable
                    && Instant::now() < until =>
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
}

fn send(to: SocketAddr) -> std::io::Result<usize> {
    let any = match to {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    UdpSocket::bind((any, 0))?.send_to(b"probe", to)
}

/// `DOMAIN,KIND,PROTOCOL`: makes the socket, and does nothing with it.
pub(super) fn sockets(args: &Arguments<'_>) -> Probed {
    let mut report = ProbeReport::default();
    for at in 0..args.0.len() {
        let text = args.text(at, "a socket")?;
        let numbers: Vec<i32> = text.split(',').filter_map(|number| number.parse().ok()).collect();
        let [domain, kind, protocol] = numbers[..] else {
            return Err(ProbeError::Argument("three numbers"));
        };
        report.tried(text, attempt::socket(domain, kind, protocol));
    }
    Ok(report)
}

/// Listens on every address for a while, and reports connections.
pub(super) fn listen(args: &Arguments<'_>) -> Probed {
    let port = args.number(0, "a port")? as u16;
    let until = Instant::now() + Duration::from_millis(args.number(1, "milliseconds")?.min(20_000));
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
        .map_err(|error| ProbeError::Step(format!("listen on {port}"), error))?;
    let step = |error| ProbeError::Step("accept".to_owned(), error);
    listener.set_nonblocking(true).map_err(step)?;
    let mut out = std::io::stdout();
    writeln!(out, "listening").and_then(|()| out.flush()).map_err(step)?;
    let mut accepted = 0_u64;
    while Instant::now() < until {
        match listener.accept() {
            Ok(_) => {
                accepted += 1;
                writeln!(out, "accepted").and_then(|()| out.flush()).map_err(step)?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => return Err(step(error)),
        }
    }
    let mut report = ProbeReport::default();
    report.fact("accepted", accepted);
    Ok(report)
}

/// `COUNT PORT AUTHORITY`: so many tunnels to the proxy on that port at once, held open together. Tells how many
/// were granted.
pub(super) fn flood(args: &Arguments<'_>) -> Probed {
    let (count, port) = (args.number(0, "a count")?, args.number(1, "a port")? as u16);
    let authority = args.text(2, "an authority")?;
    raise_descriptors();
    let ask = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    let mut held = Vec::new();
    let mut report = ProbeReport::default();
    let open = || -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), PATIENCE)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(ask.as_bytes())?;
        Ok(stream)
    };
    for _ in 0..count {
        held.extend(open().ok());
    }
    report.fact("opened", held.len());
    let mut granted = 0;
    // Some may be left waiting for as long as the others are there.
    let until = Instant::now() + Duration::from_secs(6);
    for stream in &mut held {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(2));
        let _ = stream.set_read_timeout(Some(left));
        let mut head = [0; 12];
        let is_granted =
            std::io::Read::read_exact(stream, &mut head).is_ok() && head.ends_with(b" 200");
        granted += u64::from(is_granted);
    }
    report.fact("granted", granted);
    drop(held);
    // A well-formed request must still work.
    let until = Instant::now() + Duration::from_secs(10);
    let mut is_alive = false;
    while !is_alive && Instant::now() < until {
        let mut head = [0; 12];
        is_alive = open().is_ok_and(|mut stream| {
            std::io::Read::read_exact(&mut stream, &mut head).is_ok() && head.ends_with(b" 200")
        });
        std::thread::sleep(Duration::from_millis(20));
    }
    report.fact("alive", is_alive);
    Ok(report)
}

/// As many as the hard limit lets.
pub(crate) fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    // One that cannot be raised is noticed where it is reached.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

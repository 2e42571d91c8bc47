//! Opens connections to an engine, each with a time limit. Nothing is sent here except the request that takes one
//! over for a container's channel.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};

use super::endpoint::Endpoint;
use super::resolve;
use super::ssh::Ssh;

/// Less than a probe has, so that it can report what happened.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(3);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_HEAD: usize = 16 * 1024;
/// A machine that is gone without notice is detected after a minute and a half.
const KEEP_ALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 6);

/// One connection, before anything was sent on it.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) stream: Stream,
    /// The process that it goes through.
    pub(super) ssh: Option<Ssh>,
}

#[derive(Debug)]
pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

pub(super) fn open(endpoint: &Endpoint) -> io::Result<Line> {
    match endpoint {
        Endpoint::Unix(path) => Ok(Line { stream: Stream::Unix(dialled(path)?), ssh: None }),
        Endpoint::Tcp { host, port } => {
            Ok(Line { stream: Stream::Tcp(tcp(host, *port)?), ssh: None })
        }
        Endpoint::Ssh(place) => {
            let (stream, ssh) = Ssh::start(place)?;
            Ok(Line { stream: Stream::Unix(stream), ssh: Some(ssh) })
        }
    }
}

/// Whether a process listens. One whose queue is full does, even if nothing else is done.
pub(super) fn look(path: &Path) -> io::Result<()> {
    match connect_once(path) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Waits in no queue for ever, as a blocking connect would.
pub(super) fn dialled(path: &Path) -> io::Result<UnixStream> {
    let until = Instant::now() + CONNECTION_TIMEOUT;
    loop {
        match connect_once(path) {
            Ok(stream) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(Errno::AGAIN) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(Errno::AGAIN) => {
                let full = "it takes no connections; its queue is full";
                return Err(io::Error::new(io::ErrorKind::TimedOut, full));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn connect_once(path: &Path) -> Result<UnixStream, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let until = Instant::now() + CONNECTION_TIMEOUT;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "it has no address");
    for address in resolve::addresses(host, port)? {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                let (idle, between, times) = KEEP_ALIVE;
                sockopt::set_socket_keepalive(&stream, true)?;
                sockopt::set_tcp_keepidle(&stream, idle)?;
                sockopt::set_tcp_keepintvl(&stream, between)?;
                sockopt::set_tcp_keepcnt(&stream, times)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Takes over a connection for a container's standard streams. What is written to it goes to PID 1's
/// input as it is; what comes is in packets.
pub(super) fn attach(
    endpoint: &Endpoint,
    (major, minor): (u32, u32),
    container: &str,
) -> io::Result<(OwnedFd, Option<Ssh>)> {
    let request = format!(
        "POST /v{major}.{minor}/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1 HTTP/1.1\r\n\
         Host: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
    );
    let Line { stream, ssh } = open(endpoint)?;
    let upgraded: io::Result<OwnedFd> = match stream {
        Stream::Unix(mut stream) => {
            stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
            upgrade(&mut stream, &request).map(|()| stream.into())
        }
        Stream::Tcp(mut stream) => {
            stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
            upgrade(&mut stream, &request).map(|()| stream.into())
        }
    };
    match (upgraded, ssh) {
        (Ok(stream), ssh) => Ok((stream, ssh)),
        (Err(error), Some(ssh)) if ended(error.kind()) => Err(ssh.explain(error)),
        (Err(error), _) => Err(error),
    }
}

/// There was no response, as opposed to a refusal.
fn ended(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Byte by byte: whatever follows the head is the channel's.
fn upgrade(stream: &mut (impl Read + Write), request: &str) -> io::Result<()> {
    stream.write_all(request.as_bytes())?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_HEAD {
            return Err(io::Error::other("the engine's answer has no end"));
        }
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let first = head.lines().next().unwrap_or_default();
    match first.split(' ').nth(1) {
        Some("101" | "200") => Ok(()),
        _ => Err(io::Error::other(format!("the engine answered: {}", reason(stream, &head)))),
    }
}

/// The message of a refusal, or at least its first line.
fn reason(stream: &mut impl Read, head: &str) -> String {
    #[derive(serde::Deserialize)]
    struct ErrorBody {
        message: String,
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<u64>().ok())?
    });
    let mut body = Vec::new();
    let most = length.unwrap_or(0).min(MAX_HEAD as u64);
    let _ = stream.take(most).read_to_end(&mut body); // what came is shown
    let message = serde_json::from_slice(&body).map(|body: ErrorBody| body.message);
    let text = message.unwrap_or_else(|_| head.lines().next().unwrap_or_default().to_owned());
    belljar_spec::text::escape(text.trim().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Both {
        answer: io::Cursor<Vec<u8>>,
        asked: Vec<u8>,
    }

    impl Read for Both {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.answer.read(buffer)
        }
    }

    impl Write for Both {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.asked.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn answered(with: &[u8]) -> (Both, io::Result<()>) {
        let mut both = Both { answer: io::Cursor::new(with.to_vec()), asked: Vec::new() };
        let done = upgrade(&mut both, "POST");
        (both, done)
    }

    #[test]
    fn what_follows_the_head_is_left_alone() {
        let (both, done) = answered(b"HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\n\r\nfirst bytes");
        assert!(done.is_ok());
        assert_eq!(both.asked, b"POST");
        assert_eq!(&both.answer.get_ref()[both.answer.position() as usize..], b"first bytes");
    }

    #[test]
    fn a_refusal_and_an_endless_head_are_errors() {
        let (_, done) = answered(b"HTTP/1.1 404 Not Found\r\n\r\n");
        assert!(done.unwrap_err().to_string().contains("404"));
        assert!(answered(&vec![b'x'; 20_000]).1.is_err());
        assert!(answered(b"HTTP/1.1 101").1.is_err());
    }
}

//! A minimal HTTP client for an engine's socket, with a timeout.
//!
//! `xtask` uses this file too. The engine's own client is never used to check what belljar did.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long an engine may be silent. It may be starting a container on a busy machine.
const SILENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn is_good(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).trim().to_owned()
    }

    /// Any status but success is an error with the engine's message.
    pub fn good(self) -> io::Result<Self> {
        if self.is_good() {
            return Ok(self);
        }
        Err(io::Error::other(format!("the engine says {}: {}", self.status, self.text())))
    }
}

pub fn get(socket: &Path, target: &str) -> io::Result<Answer> {
    exchange(socket, "GET", target, "application/json", &[], SILENCE)
}

/// The same for a caller that polls.
pub fn get_within(socket: &Path, target: &str, silence: Duration) -> io::Result<Answer> {
    exchange(socket, "GET", target, "application/json", &[], silence)
}

pub fn delete(socket: &Path, target: &str) -> io::Result<Answer> {
    exchange(socket, "DELETE", target, "application/json", &[], SILENCE)
}

pub fn post(socket: &Path, target: &str, kind: &str, body: &[u8]) -> io::Result<Answer> {
    exchange(socket, "POST", target, kind, body, SILENCE)
}

/// In HTTP/1.0 an answer ends where the connection does, and never comes in chunks.
fn exchange(
    socket: &Path,
    method: &str,
    target: &str,
    kind: &str,
    body: &[u8],
    silence: Duration,
) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(silence))?;
    stream.set_write_timeout(Some(silence))?;
    let length = body.len();
    write!(
        stream,
        "{method} {target} HTTP/1.0\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
    )?;
    stream.write_all(body)?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all)?;
    let end = all.windows(4).position(|four| four == b"\r\n\r\n");
    let bad = || io::Error::other("the engine's answer is no HTTP");
    let head = all.get(..end.ok_or_else(bad)?).map(String::from_utf8_lossy).ok_or_else(bad)?;
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).ok_or_else(bad)?;
    let body = all.split_off(end.ok_or_else(bad)? + 4);
    Ok(Answer { status, body })
}

//! HTTP/1.1 of the model service: requests with a length or in chunks, replies as a document or as events.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use serde_json::Value;

/// A longer request is a fault of the test.
const MAX_BYTES: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct HttpRequest {
    pub(super) target: String,
    /// Names in lower case.
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl HttpRequest {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// One client, and what was read of it beyond the last request.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: UnixStream,
    read: Vec<u8>,
}

/// An event's name, if its API uses names, and its data.
pub(super) type ServerEvent = (Option<&'static str>, Value);

impl Connection {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, read: Vec::new() }
    }

    /// `None`: the client has left.
    pub(super) fn request(&mut self) -> io::Result<Option<HttpRequest>> {
        let Some(end) = self.until(b"\r\n\r\n")? else { return Ok(None) };
        let head: Vec<u8> = self.read.drain(..end).collect();
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut lines = head.split("\r\n");
        let target = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.trim().to_lowercase(), value.trim().to_owned()))
            .collect();
        let mut request = HttpRequest { target: target.to_owned(), headers, body: Vec::new() };
        request.body = if request.header("transfer-encoding").is_some() {
            self.chunks()?
        } else {
            let length = request.header("content-length").and_then(|text| text.parse().ok());
            self.exactly(length.unwrap_or(0))?
        };
        Ok(Some(request))
    }

    /// The position behind the mark; `None` where the stream ends before.
    fn until(&mut self, mark: &[u8]) -> io::Result<Option<usize>> {
        loop {
            let found = self.read.windows(mark.len()).position(|window| window == mark);
            if let Some(at) = found {
                return Ok(Some(at + mark.len()));
            }
            if !self.more()? {
                return Ok(None);
            }
        }
    }

    /// Whether there was anything more.
    fn more(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 64 * 1024];
        let length = self.stream.read(&mut buffer)?;
        self.read.extend(&buffer[..length]);
        match self.read.len() {
            0..=MAX_BYTES => Ok(length > 0),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    pub(super) fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.read.len() < length {
            if !self.more()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.read.drain(..length).collect())
    }

    fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let end = self.until(b"\r\n")?.ok_or(io::ErrorKind::UnexpectedEof)?;
            let line: Vec<u8> = self.read.drain(..end).collect();
            let line = String::from_utf8_lossy(&line).into_owned();
            let digits = line.trim().split(';').next().unwrap_or_default();
            let length = usize::from_str_radix(digits, 16).map_err(io::Error::other)?;
            let chunk = self.exactly(length + 2)?;
            if length == 0 {
                return Ok(body);
            }
            body.extend(&chunk[..length]);
        }
    }

    pub(super) fn document(&mut self, status: u16, document: &Value) -> io::Result<()> {
        let body = document.to_string();
        let length = body.len();
        write!(
            self.stream,
            "HTTP/1.1 {status} As-Scripted\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        )
    }

    /// Each event in a chunk of its own.
    pub(super) fn events(&mut self, events: &[ServerEvent]) -> io::Result<()> {
        write!(
            self.stream,
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )?;
        for (name, data) in events {
            let name = name.map(|name| format!("event: {name}\n")).unwrap_or_default();
            let text = format!("{name}data: {data}\n\n");
            write!(self.stream, "{:x}\r\n{text}\r\n", text.len())?;
            self.stream.flush()?;
        }
        write!(self.stream, "0\r\n\r\n")
    }

    pub(super) fn until_closed(&mut self) -> io::Result<()> {
        while self.more()? {
            self.read.clear();
        }
        Ok(())
    }
}

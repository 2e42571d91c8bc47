//! A lenient HTTP/1 server: a request that was smuggled past the proxy appears here as a separate request.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::counts::{Request, Watch, spelled};
use super::pages::{Asked, Body, Page, page};

const MAX_HEAD: usize = 64 * 1024;
const MAX_BODY: usize = 1 << 20;
pub(super) const BETWEEN_EVENTS: Duration = Duration::from_millis(150);
pub(super) static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// What one server's connections share.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) watch: Watch,
    pub(super) files: PathBuf,
}

pub(super) async fn serve<S>(stream: S, at: SocketAddr, sni: Option<String>, site: &Site)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut connection = Connection { stream, read: Vec::new() };
    // Whoever is on the other side may leave at any time.
    while let Ok(true) = connection.one(at, sni.as_ref(), site).await {}
    let _ = connection.stream.shutdown().await;
}

struct Connection<S> {
    stream: S,
    /// What came, and was not looked at yet.
    read: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// One request. `false` when there is no next one.
    async fn one(&mut self, at: SocketAddr, sni: Option<&String>, site: &Site) -> io::Result<bool> {
        let Some(end) = self.until(b"\r\n\r\n", MAX_HEAD).await? else { return Ok(false) };
        let head: Vec<u8> = self.read.drain(..end).collect();
        let head = String::from_utf8_lossy(&head).into_owned();
        let body = self.body(&head).await?;
        let body = String::from_utf8_lossy(&body).into_owned();
        site.watch.requested(Request {
            at: spelled(at),
            sni: sni.cloned(),
            head: head.clone(),
            body: body.clone(),
        });
        let mut argv = head.split(' ');
        let (method, target) = (argv.next().unwrap_or_default(), argv.next().unwrap_or("/"));
        let asked = Asked {
            method,
            path: path_of(target),
            wants_upgrade: header(&head, "upgrade").is_some(),
            head: &head,
            body: &body,
        };
        let page = page(&asked, &site.files);
        self.answer(&page, method).await?;
        let is_last = header(&head, "connection").is_some_and(|value| value.contains("close"));
        Ok(!is_last && page.body != Body::Upgraded)
    }

    /// The position behind the mark; `None` where the stream ends before.
    async fn until(&mut self, mark: &[u8], most: usize) -> io::Result<Option<usize>> {
        loop {
            let found = self.read.windows(mark.len()).position(|window| window == mark);
            if let Some(at) = found {
                return Ok(Some(at + mark.len()));
            }
            if self.read.len() > most || self.stream.read_buf(&mut self.read).await? == 0 {
                return Ok(None);
            }
        }
    }

    async fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.read.len() < length {
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.read.drain(..length).collect())
    }

    /// `Transfer-Encoding` overrides `Content-Length`, as RFC 9112 says.
    async fn body(&mut self, head: &str) -> io::Result<Vec<u8>> {
        if header(head, "transfer-encoding").is_some_and(|value| value.contains("chunked")) {
            return self.chunks().await;
        }
        let length = header(head, "content-length").and_then(|value| value.parse().ok());
        self.exactly(length.unwrap_or(0).min(MAX_BODY)).await
    }

    async fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let Some(end) = self.until(b"\r\n", MAX_HEAD).await? else { return Ok(body) };
            let line: Vec<u8> = self.read.drain(..end).collect();
            let line = String::from_utf8_lossy(&line).into_owned();
            let digits = line.trim().split(';').next().unwrap_or_default();
            let length = usize::from_str_radix(digits, 16).unwrap_or(0);
            let chunk = self.exactly(length.min(MAX_BODY) + 2).await?;
            if length == 0 || body.len() > MAX_BODY {
                return Ok(body);
            }
            body.extend(&chunk[..length]);
        }
    }

    async fn answer(&mut self, page: &Page, method: &str) -> io::Result<()> {
        let mut head = format!("HTTP/1.1 {} As Told\r\n", page.status);
        for (name, value) in &page.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        match &page.body {
            Body::Bytes(bytes) => head.push_str(&format!("content-length: {}\r\n", bytes.len())),
            Body::Zeros(count) => head.push_str(&format!("content-length: {count}\r\n")),
            Body::Events(_) => head.push_str("transfer-encoding: chunked\r\n"),
            Body::Upgraded => {}
        }
        head.push_str("\r\n");
        let mut first = head.into_bytes();
        let has_body = method != "HEAD";
        if let (Body::Bytes(bytes), true) = (&page.body, has_body) {
            first.extend(bytes); // in one packet, where it fits
        }
        self.stream.write_all(&first).await?;
        match page.body {
            Body::Zeros(count) if has_body => self.zeros(count).await?,
            Body::Events(count) if has_body => self.events(count).await?,
            Body::Upgraded => self.echo().await?,
            _ => {}
        }
        self.stream.flush().await
    }

    async fn zeros(&mut self, mut left: u64) -> io::Result<()> {
        while left > 0 {
            let length = left.min(ZEROS.len() as u64);
            self.stream.write_all(&ZEROS[..length as usize]).await?;
            left -= length;
        }
        Ok(())
    }

    async fn events(&mut self, count: u32) -> io::Result<()> {
        for number in 1..=count {
            let event = format!("data: event {number}\n\n");
            let chunk = format!("{:x}\r\n{event}\r\n", event.len());
            self.stream.write_all(chunk.as_bytes()).await?;
            self.stream.flush().await?;
            tokio::time::sleep(BETWEEN_EVENTS).await;
        }
        self.stream.write_all(b"0\r\n\r\n").await
    }

    async fn echo(&mut self) -> io::Result<()> {
        self.stream.flush().await?;
        loop {
            let bytes = std::mem::take(&mut self.read);
            self.stream.write_all(&bytes).await?;
            self.stream.flush().await?;
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Ok(());
            }
        }
    }
}

/// Of an absolute target too.
fn path_of(target: &str) -> &str {
    match target.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('/') => {
            rest.find('/').map_or("/", |at| &rest[at..])
        }
        _ => target,
    }
}

/// The first one of that name, in lower case.
fn header(head: &str, name: &str) -> Option<String> {
    let lines = head.split("\r\n").skip(1);
    let mut pairs = lines.filter_map(|line| line.split_once(':'));
    let found = pairs.find(|(known, _)| known.trim().eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.trim().to_lowercase())
}

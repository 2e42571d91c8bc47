//! Entry points for the fuzz targets: the parsers that see hostile bytes first. Not part of the public contract.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use belljar_spec::Host;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http::body::Body;
use crate::http::framing::monitor_framing;
use crate::inbound::http_server;
use crate::inbound::sniff_tls::{Expected, SniffResult, Sniffer};

/// Whether a tunnel that starts with these bytes is let through, when they arrive in pieces of this length. `None`:
/// more bytes are needed.
pub fn sniff(host: &Host, port: u16, bytes: &[u8], piece: usize) -> Option<bool> {
    let mut sniffer = Sniffer::new(host, Expected::at(port));
    for some in bytes.chunks(piece.max(1)) {
        match sniffer.feed(some) {
            SniffResult::NeedMore => {}
            SniffResult::Allowed => return Some(true),
            SniffResult::Denied(_) => return Some(false),
        }
    }
    None
}

/// A request that was handed over without a fault up to the end of its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedRequest {
    pub method: String,
    pub target: String,
    pub body: Vec<u8>,
}

/// The requests that are accepted from these bytes, when they arrive in pieces of this length.
pub fn requests(bytes: &[u8], piece: usize) -> Vec<ParsedRequest> {
    let taken = Arc::new(Mutex::new(Vec::new()));
    let (io, framing) = monitor_framing(Pieces { left: bytes.to_vec(), piece: piece.max(1) });
    let service = service_fn(|request: Request<Incoming>| {
        let (framing, taken) = (framing.clone(), taken.clone());
        async move {
            let is_good = framing.fault().is_none();
            let (parts, body) = request.into_parts();
            let body = body.collect().await;
            if let (true, None, Ok(body)) = (is_good, framing.fault(), body) {
                let (method, target) = (parts.method.to_string(), parts.uri.to_string());
                let body = body.to_bytes().to_vec();
                let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
                taken.push(ParsedRequest { method, target, body });
            }
            Ok::<_, Infallible>(Response::new(Body::text(String::new())))
        }
    });
    if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() {
        let _ = runtime.block_on(http_server::serve_h1(io, service)); // any end is fine
    }
    std::mem::take(&mut *taken.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A peer that sends its bytes in pieces and discards what it receives.
struct Pieces {
    left: Vec<u8>,
    piece: usize,
}

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = self.piece.min(self.left.len()).min(buffer.remaining());
        let rest = self.left.split_off(length);
        let piece = std::mem::replace(&mut self.left, rest);
        buffer.put_slice(&piece);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pieces {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

//! Monitors HTTP/1 requests while hyper reads them, and finds those with ambiguous framing (request smuggling).
//!
//! hyper resolves most ambiguity silently: it drops a length beside `Transfer-Encoding`, drops an equal second
//! length, and accepts a line without CR. What it forwards is unambiguous, but such a request is an attempt to be
//! read differently elsewhere, so it is denied. Nothing is altered or delayed here: a fault is noted before hyper
//! sees the bytes, and checked when hyper hands over the request. What is accepted here ends for hyper where it ends
//! here, so both find the next head at the same place.

mod head;
mod line;
mod monitor;

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::monitor::FramingMonitor;
use crate::io::delegate::delegate_write;

/// What is known about the requests of one connection.
#[derive(Debug, Default)]
pub(crate) struct Framing {
    fault: OnceLock<Fault>,
    stopped: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    /// The number of the request with the fault; the first of a connection is 0.
    request: u64,
    what: &'static str,
}

impl Framing {
    /// The fault in what was read so far. It is permanent.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        self.fault.get().map(|fault| fault.what)
    }

    /// The same, but only up to this request: what follows a CONNECT request is for the other end of the tunnel, and
    /// need not be HTTP.
    pub(crate) fn fault_up_to(&self, request: u64) -> Option<&'static str> {
        self.fault.get().filter(|fault| fault.request <= request).map(|fault| fault.what)
    }

    /// No more HTTP follows.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

/// A connection on which hyper reads requests.
pub(crate) struct MonitoredIo<I> {
    io: I,
    monitor: FramingMonitor,
}

pub(crate) fn monitor_framing<I>(io: I) -> (MonitoredIo<I>, Arc<Framing>) {
    let framing = Arc::new(Framing::default());
    (MonitoredIo { io, monitor: FramingMonitor::new(framing.clone()) }, framing)
}

impl<I> MonitoredIo<I> {
    /// For when no more HTTP follows.
    pub(crate) fn into_inner(self) -> I {
        self.io
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for MonitoredIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        self.monitor.observe(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for MonitoredIo<I> {
    delegate_write!(io: poll_write, poll_write_vectored, is_write_vectored, poll_flush, poll_shutdown);
}

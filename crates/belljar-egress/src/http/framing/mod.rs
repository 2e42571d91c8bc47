//! Looks along while hyper reads HTTP/1 requests, and finds those whose end can be seen in two ways.
//!
//! hyper settles most such requests silently: a length beside `Transfer-Encoding` is dropped, an equal second
//! length too, and a line may end without CR. What it sends on has one reading, but whoever wrote such a
//! request hopes that somebody reads it in another way, so it is refused. Nothing is altered or held back here:
//! a fault is only noted, before hyper has seen the bytes, and asked for when hyper hands over the request.
//! Everything that is accepted here ends for hyper where it ends here, so heads are found where hyper finds them.

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

/// What is known about the requests of one connection.
#[derive(Debug, Default)]
pub(crate) struct Framing {
    fault: OnceLock<Fault>,
    stopped: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    /// Of the request that it was found in: 0 for the first of the connection.
    request: u64,
    what: &'static str,
}

impl Framing {
    /// What is wrong with something that was read so far. It never becomes right again.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        self.fault.get().map(|fault| fault.what)
    }

    /// The same, but nothing behind this request, the first of which is 0: what follows a request for a tunnel
    /// is meant for the other end of it, and need not be HTTP.
    pub(crate) fn fault_up_to(&self, request: u64) -> Option<&'static str> {
        self.fault.get().filter(|fault| fault.request <= request).map(|fault| fault.what)
    }

    /// No more HTTP comes.
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
    /// When no more HTTP comes.
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
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

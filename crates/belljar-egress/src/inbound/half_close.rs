//! Delays a client's end-of-stream while its requests are still pending.
//!
//! A client that closed its sending side may still wait for the response (`nc -N`), or be gone: TCP shows both in the
//! same way. So the end is withheld from hyper until the response is sent or a grace period passes.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::http::body::{Body, BodyError};
use crate::io::delegate::delegate_write;

/// How long to wait without having anything to send to the client. After that its connection is released.
pub(crate) const HALF_CLOSE_GRACE: Duration = Duration::from_secs(3);

/// The requests of one connection whose responses are not complete.
#[derive(Debug, Default)]
pub(crate) struct PendingRequests {
    pending: AtomicUsize,
    reader: Mutex<Option<Waker>>,
}

impl PendingRequests {
    pub(crate) fn begin(self: &Arc<Self>) -> PendingRequest {
        self.pending.fetch_add(1, Ordering::Relaxed);
        PendingRequest(self.clone())
    }

    fn reader(&self) -> std::sync::MutexGuard<'_, Option<Waker>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One pending request, until this is dropped.
pub(crate) struct PendingRequest(Arc<PendingRequests>);

impl PendingRequest {
    /// Keeps the request pending until this response body is sent.
    pub(crate) fn track(self, body: Body) -> TrackedBody {
        TrackedBody { body, _request: self }
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
        if let Some(reader) = self.0.reader().take() {
            reader.wake();
        }
    }
}

/// A response body that keeps its request pending.
pub(crate) struct TrackedBody {
    body: Body,
    _request: PendingRequest,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A client connection on which requests are read.
pub(crate) struct HalfCloseIo<I> {
    io: I,
    requests: Arc<PendingRequests>,
    /// Set at end-of-stream: until when it is withheld from the reader.
    ended: Option<Pin<Box<Sleep>>>,
}

impl<I> HalfCloseIo<I> {
    pub(crate) fn new(io: I, requests: &Arc<PendingRequests>) -> Self {
        Self { io, requests: requests.clone(), ended: None }
    }

    pub(crate) fn into_inner(self) -> I {
        self.io
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        *self.requests.reader() = Some(cx.waker().clone());
        if self.requests.pending.load(Ordering::Relaxed) == 0 {
            return Poll::Ready(());
        }
        match &mut self.ended {
            Some(until) => until.as_mut().poll(cx),
            None => Poll::Ready(()),
        }
    }

    fn extend_grace(&mut self) {
        if let Some(until) = &mut self.ended {
            until.as_mut().reset(Instant::now() + HALF_CLOSE_GRACE);
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for HalfCloseIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ended.is_none() {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
            if buffer.filled().len() > before || buffer.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            self.ended = Some(Box::pin(sleep(HALF_CLOSE_GRACE)));
        }
        self.poll_end(cx).map(Ok)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for HalfCloseIo<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(cx, bytes))?;
        self.extend_grace();
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, parts))?;
        self.extend_grace();
        Poll::Ready(Ok(written))
    }

    delegate_write!(io: is_write_vectored, poll_flush, poll_shutdown);
}

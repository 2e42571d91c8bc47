//! A connection to a host, which ends when the permit that it was opened with is withdrawn.

use std::io::{self, IoSlice};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::permit::Permit;

#[derive(Debug)]
pub(crate) struct UpstreamSocket {
    stream: Arc<TcpStream>,
    /// Judged anew with each change of the list, for as long as the connection is open.
    _permit: Arc<Permit>,
}

impl UpstreamSocket {
    pub(crate) fn new(stream: Arc<TcpStream>, permit: Arc<Permit>) -> Self {
        Self { stream, _permit: permit }
    }
}

impl Deref for UpstreamSocket {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.stream
    }
}

fn would_block<T>(tried: &io::Result<T>) -> bool {
    matches!(tried, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

impl AsyncRead for UpstreamSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            let tried = self.stream.try_read_buf(buf);
            if !would_block(&tried) {
                return Poll::Ready(tried.map(drop));
            }
        }
    }
}

impl AsyncWrite for UpstreamSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            let tried = self.stream.try_write(bytes);
            if !would_block(&tried) {
                return Poll::Ready(tried);
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            let tried = self.stream.try_write_vectored(parts);
            if !would_block(&tried) {
                return Poll::Ready(tried);
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match shutdown(&*self.stream, Shutdown::Write) {
            Ok(()) | Err(Errno::NOTCONN) => Ok(()), // the host may be gone
            Err(error) => Err(error.into()),
        })
    }
}

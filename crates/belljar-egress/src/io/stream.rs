//! Wraps a connected socket, TCP or Unix.
//!
//! In the jail clients connect by TCP; on engines the supervisor hands over one end of a Unix socket pair.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketType, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::upstream::socket::UpstreamSocket;

#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// To a host.
    Upstream(UpstreamSocket),
}

macro_rules! each {
    ($self:expr, $stream:ident => $do:expr) => {
        match $self {
            Stream::Tcp($stream) => $do,
            Stream::Unix($stream) => $do,
            Stream::Upstream($stream) => $do,
        }
    };
}

impl Stream {
    pub(crate) fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        if sockopt::socket_type(&fd)? != SocketType::STREAM {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        rustix::io::ioctl_fionbio(&fd, true)?;
        match sockopt::socket_domain(&fd)? {
            AddressFamily::UNIX => UnixStream::from_std(fd.into()).map(Self::Unix),
            AddressFamily::INET | AddressFamily::INET6 => {
                let stream = TcpStream::from_std(fd.into())?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    pub(crate) async fn readable(&self) -> io::Result<()> {
        each!(self, stream => stream.readable().await)
    }

    pub(crate) async fn writable(&self) -> io::Result<()> {
        each!(self, stream => stream.writable().await)
    }

    pub(crate) fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        each!(self, stream => stream.try_read(into))
    }

    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        each!(self, stream => stream.try_write(bytes))
    }

    /// Peeks at the first byte; `None` at end-of-stream.
    pub(crate) async fn first_byte(&self) -> io::Result<Option<u8>> {
        loop {
            self.readable().await?;
            let mut byte = [0];
            let look = || {
                let (got, _) = each!(self, stream => rustix::net::recv(stream.as_fd(), &mut byte, RecvFlags::PEEK))?;
                Ok(got)
            };
            match each!(self, stream => stream.try_io(Interest::READABLE, look)) {
                Ok(0) => return Ok(None),
                Ok(_) => return Ok(Some(byte[0])),
                Err(error) if is_retryable(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) async fn write_all_bytes(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.try_write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if is_retryable(&error) => self.writable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Resets the connection, so that the peer sees that the data is incomplete. A Unix socket pair has no reset and
    /// only ends.
    pub(crate) fn reset(self) {
        // The peer may be gone already.
        let _ = match &self {
            Self::Tcp(stream) => sockopt::set_socket_linger(stream, Some(Duration::ZERO)),
            Self::Upstream(stream) => sockopt::set_socket_linger(&**stream, Some(Duration::ZERO)),
            Self::Unix(stream) => rustix::net::shutdown(stream, Shutdown::Both),
        };
    }

    /// Closes the sending side; what was written still arrives. A peer that is gone is not an error.
    pub(crate) fn shutdown_write(&self) {
        let _ = each!(self, stream => rustix::net::shutdown(stream.as_fd(), Shutdown::Write));
    }
}

/// Whether the operation should be tried again.
pub(crate) fn is_retryable(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        each!(self, stream => stream.is_write_vectored())
    }
}

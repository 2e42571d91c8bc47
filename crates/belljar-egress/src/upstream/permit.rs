//! The permission of one access, which a change of the run's list can withdraw, and the sockets opened with it.
//!
//! Whoever wants to connect opens the socket here: under the permit's lock, so that a socket is either refused or
//! known. Withdrawing disconnects every known socket at once, also one that is still connecting. So when the change of
//! a list is reported, no connection is left that the new list does not allow, and none can come into being.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, connect, connect_unspec, shutdown,
    socket_with,
};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Kept by the access, and by each of its connections, which can outlive it in a pool.
#[derive(Debug, Default)]
pub(crate) struct Permit {
    state: Mutex<PermitState>,
    on_withdrawal: Notify,
}

#[derive(Debug, Default)]
struct PermitState {
    validity: Validity,
    holder: Holder,
    sockets: Vec<Weak<TcpStream>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Validity {
    #[default]
    Valid,
    Withdrawn,
}

/// What keeps the permit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The access that it was given for.
    #[default]
    Access,
    /// Only connections that were made for it and wait for further requests.
    Pool,
}

impl Permit {
    /// Begins to connect. `PermissionDenied` if the permit was withdrawn.
    pub(crate) fn open(&self, to: SocketAddr) -> io::Result<Arc<TcpStream>> {
        let mut state = self.state();
        if state.validity == Validity::Withdrawn {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let stream = Arc::new(TcpStream::from_std(socket.into())?);
        state.sockets.retain(|socket| socket.strong_count() > 0);
        state.sockets.push(Arc::downgrade(&stream));
        Ok(stream)
    }

    /// From here on nothing can be opened with it, and what was is disconnected: what was not sent yet never is.
    pub(crate) fn withdraw(&self) {
        let mut state = self.state();
        state.validity = Validity::Withdrawn;
        for socket in state.sockets.drain(..).filter_map(|socket| socket.upgrade()) {
            // A disconnect also drops what the kernel has not sent; a shutdown would still send it.
            if connect_unspec(&*socket).is_err() {
                let _ = shutdown(&*socket, Shutdown::Both); // it was not connected
            }
        }
        drop(state);
        self.on_withdrawal.notify_waiters();
    }

    pub(crate) fn is_withdrawn(&self) -> bool {
        self.state().validity == Validity::Withdrawn
    }

    pub(crate) async fn withdrawn(&self) {
        let mut notified = std::pin::pin!(self.on_withdrawal.notified());
        notified.as_mut().enable();
        if !self.is_withdrawn() {
            notified.await;
        }
    }

    /// The access is over; its connections may be used by others.
    pub(crate) fn end_access(&self) {
        self.state().holder = Holder::Pool;
    }

    pub(crate) fn holder(&self) -> Holder {
        self.state().holder
    }

    fn state(&self) -> MutexGuard<'_, PermitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// What a host reads that reads only after the withdrawal, and how its connection ends.
    async fn read_after(withdraws: bool) -> (usize, Option<io::ErrorKind>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let permit = Permit::default();
        let stream = permit.open(listener.local_addr().unwrap()).unwrap();
        let (mut host, _) = listener.accept().await.unwrap();
        stream.writable().await.unwrap();
        while stream.try_write(&[0; 65536]).is_ok() {} // until the buffers of both ends are full
        let pending = rustix::io::ioctl_fionread(&host).unwrap();
        if withdraws {
            permit.withdraw();
            assert!(permit.open(listener.local_addr().unwrap()).is_err());
        } else {
            let stream = Arc::into_inner(stream).unwrap();
            drop(stream);
        }
        let mut all = Vec::new();
        let end = host.read_to_end(&mut all).await.err().map(|error| error.kind());
        assert!(withdraws || all.len() as u64 > pending, "nothing waited in the sender's buffer");
        let _ = host.shutdown().await;
        (all.len().saturating_sub(pending as usize), end)
    }

    #[tokio::test]
    async fn what_was_not_sent_at_the_withdrawal_never_is() {
        let (rest, end) = read_after(false).await;
        assert!(rest > 0 && end.is_none(), "{rest} {end:?}");
        assert_eq!(read_after(true).await, (0, Some(io::ErrorKind::ConnectionReset)));
    }

    #[tokio::test]
    async fn a_withdrawal_is_seen_by_whoever_waits_and_by_whoever_asks_later() {
        let permit = Arc::new(Permit::default());
        let waiting = tokio::spawn({
            let permit = permit.clone();
            async move { permit.withdrawn().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        permit.withdraw();
        waiting.await.unwrap();
        permit.withdrawn().await;
    }
}

//! Connects to one of several checked addresses, trying them in parallel with a delay.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::Instrument;

use crate::upstream::permit::Permit;
use crate::upstream::socket::UpstreamSocket;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Before the next address is tried beside a pending one.
const STAGGER: Duration = Duration::from_millis(250);
/// Further addresses of a name are not tried.
const MAX_ADDRESSES: usize = 8;

#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("no response within {} s", CONNECT_TIMEOUT.as_secs())]
    TimedOut,
    #[error("{0} refuses the connection")]
    Refused(SocketAddr),
    #[error("cannot connect to {0}: {1}")]
    Failed(SocketAddr, io::Error),
    #[error("there is no address to connect to")]
    NoAddress,
}

pub(crate) async fn dial(
    addresses: &[IpAddr],
    port: u16,
    permit: &Arc<Permit>,
) -> Result<(UpstreamSocket, IpAddr), DialError> {
    timeout(CONNECT_TIMEOUT, race(addresses, port, permit))
        .await
        .map_err(|_| DialError::TimedOut)?
}

/// Dropping the set ends the other attempts.
async fn race(
    addresses: &[IpAddr],
    port: u16,
    permit: &Arc<Permit>,
) -> Result<(UpstreamSocket, IpAddr), DialError> {
    let mut waiting = interleaved(addresses).into_iter().take(MAX_ADDRESSES);
    let mut attempts = JoinSet::new();
    let mut last = DialError::NoAddress;
    loop {
        match waiting.next() {
            Some(address) => {
                let to = SocketAddr::new(address, port);
                tracing::trace!(%to, "dial");
                attempts.spawn(connect(to, permit.clone()).in_current_span());
            }
            None if attempts.is_empty() => return Err(last),
            None => {}
        }
        let more = waiting.len() > 0;
        tokio::select! {
            Some(ended) = attempts.join_next() => match ended {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(Err(error)) => {
                    tracing::trace!(%error, "dial failed");
                    last = error;
                }
                Err(_) => {}
            },
            () = sleep(STAGGER), if more => {}
        }
    }
}

async fn connect(
    to: SocketAddr,
    permit: Arc<Permit>,
) -> Result<(UpstreamSocket, IpAddr), DialError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::ConnectionRefused => DialError::Refused(to),
        _ => DialError::Failed(to, error),
    };
    let stream = UpstreamSocket::new(permit.open(to).map_err(failed)?, permit);
    stream.writable().await.map_err(failed)?;
    if let Some(error) = stream.take_error().map_err(failed)? {
        return Err(failed(error));
    }
    // Only a checked address is ever connected to.
    if stream.peer_addr().map_err(failed)? != to {
        return Err(failed(io::Error::other(
            "the peer has another address than the one that was checked",
        )));
    }
    stream.set_nodelay(true).map_err(failed)?;
    rustix::net::sockopt::set_socket_keepalive(&*stream, true)
        .map_err(|error| failed(error.into()))?;
    Ok((stream, to.ip()))
}

/// Alternates the families, so that a network without one of them costs a single delay.
fn interleaved(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let first_is_v4 = addresses.first().is_some_and(IpAddr::is_ipv4);
    let (one, other): (Vec<IpAddr>, Vec<IpAddr>) =
        addresses.iter().partition(|address| address.is_ipv4() == first_is_v4);
    let longest = one.len().max(other.len());
    (0..longest).flat_map(|at| [one.get(at), other.get(at)]).flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn parsed(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn families_take_turns() {
        let mixed = parsed(&["1.1.1.1", "2.2.2.2", "3.3.3.3", "::1", "::2"]);
        let turns = parsed(&["1.1.1.1", "::1", "2.2.2.2", "::2", "3.3.3.3"]);
        assert_eq!(interleaved(&mixed), turns);
        assert!(interleaved(&[]).is_empty());
    }

    #[tokio::test]
    async fn the_next_address_is_tried_when_one_does_not_work() {
        let listener = TcpListener::bind("127.0.0.3:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let addresses = parsed(&["127.0.0.2", "::1", "127.0.0.3"]);
        let (stream, address) = dial(&addresses, port, &Arc::default()).await.unwrap();
        assert_eq!(address, addresses[2]);
        assert_eq!(stream.peer_addr().unwrap().ip(), addresses[2]);
        drop(listener);
        let dialled = dial(&addresses, port, &Arc::default()).await;
        assert!(matches!(dialled, Err(DialError::Refused(_))));
        assert!(matches!(dial(&[], port, &Arc::default()).await, Err(DialError::NoAddress)));
    }

    #[tokio::test]
    async fn nothing_is_dialled_with_a_withdrawn_permit() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (addresses, permit) = (parsed(&["127.0.0.1"]), Arc::default());
        dial(&addresses, port, &permit).await.unwrap();
        listener.accept().await.unwrap();
        permit.withdraw();
        assert!(matches!(dial(&addresses, port, &permit).await, Err(DialError::Failed(..))));
        let arrived = timeout(Duration::from_millis(200), listener.accept()).await;
        assert!(arrived.is_err(), "{arrived:?}");
    }
}

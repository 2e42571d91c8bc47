//! Opens and runs a tunnel that the proxy relays unread, except for its first bytes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use belljar_spec::Host;
use belljar_spec::egress::{DenyReason, Via};
use belljar_spec::host_rule::Seen;
use tokio::time::timeout;

use crate::inbound::relay::{FirstBytes, Relay, RelayEnd};
use crate::inbound::sniff_tls::{Expected, SniffResult, Sniffer, not_tls};
use crate::io::stream::{Stream, is_retryable};
use crate::proxy::{AccessRequest, Proxy, Refusal, Ticket, UnusedConnection};
use crate::upstream::socket::UpstreamSocket;

/// For the first bytes, where the client must send first, and for the rest of a ClientHello anywhere.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(10);
const READ_SIZE: usize = 4096;

/// A tunnel that is allowed and connected.
#[derive(Debug)]
pub(crate) struct Tunnel {
    proxy: Arc<Proxy>,
    host: Host,
    port: u16,
    ticket: Ticket,
    upstream: UpstreamSocket,
}

impl Tunnel {
    pub(crate) async fn open(
        proxy: &Arc<Proxy>,
        host: Host,
        port: u16,
        via: Via,
    ) -> Result<Self, Refusal> {
        let access = AccessRequest { host: host.clone(), port, via, seen: Seen::Nothing };
        let policy = proxy.policy();
        if let Err(denial) = policy.may_allow(&host, port) {
            return Err(proxy.deny(&access, denial));
        }
        if policy.secrets(&host, port).next().is_some() {
            return Err(proxy.deny(&access, DenyReason::BlindToSecret.into()));
        }
        // Intercepted hosts are never relayed unread.
        if policy.intercepts(&host, port) {
            return Err(proxy.deny(&access, DenyReason::CannotLookInside.into()));
        }
        let mut ticket = proxy.admit(&access)?;
        let upstream = ticket.dial().await?;
        Ok(Self { proxy: proxy.clone(), host, port, ticket, upstream })
    }

    /// Runs the tunnel until it ends. `prefix` was already read from `client`.
    pub(crate) async fn run(self, client: Stream, prefix: Vec<u8>) {
        let Self { proxy, host, port, mut ticket, upstream } = self;
        let upstream = Stream::Upstream(upstream);
        let expected = Expected::at(port);
        let first_bytes = read_first_bytes(&client, prefix, &host, expected);
        let relay = Relay::new(&client, &upstream, &proxy.buffers, &mut ticket);
        match relay.run(first_bytes).await {
            // In TLS the client sends first.
            Ok(()) | Err(RelayEnd::ClientGone)
                if expected == Expected::Tls && ticket.is_unused() =>
            {
                let _ = ticket.failed(502, UnusedConnection::Closed.message());
            }
            ended => note_end(ended, &mut ticket, client),
        }
    }
}

/// Notes how a relay ended. A client whose host broke off sees that too.
pub(super) fn note_end(ended: Result<(), RelayEnd>, ticket: &mut Ticket, client: Stream) {
    match ended {
        // The ticket has already noted a spent budget.
        Ok(()) | Err(RelayEnd::ClientGone | RelayEnd::Budget) => {}
        Err(RelayEnd::TimedOut) => drop(ticket.failed(504, UnusedConnection::TimedOut.message())),
        Err(RelayEnd::WriteFailed(error)) => connection_broken(ticket, &error),
        Err(RelayEnd::UpstreamBroken(error)) => {
            connection_broken(ticket, &error);
            client.reset();
        }
        Err(RelayEnd::Idle) => drop(ticket.failed(504, "nothing passed for too long")),
        Err(RelayEnd::Denied(denial)) => drop(ticket.denied(denial)),
    }
}

fn connection_broken(ticket: &mut Ticket, error: &io::Error) {
    let _ = ticket.failed_because(502, "it broke off", format!("it broke off: {error}"));
}

/// Reads from the client until it is known whether the bytes are for this host.
async fn read_first_bytes(
    client: &Stream,
    prefix: Vec<u8>,
    host: &Host,
    expected: Expected,
) -> Result<FirstBytes, RelayEnd> {
    if prefix.is_empty() {
        match expected {
            Expected::Tls => timeout(FIRST_BYTES_TIMEOUT, client.readable())
                .await
                .map_err(|_| RelayEnd::TimedOut)?,
            Expected::Anything => client.readable().await,
        }
        .map_err(|_| RelayEnd::ClientGone)?;
    }
    // Boxed, since it is large and ends soon.
    timeout(FIRST_BYTES_TIMEOUT, Box::pin(sniff_first_bytes(client, prefix, host, expected)))
        .await
        .map_err(|_| RelayEnd::Denied(not_tls("the ClientHello does not end in time")))?
}

async fn sniff_first_bytes(
    client: &Stream,
    prefix: Vec<u8>,
    host: &Host,
    expected: Expected,
) -> Result<FirstBytes, RelayEnd> {
    let mut sniffer = Sniffer::new(host, expected);
    let mut first_bytes = FirstBytes { bytes: prefix, ended: false };
    let mut new = 0;
    loop {
        match sniffer.feed(&first_bytes.bytes[new..]) {
            SniffResult::Allowed => return Ok(first_bytes),
            SniffResult::Denied(denial) => return Err(RelayEnd::Denied(denial)),
            SniffResult::NeedMore => new = first_bytes.bytes.len(),
        }
        first_bytes.bytes.resize(new + READ_SIZE, 0);
        let got = read_some(client, &mut first_bytes.bytes[new..]).await?;
        first_bytes.bytes.truncate(new + got);
        if got == 0 {
            first_bytes.ended = true;
            return match sniffer.finish() {
                SniffResult::Denied(denial) => Err(RelayEnd::Denied(denial)),
                SniffResult::Allowed | SniffResult::NeedMore => Ok(first_bytes),
            };
        }
    }
}

async fn read_some(from: &Stream, into: &mut [u8]) -> Result<usize, RelayEnd> {
    loop {
        from.readable().await.map_err(|_| RelayEnd::ClientGone)?;
        match from.try_read(into) {
            Ok(got) => return Ok(got),
            Err(error) if is_retryable(&error) => {}
            Err(_) => return Err(RelayEnd::ClientGone),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;

    async fn first_bytes_of(bytes: &[u8]) -> Result<FirstBytes, RelayEnd> {
        let (inside, outside) = UnixStream::pair().unwrap();
        inside.try_write(bytes).unwrap();
        drop(inside);
        let host = Host::parse(b"a.example").unwrap();
        read_first_bytes(&Stream::Unix(outside), Vec::new(), &host, Expected::Tls).await
    }

    #[tokio::test]
    async fn a_client_that_closes_before_its_first_byte_is_not_denied() {
        let first_bytes = first_bytes_of(b"").await.unwrap();
        assert!(first_bytes.ended && first_bytes.bytes.is_empty());
        let denied = first_bytes_of(b"x").await;
        let is_not_tls = |finish: &RelayEnd| matches!(finish, RelayEnd::Denied(it) if it.reason == DenyReason::NotTls);
        assert!(denied.as_ref().is_err_and(is_not_tls), "{denied:?}");
    }
}

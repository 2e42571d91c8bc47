//! A connection that the proxy carries without looking inside, but for its first bytes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use belljar_spec::Host;
use belljar_spec::egress::{DenyReason, Via};
use belljar_spec::host_rule::Seen;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::inbound::relay::{End, Opening, Relay};
use crate::inbound::sniff_tls::{Due, Look, Sniffer};
use crate::io::stream::{Stream, is_passing};
use crate::policy::Denial;
use crate::proxy::{Ask, Proxy, Refusal, Ticket, Unused};

/// For the first bytes, where they must come from inside, and for the rest of a greeting anywhere.
const GREETING: Duration = Duration::from_secs(10);
const AT_ONCE: usize = 4096;

/// Allowed and connected.
#[derive(Debug)]
pub(crate) struct Tunnel {
    proxy: Arc<Proxy>,
    host: Host,
    port: u16,
    ticket: Ticket,
    outer: TcpStream,
}

impl Tunnel {
    pub(crate) async fn open(
        proxy: &Arc<Proxy>,
        host: Host,
        port: u16,
        via: Via,
    ) -> Result<Self, Refusal> {
        let ask = Ask { host: host.clone(), port, via, seen: Seen::Nothing };
        if let Err(denial) = proxy.policy.may_allow(&host, port) {
            return Err(proxy.deny(&ask, denial));
        }
        if proxy.policy.secrets(&host, port).next().is_some() {
            return Err(proxy.deny(&ask, DenyReason::BlindToSecret.into()));
        }
        // Those are never carried blindly.
        if proxy.policy.intercepts(&host, port) {
            return Err(proxy.deny(&ask, DenyReason::CannotLookInside.into()));
        }
        let mut ticket = proxy.admit(&ask)?;
        let outer = ticket.dial().await?;
        Ok(Self { proxy: proxy.clone(), host, port, ticket, outer })
    }

    /// Until it is over. `early` was read from `inner` before.
    pub(crate) async fn carry(self, inner: Stream, early: Vec<u8>) {
        let Self { proxy, host, port, mut ticket, outer } = self;
        let outer = Stream::Tcp(outer);
        let due = Due::at(port);
        let opening = greeting(&inner, early, &host, due);
        let relay = Relay::new(&inner, &outer, &proxy.buffers, &mut ticket);
        match relay.run(opening).await {
            // TLS begins with the client.
            Ok(()) | Err(End::Inside) if due == Due::Tls && ticket.is_unused() => {
                let _ = ticket.failed(502, Unused::Closed.words());
            }
            // The ticket knows of a spent budget.
            Ok(()) | Err(End::Inside | End::Budget) => {}
            Err(End::Silent) => drop(ticket.failed(504, Unused::Silent.words())),
            Err(End::NotTaken(error)) => broke_off(&mut ticket, &error),
            Err(End::Outside(error)) => {
                broke_off(&mut ticket, &error);
                inner.break_off();
            }
            Err(End::Idle) => drop(ticket.failed(504, "nothing passed for too long")),
            Err(End::Denied(denial)) => drop(ticket.denied(denial)),
        }
    }
}

fn broke_off(ticket: &mut Ticket, error: &io::Error) {
    let _ = ticket.failed_because(502, "it broke off", format!("it broke off: {error}"));
}

/// Reads from inside until it is known whether that is meant for the host.
async fn greeting(inner: &Stream, early: Vec<u8>, host: &Host, due: Due) -> Result<Opening, End> {
    let late = |why: &str| {
        let detail = Some(why.to_owned());
        End::Denied(Denial { reason: DenyReason::NotTls, detail })
    };
    if early.is_empty() {
        match due {
            Due::Tls => timeout(GREETING, inner.readable()).await.map_err(|_| End::Silent)?,
            Due::Anything => inner.readable().await,
        }
        .map_err(|_| End::Inside)?;
    }
    // Apart, since it is large and soon over.
    timeout(GREETING, Box::pin(read_greeting(inner, early, host, due)))
        .await
        .map_err(|_| late("the ClientHello does not end in time"))?
}

async fn read_greeting(
    inner: &Stream,
    early: Vec<u8>,
    host: &Host,
    due: Due,
) -> Result<Opening, End> {
    let mut sniffer = Sniffer::new(host, due);
    let mut opening = Opening { bytes: early, ended: false };
    let mut new = 0;
    loop {
        match sniffer.look(&opening.bytes[new..]) {
            Look::Fine => return Ok(opening),
            Look::Wrong(denial) => return Err(End::Denied(denial)),
            Look::More => new = opening.bytes.len(),
        }
        opening.bytes.resize(new + AT_ONCE, 0);
        let got = read_some(inner, &mut opening.bytes[new..]).await?;
        opening.bytes.truncate(new + got);
        if got == 0 {
            opening.ended = true;
            return match sniffer.end() {
                Look::Wrong(denial) => Err(End::Denied(denial)),
                Look::Fine | Look::More => Ok(opening),
            };
        }
    }
}

async fn read_some(from: &Stream, into: &mut [u8]) -> Result<usize, End> {
    loop {
        from.readable().await.map_err(|_| End::Inside)?;
        match from.try_read(into) {
            Ok(got) => return Ok(got),
            Err(error) if is_passing(&error) => {}
            Err(_) => return Err(End::Inside),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;

    async fn greeted(bytes: &[u8]) -> Result<Opening, End> {
        let (inside, outside) = UnixStream::pair().unwrap();
        inside.try_write(bytes).unwrap();
        drop(inside);
        let host = Host::parse(b"a.example").unwrap();
        greeting(&Stream::Unix(outside), Vec::new(), &host, Due::Tls).await
    }

    #[tokio::test]
    async fn a_client_that_closes_before_its_first_byte_is_not_denied() {
        let opening = greeted(b"").await.unwrap();
        assert!(opening.ended && opening.bytes.is_empty());
        let denied = greeted(b"x").await;
        let is_not_tls =
            |end: &End| matches!(end, End::Denied(it) if it.reason == DenyReason::NotTls);
        assert!(denied.as_ref().is_err_and(is_not_tls), "{denied:?}");
    }
}

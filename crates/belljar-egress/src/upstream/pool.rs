//! Connections to hosts: made for one connection from inside, kept as long as it asks for the same host.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use belljar_spec::Host;
use belljar_spec::egress::Scheme;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::http::body::Upload;
use crate::http::framing::Framing;
use crate::http::headers::Target;
use crate::limits::{HOST_WINDOW, LONGEST_HEAD, MOST_HEADERS, SEND_BUFFER, TLS_PATIENCE};
use crate::proxy::{Refusal, Ticket};
use crate::upstream::roots::ALPN_H2;
use crate::upstream::tls::Tls;

/// hyper needs a turn to see that an answer is over.
const SETTLE: Duration = Duration::from_millis(100);
/// Connections that wait for the next request.
const MOST_FREE: usize = 4;
const NO_HTTP: &str = "it does not speak HTTP as it should";

/// The hosts' side of one connection from inside.
pub(crate) struct Slot {
    tls: Arc<Tls>,
    /// Of the requests that come on it; `None` for HTTP/2, which leaves no doubt where anything ends.
    pub(crate) framing: Option<Arc<Framing>>,
    kept: Arc<Mutex<Kept>>,
    /// Held by whoever makes the first connection, since it may serve all who wait; and how that failed last.
    first: tokio::sync::Mutex<Option<Failure>>,
    /// What the connection has become, if it is no longer HTTP.
    became: Mutex<Option<JoinHandle<()>>>,
}

struct Failure {
    at: Instant,
    refusal: Refusal,
    /// For the record.
    why: String,
}

#[derive(Default)]
struct Kept {
    target: Option<Target>,
    speaks: Option<Speaks>,
    h2: Option<http2::SendRequest<Upload>>,
    h1: Vec<http1::SendRequest<Upload>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Speaks {
    H1,
    H2,
}

/// What the connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Requests,
    /// Only HTTP/1.1 becomes something else.
    Upgrade,
}

/// Whether somebody used it before, so that it may be dead without anybody's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    New,
    Kept,
}

/// Something to send one request with.
pub(crate) enum Sender {
    H1(Busy),
    H2(http2::SendRequest<Upload>),
}

/// A connection that serves one request. When this is dropped, it may serve the next.
pub(crate) struct Busy {
    pub(crate) sender: Option<http1::SendRequest<Upload>>,
    home: Option<(Target, Weak<Mutex<Kept>>)>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        let (Some(sender), Some((target, home))) = (self.sender.take(), self.home.take()) else {
            return;
        };
        if let Some(home) = home.upgrade() {
            let mut kept = lock(&home);
            if !sender.is_closed() && kept.h1.len() < MOST_FREE && kept.target == Some(target) {
                kept.h1.push(sender);
            }
        }
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slot {
    pub(crate) fn new(tls: &Arc<Tls>, framing: Option<Arc<Framing>>) -> Self {
        let (kept, first, became) = Default::default();
        Self { tls: tls.clone(), framing, kept, first, became }
    }

    pub(crate) fn becomes(&self, relay: impl Future<Output = ()> + Send + 'static) {
        if let Some(framing) = &self.framing {
            framing.over();
        }
        let relay = tokio::spawn(relay);
        *self.became.lock().unwrap_or_else(PoisonError::into_inner) = Some(relay);
    }

    /// To be waited for when HTTP is over, since the connection may not be, and is counted as long as it lasts.
    pub(crate) async fn ended(&self) {
        let relay = self.became.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(relay) = relay {
            let _ = relay.await; // it has told how it ended
        }
    }

    /// One that was kept, if there is one that lives.
    pub(crate) async fn kept(&self, target: &Target) -> Option<Sender> {
        loop {
            let mut sender = {
                let mut kept = lock(&self.kept);
                if kept.target.as_ref() != Some(target) {
                    *kept = Kept { target: Some(target.clone()), ..Kept::default() };
                }
                if let Some(h2) = &kept.h2 {
                    if !h2.is_closed() {
                        return Some(Sender::H2(h2.clone()));
                    }
                    kept.h2 = None;
                }
                kept.h1.pop()?
            };
            if let Ok(Ok(())) = timeout(SETTLE, sender.ready()).await {
                return Some(Sender::H1(self.busy(target, sender)));
            }
        }
    }

    /// A kept one, or a new one.
    pub(crate) async fn any(
        &self,
        target: &Target,
        ticket: &mut Ticket,
    ) -> Result<(Sender, Age), Refusal> {
        if let Some(sender) = self.kept(target).await {
            return Ok((sender, Age::Kept));
        }
        if self.needs_one_each(target) {
            return Ok((self.dial(target, ticket, Purpose::Requests).await?, Age::New));
        }
        let began = Instant::now();
        let mut first = self.first.lock().await;
        if let Some(sender) = self.kept(target).await {
            return Ok((sender, Age::Kept));
        }
        if self.needs_one_each(target) {
            drop(first);
            return Ok((self.dial(target, ticket, Purpose::Requests).await?, Age::New));
        }
        // Whoever waited while somebody else tried would find out the same, as slowly.
        if let Some(failure) = first.as_ref().filter(|failure| failure.at >= began) {
            return Err(ticket.failed_likewise(&failure.refusal, &failure.why));
        }
        let dialled = self.dial(target, ticket, Purpose::Requests).await;
        *first = match &dialled {
            // What was denied was denied to one, and costs no time.
            Err(refusal) if refusal.reason.is_none() => {
                let why = ticket.error().unwrap_or_default().to_owned();
                Some(Failure { at: Instant::now(), refusal: refusal.clone(), why })
            }
            _ => None,
        };
        Ok((dialled?, Age::New))
    }

    /// No connection serves several at once.
    fn needs_one_each(&self, target: &Target) -> bool {
        target.scheme == Scheme::Http || lock(&self.kept).speaks == Some(Speaks::H1)
    }

    /// A new one.
    pub(crate) async fn dial(
        &self,
        target: &Target,
        ticket: &mut Ticket,
        purpose: Purpose,
    ) -> Result<Sender, Refusal> {
        let stream = ticket.dial().await?;
        if target.scheme == Scheme::Http {
            return self.h1(target, ticket, purpose, stream).await;
        }
        let config = match (&self.tls.outside, purpose) {
            (Some(outside), Purpose::Requests) => outside.any.clone(),
            (Some(outside), Purpose::Upgrade) => outside.h1.clone(),
            (None, _) => return Err(ticket.failed(502, "TLS was not prepared")),
        };
        let stream = secure(config, &target.host, ticket, stream).await?;
        if stream.get_ref().1.alpn_protocol() != Some(ALPN_H2) {
            return self.h1(target, ticket, purpose, stream).await;
        }
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(HOST_WINDOW)
            .initial_connection_window_size(HOST_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(LONGEST_HEAD as u32)
            .keep_alive_interval(Duration::from_secs(60))
            .keep_alive_timeout(Duration::from_secs(30))
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| ticket.failed_because(502, NO_HTTP, error.to_string()))?;
        tokio::spawn(connection);
        let mut kept = lock(&self.kept);
        if kept.target.as_ref() == Some(target) {
            kept.speaks = Some(Speaks::H2);
            kept.h2 = Some(sender.clone());
        }
        Ok(Sender::H2(sender))
    }

    async fn h1<I>(
        &self,
        target: &Target,
        ticket: &mut Ticket,
        purpose: Purpose,
        stream: I,
    ) -> Result<Sender, Refusal>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::Builder::new()
            .max_headers(MOST_HEADERS)
            .max_header_size(LONGEST_HEAD)
            .max_buf_size(LONGEST_HEAD)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| ticket.failed_because(502, NO_HTTP, error.to_string()))?;
        tokio::spawn(connection.with_upgrades());
        if purpose == Purpose::Upgrade {
            return Ok(Sender::H1(Busy { sender: Some(sender), home: None }));
        }
        let mut kept = lock(&self.kept);
        if kept.target.as_ref() == Some(target) {
            kept.speaks = Some(Speaks::H1);
        }
        drop(kept);
        Ok(Sender::H1(self.busy(target, sender)))
    }

    fn busy(&self, target: &Target, sender: http1::SendRequest<Upload>) -> Busy {
        let home = Some((target.clone(), Arc::downgrade(&self.kept)));
        Busy { sender: Some(sender), home }
    }
}

async fn secure<I: AsyncRead + AsyncWrite + Unpin>(
    config: Arc<ClientConfig>,
    host: &Host,
    ticket: &mut Ticket,
    stream: I,
) -> Result<tokio_rustls::client::TlsStream<I>, Refusal> {
    let name = match host {
        Host::Address(address) => ServerName::from(*address),
        Host::Name(name) => ServerName::try_from(name.clone())
            .map_err(|_| ticket.failed(502, "no certificate has such a name"))?,
    };
    match timeout(TLS_PATIENCE, TlsConnector::from(config).connect(name, stream)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => {
            Err(ticket.failed_because(502, tls_fault(&error), format!("TLS: {error}")))
        }
        Err(_) => Err(ticket.failed(504, "TLS took too long")),
    }
}

/// What is told of a failed handshake. Neither what the socket says nor the names in a certificate of the host's network
/// are part of it.
fn tls_fault(error: &io::Error) -> &'static str {
    let rustls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(fault)) = rustls else { return "TLS failed" };
    match fault {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "TLS failed: its certificate has expired"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "TLS failed: its certificate is not valid yet"
        }
        CertificateError::UnknownIssuer => "TLS failed: nobody trusted has issued its certificate",
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "TLS failed: its certificate is for another name"
        }
        CertificateError::Revoked => "TLS failed: its certificate was revoked",
        _ => "TLS failed: its certificate is not valid",
    }
}

//! Keeps the upstream connections of one client connection, and reuses them for the same host.

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
use crate::limits::{HOST_WINDOW, MAX_HEAD_BYTES, MAX_HEADERS, SEND_BUFFER, TLS_TIMEOUT};
use crate::proxy::{Refusal, Ticket};
use crate::upstream::roots::ALPN_H2;
use crate::upstream::tls::TlsContext;

/// hyper needs a turn to notice that a response is complete.
const READY_TIMEOUT: Duration = Duration::from_millis(100);
/// Idle HTTP/1 connections.
const MAX_IDLE: usize = 4;
const NO_HTTP: &str = "it does not speak HTTP as it should";

/// The upstream side of one client connection.
pub(crate) struct UpstreamPool {
    tls: Arc<TlsContext>,
    /// Framing of the client's requests; `None` for HTTP/2, whose framing is unambiguous.
    pub(crate) framing: Option<Arc<Framing>>,
    idle: Arc<Mutex<IdleConnections>>,
    /// Held while the first connection is made, since it may serve everyone who waits; and how that failed last.
    first: tokio::sync::Mutex<Option<DialFailure>>,
    /// The relay after an upgrade, when the connection is no longer HTTP.
    upgraded: Mutex<Option<JoinHandle<()>>>,
}

struct DialFailure {
    at: Instant,
    refusal: Refusal,
    /// For the record.
    detail: String,
}

#[derive(Default)]
struct IdleConnections {
    target: Option<Target>,
    version: Option<HttpVersion>,
    h2: Option<http2::SendRequest<Upload>>,
    h1: Vec<http1::SendRequest<Upload>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HttpVersion {
    H1,
    H2,
}

/// What a new connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Requests,
    /// Only HTTP/1.1 can be upgraded.
    Upgrade,
}

/// Whether a connection was used before, so that its end is no failure of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionAge {
    New,
    Reused,
}

/// A connection that can send one request.
pub(crate) enum Sender {
    H1(H1Lease),
    H2(http2::SendRequest<Upload>),
}

/// An HTTP/1 connection that serves one request. On drop it returns to the pool.
pub(crate) struct H1Lease {
    pub(crate) sender: Option<http1::SendRequest<Upload>>,
    return_to: Option<(Target, Weak<Mutex<IdleConnections>>)>,
}

impl Drop for H1Lease {
    fn drop(&mut self) {
        let (Some(sender), Some((target, return_to))) = (self.sender.take(), self.return_to.take())
        else {
            return;
        };
        if let Some(return_to) = return_to.upgrade() {
            let mut idle = lock(&return_to);
            if !sender.is_closed() && idle.h1.len() < MAX_IDLE && idle.target == Some(target) {
                idle.h1.push(sender);
            }
        }
    }
}

fn lock(idle: &Mutex<IdleConnections>) -> MutexGuard<'_, IdleConnections> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

impl UpstreamPool {
    pub(crate) fn new(tls: &Arc<TlsContext>, framing: Option<Arc<Framing>>) -> Self {
        let (idle, first, upgraded) = Default::default();
        Self { tls: tls.clone(), framing, idle, first, upgraded }
    }

    pub(crate) fn set_upgraded(&self, relay: impl Future<Output = ()> + Send + 'static) {
        if let Some(framing) = &self.framing {
            framing.stop();
        }
        let relay = tokio::spawn(relay);
        *self.upgraded.lock().unwrap_or_else(PoisonError::into_inner) = Some(relay);
    }

    /// To be awaited when HTTP ends, since an upgraded connection goes on, and counts as long as it is open.
    pub(crate) async fn wait_for_upgraded(&self) {
        let relay = self.upgraded.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(relay) = relay {
            let _ = relay.await; // it has reported how it ended
        }
    }

    /// A live connection from the pool.
    pub(crate) async fn reuse(&self, target: &Target) -> Option<Sender> {
        loop {
            let mut sender = {
                let mut idle = lock(&self.idle);
                if idle.target.as_ref() != Some(target) {
                    *idle = IdleConnections {
                        target: Some(target.clone()),
                        ..IdleConnections::default()
                    };
                }
                if let Some(h2) = &idle.h2 {
                    if !h2.is_closed() {
                        return Some(Sender::H2(h2.clone()));
                    }
                    idle.h2 = None;
                }
                idle.h1.pop()?
            };
            if let Ok(Ok(())) = timeout(READY_TIMEOUT, sender.ready()).await {
                return Some(Sender::H1(self.lease(target, sender)));
            }
        }
    }

    /// A reused connection, or a new one.
    pub(crate) async fn acquire(
        &self,
        target: &Target,
        ticket: &mut Ticket,
    ) -> Result<(Sender, ConnectionAge), Refusal> {
        if let Some(sender) = self.reuse(target).await {
            return Ok((sender, ConnectionAge::Reused));
        }
        if self.needs_own_connection(target) {
            return Ok((self.dial(target, ticket, Purpose::Requests).await?, ConnectionAge::New));
        }
        let started = Instant::now();
        let mut first = self.first.lock().await;
        if let Some(sender) = self.reuse(target).await {
            return Ok((sender, ConnectionAge::Reused));
        }
        if self.needs_own_connection(target) {
            drop(first);
            return Ok((self.dial(target, ticket, Purpose::Requests).await?, ConnectionAge::New));
        }
        // A request that waited for a failed attempt would fail the same way, as slowly.
        if let Some(failure) = first.as_ref().filter(|failure| failure.at >= started) {
            return Err(ticket.failed_like(&failure.refusal, &failure.detail));
        }
        let dialled = self.dial(target, ticket, Purpose::Requests).await;
        *first = match &dialled {
            // A denial is for one request, and costs no time to repeat.
            Err(refusal) if refusal.reason.is_none() => {
                let detail = ticket.error().unwrap_or_default().to_owned();
                Some(DialFailure { at: Instant::now(), refusal: refusal.clone(), detail })
            }
            _ => None,
        };
        Ok((dialled?, ConnectionAge::New))
    }

    /// No connection serves several requests at once.
    fn needs_own_connection(&self, target: &Target) -> bool {
        target.scheme == Scheme::Http || lock(&self.idle).version == Some(HttpVersion::H1)
    }

    /// A new connection.
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
        let config = match (&self.tls.client, purpose) {
            (Some(client), Purpose::Requests) => client.any.clone(),
            (Some(client), Purpose::Upgrade) => client.h1.clone(),
            (None, _) => return Err(ticket.failed(502, "TLS was not prepared")),
        };
        let stream = tls_handshake(config, &target.host, ticket, stream).await?;
        if stream.get_ref().1.alpn_protocol() != Some(ALPN_H2) {
            return self.h1(target, ticket, purpose, stream).await;
        }
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(HOST_WINDOW)
            .initial_connection_window_size(HOST_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(MAX_HEAD_BYTES as u32)
            .keep_alive_interval(Duration::from_secs(60))
            .keep_alive_timeout(Duration::from_secs(30))
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| ticket.failed_because(502, NO_HTTP, error.to_string()))?;
        tokio::spawn(connection);
        let mut idle = lock(&self.idle);
        if idle.target.as_ref() == Some(target) {
            idle.version = Some(HttpVersion::H2);
            idle.h2 = Some(sender.clone());
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
            .max_headers(MAX_HEADERS)
            .max_header_size(MAX_HEAD_BYTES)
            .max_buf_size(MAX_HEAD_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| ticket.failed_because(502, NO_HTTP, error.to_string()))?;
        tokio::spawn(connection.with_upgrades());
        if purpose == Purpose::Upgrade {
            return Ok(Sender::H1(H1Lease { sender: Some(sender), return_to: None }));
        }
        let mut idle = lock(&self.idle);
        if idle.target.as_ref() == Some(target) {
            idle.version = Some(HttpVersion::H1);
        }
        drop(idle);
        Ok(Sender::H1(self.lease(target, sender)))
    }

    fn lease(&self, target: &Target, sender: http1::SendRequest<Upload>) -> H1Lease {
        let return_to = Some((target.clone(), Arc::downgrade(&self.idle)));
        H1Lease { sender: Some(sender), return_to }
    }
}

async fn tls_handshake<I: AsyncRead + AsyncWrite + Unpin>(
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
    match timeout(TLS_TIMEOUT, TlsConnector::from(config).connect(name, stream)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => {
            Err(ticket.failed_because(502, tls_error_text(&error), format!("TLS: {error}")))
        }
        Err(_) => Err(ticket.failed(504, "TLS took too long")),
    }
}

/// The public message for a failed handshake. It contains neither the socket's error nor the names in the
/// certificate.
fn tls_error_text(error: &io::Error) -> &'static str {
    let rustls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(fault)) = rustls else { return "TLS failed" };
    match fault {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "TLS failed: its certificate has expired"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "TLS failed: its certificate is not valid yet"
        }
        CertificateError::UnknownIssuer => {
            "TLS failed: its certificate is not from a trusted authority"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "TLS failed: its certificate is for another name"
        }
        CertificateError::Revoked => "TLS failed: its certificate was revoked",
        _ => "TLS failed: its certificate is not valid",
    }
}

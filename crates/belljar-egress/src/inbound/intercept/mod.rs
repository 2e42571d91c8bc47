//! Terminates TLS for hosts that the operator named or that get a secret.
//!
//! The proxy presents a certificate of the run's authority to the client, and opens its own TLS connection to the
//! host.

mod authority;
mod java_keystore;
mod leaf;
pub mod trust;

use std::io;
use std::sync::Arc;

use belljar_spec::Host;
use belljar_spec::egress::{Scheme, Via};
use belljar_spec::host_rule::Seen;
use bytes::Bytes;
use rustls::ServerConfig;
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use self::authority::Authority;
use self::leaf::{LeafCertificates, is_h2};
use crate::control::Trust;
use crate::http::forward;
use crate::http::framing::monitor_framing;
use crate::http::headers::{Target, name_mismatch};
use crate::inbound::first_byte::read_first_byte;
use crate::inbound::http_server;
use crate::inbound::sniff_tls::not_tls;
use crate::io::prefixed_io::PrefixedIo;
use crate::limits::TLS_TIMEOUT;
use crate::policy::{Denial, Policy};
use crate::proxy::{AccessRequest, Proxy};
use crate::upstream::pool::UpstreamPool;
use crate::upstream::tls::TlsContext;

/// The run's certificate authority. Its keys never leave the process.
pub(crate) struct Interceptor {
    authority: Authority,
    certificates: LeafCertificates,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum InterceptError {
    #[error("{0}")]
    Rule(String),
    #[error("cannot create a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("cannot read random bytes")]
    Random,
}

impl Interceptor {
    /// `None` where nothing is intercepted.
    pub(crate) fn new(policy: &Policy) -> Result<Option<Self>, InterceptError> {
        let names = authority::names(policy)?;
        if names.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            authority: Authority::new(&names)?,
            certificates: LeafCertificates::new()?,
        }))
    }

    pub(crate) fn trust(&self) -> Trust {
        Trust { ca_certificate: self.authority.pem() }
    }

    fn config(&self, host: &Host) -> Result<Arc<ServerConfig>, InterceptError> {
        self.certificates.for_host(host, &self.authority)
    }
}

/// Serves a connection whose client expects to talk to this host. `prefix` was already read from it.
pub(crate) async fn serve<I>(
    proxy: &Arc<Proxy>,
    tls: &Arc<TlsContext>,
    (mut io, mut prefix): (I, Bytes),
    host: Host,
    port: u16,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let access =
        AccessRequest { host: host.clone(), port, via: Via::Intercepted, seen: Seen::Nothing };
    if prefix.is_empty() {
        match read_first_byte(proxy, &access, &mut io, TLS_TIMEOUT).await {
            Some(first) => prefix = Bytes::copy_from_slice(&[first]),
            None => return,
        }
    }
    let io = PrefixedIo { io, prefix };
    let stream = match timeout(TLS_TIMEOUT, accept(tls, io, &host)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(denial)) => return drop(proxy.deny(&access, denial)),
        Err(_) => return drop(proxy.deny(&access, not_tls("it took too long"))),
    };
    let target = Target { scheme: Scheme::Https, host, port };
    let served = if is_h2(stream.get_ref().1) {
        let pool = Arc::new(UpstreamPool::new(tls, None));
        http_server::serve_h2(stream, forward::handler(proxy, &pool, &target, Via::Intercepted))
            .await
    } else {
        let (stream, framing) = monitor_framing(stream);
        let pool = Arc::new(UpstreamPool::new(tls, Some(framing)));
        let handler = forward::handler(proxy, &pool, &target, Via::Intercepted);
        let served = http_server::serve_h1(stream, handler).await;
        pool.wait_for_upgraded().await;
        served
    };
    http_server::report_parse_error(proxy, &access, served);
}

/// The server name (SNI) must be the host of the tunnel: otherwise the client could show the proxy one name and the
/// host another.
async fn accept<I>(tls: &TlsContext, io: I, host: &Host) -> Result<TlsStream<I>, Denial>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    // Also for a client that does not trust the run's authority, which is worth reporting.
    let handshake = |error: io::Error| not_tls(&error.to_string());
    let start = LazyConfigAcceptor::new(Acceptor::default(), io).await.map_err(handshake)?;
    match start.client_hello().server_name() {
        Some(name) if Host::parse(name.as_bytes()).as_ref() == Ok(host) => {}
        Some(name) => return Err(name_mismatch(name.as_bytes())),
        // Clients send no SNI for an address, and Java sends none for a name without a dot.
        None if host.name().is_some_and(|name| name.contains('.')) => {
            return Err(name_mismatch(b"(none)"));
        }
        None => {}
    }
    let Some(interceptor) = &tls.interceptor else {
        return Err(not_tls("this run has no certificate authority"));
    };
    let config = interceptor.config(host).map_err(|error| not_tls(&error.to_string()))?;
    start.into_stream(config).await.map_err(handshake)
}

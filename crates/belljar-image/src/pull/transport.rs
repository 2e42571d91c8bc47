//! One HTTP request over a connection of its own.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming as Body;
use hyper::client::conn::http1;
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::resolve::{addresses, is_loopback};
use super::retry::within;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two pieces of a body.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// A request that got no complete answer.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    #[error("the address {0:?} cannot be used")]
    Address(String),
    #[error("plain HTTP is spoken with this machine only, and {0:?} is another")]
    PlainHttp(String),
    #[error("the name cannot be resolved")]
    Resolve(#[source] io::Error),
    #[error("no connection can be made")]
    Connect(#[source] io::Error),
    #[error("TLS failed")]
    Tls(#[source] io::Error),
    #[error("no certificate authorities are known on this machine")]
    Roots(#[source] Box<rustls::Error>),
    #[error("the connection failed")]
    Http(#[source] hyper::Error),
    #[error("nothing came for too long")]
    TimedOut,
    #[error("the connection ended early")]
    Ended,
    #[error("more than {0} redirections")]
    Redirects(usize),
}

impl TransportError {
    /// Whether another attempt can help.
    pub(super) fn is_temporary(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::Http(_) | Self::TimedOut | Self::Ended)
    }
}

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) is_tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
}

impl Endpoint {
    /// Of an address that a server sent: TLS, unless it is this machine.
    pub(super) fn of(uri: &Uri) -> Result<Self, TransportError> {
        let bad = || TransportError::Address(uri.to_string());
        let host = uri.host().ok_or_else(bad)?.to_owned();
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") if is_loopback(&host) => false,
            Some("http") => return Err(TransportError::PlainHttp(host)),
            _ => return Err(bad()),
        };
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        Ok(Self { is_tls, host, port })
    }
}

/// Sends a request whose address is absolute. The answer's body is still to come.
pub(super) async fn send(
    mut request: Request<Full<Bytes>>,
) -> Result<Response<Body>, TransportError> {
    let uri = request.uri().clone();
    let endpoint = Endpoint::of(&uri)?;
    let authority = uri.authority().map(|authority| authority.as_str().to_owned());
    let authority = authority.unwrap_or_default();
    let host = hyper::header::HeaderValue::from_str(&authority)
        .map_err(|_| TransportError::Address(authority.clone()))?;
    request.headers_mut().insert(hyper::header::HOST, host);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse().map_err(|_| TransportError::Address(uri.to_string()))?;
    let stream = connect(&endpoint).await?;
    match endpoint.is_tls {
        false => exchange(stream, request).await,
        true => exchange(secure(stream, &endpoint.host).await?, request).await,
    }
}

async fn connect(endpoint: &Endpoint) -> Result<TcpStream, TransportError> {
    let connecting = async {
        let found = addresses(&endpoint.host, endpoint.port).await;
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in found.map_err(TransportError::Resolve)? {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(TransportError::Connect(last))
    };
    within(CONNECT_TIMEOUT, connecting).await.unwrap_or(Err(TransportError::TimedOut))
}

async fn secure(
    stream: TcpStream,
    host: &str,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, TransportError> {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host.clone()).map_err(|_| TransportError::Address(host))?;
    let connector = TlsConnector::from(tls_config()?);
    match within(CONNECT_TIMEOUT, connector.connect(name, stream)).await {
        None => Err(TransportError::TimedOut),
        Some(secured) => secured.map_err(TransportError::Tls),
    }
}

async fn exchange<S>(
    stream: S,
    request: Request<Full<Bytes>>,
) -> Result<Response<Body>, TransportError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(TransportError::Http)?;
    // It ends with the body of the answer.
    tokio::spawn(connection);
    match within(HEADER_TIMEOUT, sender.send_request(request)).await {
        None => Err(TransportError::TimedOut),
        Some(answer) => answer.map_err(TransportError::Http),
    }
}

/// The authorities that this machine trusts; where it has none at all (a bare container), Mozilla's.
fn tls_config() -> Result<Arc<ClientConfig>, TransportError> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(Arc::clone(config));
    }
    let is_set =
        ["SSL_CERT_FILE", "SSL_CERT_DIR"].iter().any(|name| std::env::var_os(name).is_some());
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() && !is_set {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| TransportError::Roots(Box::new(error)))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::clone(CONFIG.get_or_init(|| Arc::new(config))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_goes_to_this_machine_only() {
        let of = |text: &str| Endpoint::of(&text.parse().unwrap());
        for host in ["localhost:5000", "127.0.0.1", "127.9.9.9:1", "[::1]:5000", "a.localhost"] {
            assert!(!of(&format!("http://{host}/x")).unwrap().is_tls, "{host}");
        }
        for host in ["registry.example", "10.0.0.1:5000", "localhost.example", "127.0.0.1.example"]
        {
            let error = of(&format!("http://{host}/x")).unwrap_err();
            assert!(matches!(error, TransportError::PlainHttp(_)), "{host}: {error}");
            assert!(of(&format!("https://{host}/x")).unwrap().is_tls);
        }
        assert!(matches!(of("ftp://localhost/x"), Err(TransportError::Address(_))));
    }
}

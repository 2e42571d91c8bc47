//! A client in the sandbox, for tests.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, DuplexStream};
use tokio::net::UnixStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{TestProxy, host};
use crate::inbound::intercept;
use crate::inbound::route;
use crate::io::stream::Stream;
use crate::upstream::roots::{ALPN_H1, ALPN_H2, provider};

pub(crate) enum Client {
    H1(http1::SendRequest<Full<Bytes>>),
    H2(http2::SendRequest<Full<Bytes>>),
}

impl Client {
    /// To `localhost` at this port, intercepted by the proxy.
    pub(crate) async fn intercepted(run: &TestProxy, port: u16, alpn: &[u8]) -> Self {
        let stream = tls(run, "localhost", "localhost", port, &[alpn]).await.unwrap();
        if alpn == ALPN_H2 {
            let (sender, connection) =
                http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            return Self::H2(sender);
        }
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        Self::H1(sender)
    }

    /// To a route's port.
    pub(crate) async fn routed(run: &TestProxy, port: u16) -> Self {
        let (sender, connection) =
            http1::handshake(TokioIo::new(raw_route(run, port))).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        Self::H1(sender)
    }

    pub(crate) async fn send(&mut self, mut request: Request<Full<Bytes>>) -> Response<Incoming> {
        match self {
            Self::H1(sender) => {
                sender.ready().await.unwrap();
                sender.send_request(request).await.unwrap()
            }
            Self::H2(sender) => {
                let uri = format!("https://{}{}", host_of(&request), request.uri());
                *request.uri_mut() = uri.parse().unwrap();
                request.headers_mut().remove("host");
                sender.send_request(request).await.unwrap()
            }
        }
    }

    pub(crate) async fn get(&mut self, port: u16, path: &str) -> (u16, String) {
        let response = self.send(get(port, path)).await;
        let status = response.status().as_u16();
        (status, text(response).await)
    }
}

fn host_of(request: &Request<Full<Bytes>>) -> String {
    request.headers()["host"].to_str().unwrap().to_owned()
}

pub(crate) fn get(port: u16, path: &str) -> Request<Full<Bytes>> {
    let request = Request::builder().uri(path).header("host", format!("localhost:{port}"));
    request.body(Full::default()).unwrap()
}

pub(crate) async fn text(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A connection that the proxy intercepts, before anything is sent on it.
pub(crate) fn raw_intercepted(run: &TestProxy, name: &str, port: u16) -> DuplexStream {
    let (inside, mut outside) = tokio::io::duplex(64 * 1024);
    let (proxy, tls, host) = (run.proxy.clone(), run.tls.clone(), host(name));
    tokio::spawn(async move {
        // As if the first bytes had arrived with the CONNECT request.
        let mut prefix = vec![0; 3];
        let length = outside.read(&mut prefix).await.unwrap();
        prefix.truncate(length);
        intercept::serve(&proxy, &tls, (outside, prefix.into()), host, port).await;
    });
    inside
}

pub(crate) fn raw_route(run: &TestProxy, port: u16) -> UnixStream {
    let (inside, outside) = UnixStream::pair().unwrap();
    let outside = Stream::Unix(outside);
    let (proxy, tls) = (run.proxy.clone(), run.tls.clone());
    tokio::spawn(async move { route::serve(&proxy, &tls, outside, port).await });
    inside
}

/// TLS as the client sees it, which trusts the run's authority alone.
pub(crate) async fn tls(
    run: &TestProxy,
    name: &str,
    sni: &str,
    port: u16,
    alpn: &[&[u8]],
) -> std::io::Result<TlsStream<DuplexStream>> {
    let pem = run.tls.trust().unwrap().ca_certificate;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    let sni = ServerName::try_from(sni.to_owned()).unwrap();
    let connector = TlsConnector::from(std::sync::Arc::new(config));
    connector.connect(sni, raw_intercepted(run, name, port)).await
}

pub(crate) const H1: &[u8] = ALPN_H1;
pub(crate) const H2: &[u8] = ALPN_H2;

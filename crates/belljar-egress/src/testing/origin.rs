//! A test server that echoes the request it received, and has some special paths.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONNECTION, CONTENT_ENCODING, HeaderMap, LOCATION, UPGRADE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

use crate::upstream::roots::{ALPN_H1, ALPN_H2, provider};

/// The certificate authority that the proxy trusts in a test.
pub(crate) struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_after = (SystemTime::now() + std::time::Duration::from_secs(86_400)).into();
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn der(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    fn server(&self, name: &str, alpn: &[&[u8]]) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key.into())
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Arc::new(config).into()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerProtocol {
    Plain,
    H1,
    H2,
}

/// What the server received of a request.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    pub(crate) uri: String,
    pub(crate) headers: HeaderMap,
    pub(crate) length: usize,
}

pub(crate) struct Origin {
    pub(crate) port: u16,
    pub(crate) proceed: Arc<Notify>,
    state: Arc<Mutex<OriginState>>,
}

#[derive(Default)]
struct OriginState {
    requests: Vec<ReceivedRequest>,
    connections: usize,
}

type OriginResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

impl Origin {
    /// Its certificate is for `localhost`.
    pub(crate) async fn start(ca: &Ca, protocol: ServerProtocol) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let alpn: &[&[u8]] = match protocol {
            ServerProtocol::H2 => &[ALPN_H2, ALPN_H1],
            _ => &[ALPN_H1],
        };
        let acceptor = ca.server("localhost", alpn);
        let (proceed, state) =
            (Arc::new(Notify::new()), Arc::new(Mutex::new(OriginState::default())));
        let origin = Self { port, proceed: proceed.clone(), state: state.clone() };
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap(); // as servers do
                state.lock().unwrap().connections += 1;
                let (state, proceed) = (state.clone(), proceed.clone());
                if protocol == ServerProtocol::Plain {
                    tokio::spawn(serve(stream, ServerProtocol::Plain, state, proceed));
                    continue;
                }
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let h2 = stream.get_ref().1.alpn_protocol() == Some(ALPN_H2);
                    let protocol = if h2 { ServerProtocol::H2 } else { ServerProtocol::H1 };
                    serve(stream, protocol, state, proceed).await;
                });
            }
        });
        origin
    }

    pub(crate) fn authority(&self) -> String {
        format!("localhost:{}", self.port)
    }

    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.state.lock().unwrap().requests.clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.state.lock().unwrap().connections
    }
}

async fn serve<I>(
    io: I,
    protocol: ServerProtocol,
    state: Arc<Mutex<OriginState>>,
    proceed: Arc<Notify>,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let (state, proceed) = (state.clone(), proceed.clone());
        async move { Ok::<_, Infallible>(respond(request, state, proceed).await) }
    });
    let io = TokioIo::new(io);
    let _ = if protocol == ServerProtocol::H2 {
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        builder.serve_connection(io, service).await
    } else {
        let builder = hyper::server::conn::http1::Builder::new();
        builder.serve_connection(io, service).with_upgrades().await
    };
}

async fn respond(
    mut request: Request<Incoming>,
    state: Arc<Mutex<OriginState>>,
    proceed: Arc<Notify>,
) -> OriginResponse {
    let upgrade = hyper::upgrade::on(&mut request);
    let (parts, body) = request.into_parts();
    let length = match body.collect().await {
        Ok(body) => body.to_bytes().len(),
        Err(_) => return Response::new(full("")),
    };
    let headers = parts.headers.clone();
    let received = format!("{:?}\n", headers);
    let (method, uri) = (parts.method.to_string(), parts.uri.to_string());
    state.lock().unwrap().requests.push(ReceivedRequest { method, uri, headers, length });
    match parts.uri.path() {
        "/big" => {
            let size: usize = parts.uri.query().unwrap().parse().unwrap();
            Response::new(full(vec![b'x'; size]))
        }
        "/trailers" => Response::new(trailers(parts.uri.query().unwrap().parse().unwrap())),
        "/coded" => Response::builder()
            .header(CONTENT_ENCODING, parts.uri.query().unwrap())
            .body(full("nobody can read this"))
            .unwrap(),
        "/events" => Response::new(events(proceed)),
        "/redirect" => {
            let to = parts.uri.query().unwrap();
            Response::builder().status(302).header(LOCATION, to).body(full("")).unwrap()
        }
        "/hop" => Response::builder()
            .header("connection", "x-mine")
            .header("x-mine", "1")
            .header("proxy-authenticate", "x")
            .header("x-yours", "2")
            .body(full("hop"))
            .unwrap(),
        "/ws" if parts.headers.contains_key(UPGRADE) => {
            tokio::spawn(async move {
                let mut stream = TokioIo::new(upgrade.await.unwrap());
                let mut buffer = [0; 1024];
                while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                    stream.write_all(&buffer[..length]).await.unwrap();
                }
            });
            Response::builder()
                .status(StatusCode::SWITCHING_PROTOCOLS)
                .header(CONNECTION, "upgrade")
                .header(UPGRADE, "websocket")
                .header("sec-websocket-accept", "x")
                .body(full(""))
                .unwrap()
        }
        "/close" => Response::builder().header(CONNECTION, "close").body(full("bye")).unwrap(),
        "/switch" => Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header(UPGRADE, "other")
            .body(full(""))
            .unwrap(),
        _ => Response::builder()
            .header("x-received", received.trim())
            .body(full(format!("{} bytes\n{received}", length)))
            .unwrap(),
    }
}

fn full(bytes: impl Into<Bytes>) -> UnsyncBoxBody<Bytes, Infallible> {
    let bytes = bytes.into();
    if bytes.is_empty() { Empty::new().boxed_unsync() } else { Full::new(bytes).boxed_unsync() }
}

fn trailers(size: usize) -> UnsyncBoxBody<Bytes, Infallible> {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-trailer", "t".repeat(size).parse().unwrap());
    let frames = [Frame::data(Bytes::from_static(b"x")), Frame::trailers(trailers)];
    StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>))).boxed_unsync()
}

/// One event at once, the next when the test calls `proceed`, then trailers.
fn events(proceed: Arc<Notify>) -> UnsyncBoxBody<Bytes, Infallible> {
    let frames = stream::unfold(0, move |at| {
        let proceed = proceed.clone();
        async move {
            let frame = match at {
                0 => Frame::data(Bytes::from_static(b"data: 1\n\n")),
                1 => {
                    proceed.notified().await;
                    Frame::data(Bytes::from_static(b"data: 2\n\n"))
                }
                2 => {
                    let mut trailers = HeaderMap::new();
                    trailers.insert("x-trailer", "end".parse().unwrap());
                    Frame::trailers(trailers)
                }
                _ => return None,
            };
            Some((Ok::<_, Infallible>(frame), at + 1))
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

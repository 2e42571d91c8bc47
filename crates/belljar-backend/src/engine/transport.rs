//! Sends HTTP requests over connections that [`dial`] opens, in the API version that both sides support.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bollard::errors::Error;
use bollard::{BollardRequest, ClientVersion, Docker};
use bytes::Bytes;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::dial::{self, Line, Stream};
use super::endpoint::Endpoint;
use super::ssh::Ssh;

/// Requests have bounds of their own; this one only has to be above them.
const REQUEST_SECONDS: u64 = 3600;
/// A connection that was idle for longer may have ended without notice.
const MAX_IDLE: Duration = Duration::from_secs(10);
/// For the rest of the last response to be read.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(50);

const MAX_ANSWER: usize = 4 << 20;

/// The body of a request, which has no public name.
trait Request {
    type Body;
}

impl<B> Request for hyper::Request<B> {
    type Body = B;
}

type Body = <BollardRequest as Request>::Body;

/// One engine's. A connection is used again while it is fresh: over ssh each costs a second.
#[derive(Clone, Debug)]
pub(super) struct Transport(Arc<Shared>);

/// The versions that an engine reports in the head of every response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EngineVersions {
    pub(super) api: Option<String>,
    /// Only Podman has this one.
    pub(super) libpod: Option<String>,
}

#[derive(Debug)]
struct Shared {
    endpoint: Endpoint,
    head: OnceLock<EngineVersions>,
    version: OnceLock<(u32, u32)>,
    idle: Mutex<Option<Connection>>,
}

#[derive(Debug)]
struct Connection {
    sender: SendRequest<Body>,
    ssh: Option<Arc<Ssh>>,
    used: Instant,
}

impl Transport {
    pub(super) fn new(endpoint: &Endpoint) -> Self {
        Self(Arc::new(Shared {
            endpoint: endpoint.clone(),
            head: OnceLock::new(),
            version: OnceLock::new(),
            idle: Mutex::new(None),
        }))
    }

    /// What makes requests of calls.
    pub(super) fn client(&self, version: &ClientVersion) -> Result<Docker, Error> {
        let shared = Arc::clone(&self.0);
        let send = move |request: BollardRequest| {
            let shared = Arc::clone(&shared);
            async move { shared.send(request).await.map_err(|err| Error::IOError { err }) }
        };
        let at = Some("http://engine"); // where that is, is known here
        Docker::connect_with_custom_transport(send, at, REQUEST_SECONDS, version)
    }

    /// The response as the engine sent it: Podman uses values that the client's types do not know.
    pub(super) async fn get(&self, path: &str) -> Result<(u16, Vec<u8>), Error> {
        let request = hyper::Request::builder().uri(path).body(bollard::body_full(Bytes::new()));
        let request = request.map_err(|error| Error::IOError { err: io::Error::other(error) })?;
        let answer = self.0.send(request).await.map_err(|err| Error::IOError { err })?;
        let (status, mut body) = (answer.status().as_u16(), answer.into_body());
        let mut bytes = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let frame = frame.map_err(|error| Error::IOError { err: io::Error::other(error) })?;
            if let Ok(data) = frame.into_data() {
                bytes.extend_from_slice(&data);
            }
            if bytes.len() > MAX_ANSWER {
                return Err(Error::IOError {
                    err: io::Error::other("the response is longer than 4 MiB"),
                });
            }
        }
        Ok((status, bytes))
    }

    /// Known after the first response.
    pub(super) fn versions(&self) -> EngineVersions {
        self.0.head.get().cloned().unwrap_or_default()
    }

    /// From now on requests name this version.
    pub(super) fn use_version(&self, version: (u32, u32)) {
        let _ = self.0.version.set(version); // asked for once
    }

    /// No connection stays open.
    pub(super) fn close_idle_connection(&self) {
        self.0.keep_idle(None);
    }
}

impl Shared {
    async fn send(&self, request: BollardRequest) -> io::Result<Response<Incoming>> {
        let answer = self.send_on_any_connection(request).await?;
        self.head.get_or_init(|| {
            let text = |name: &str| {
                let value = answer.headers().get(name)?;
                Some(value.to_str().ok()?.to_owned())
            };
            EngineVersions { api: text("api-version"), libpod: text("libpod-api-version") }
        });
        Ok(answer)
    }

    async fn send_on_any_connection(
        &self,
        request: BollardRequest,
    ) -> io::Result<Response<Incoming>> {
        let mut request = self.addressed(request)?;
        if let Some(mut known) = self.take_idle().await {
            match known.sender.try_send_request(request).await {
                Ok(answer) => {
                    self.keep_idle(Some(known));
                    return Ok(answer);
                }
                // It was never sent: another connection can.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(known.explain(error.into_error())),
                },
            }
        }
        let mut connection = self.connect().await?;
        match connection.sender.send_request(request).await {
            Ok(answer) => {
                self.keep_idle(Some(connection));
                Ok(answer)
            }
            Err(error) => Err(connection.explain(error)),
        }
    }

    /// With the path alone, as a server expects it, and the version in front of it.
    fn addressed(&self, request: BollardRequest) -> io::Result<BollardRequest> {
        let (mut head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let path = match self.version.get() {
            Some((major, minor)) => format!("/v{major}.{minor}{path}"),
            None => path.to_owned(),
        };
        head.uri = path.parse::<Uri>().map_err(io::Error::other)?;
        head.headers.insert(hyper::header::HOST, hyper::header::HeaderValue::from_static("engine"));
        Ok(BollardRequest::from_parts(head, body))
    }

    fn keep_idle(&self, connection: Option<Connection>) {
        if let Ok(mut idle) = self.idle.lock() {
            *idle = connection.map(|known| Connection { used: Instant::now(), ..known });
        }
    }

    async fn take_idle(&self) -> Option<Connection> {
        let idle = self.idle.lock().ok().and_then(|mut idle| idle.take());
        let mut known = idle.filter(|known| known.used.elapsed() < MAX_IDLE)?;
        tokio::task::yield_now().await; // so that an end which came meanwhile is seen
        let ready = tokio::time::timeout(SETTLE_TIMEOUT, known.sender.ready()).await;
        matches!(ready, Ok(Ok(()))).then_some(known)
    }

    async fn connect(&self) -> io::Result<Connection> {
        let Line { stream, ssh } = dial::open(&self.endpoint)?;
        let ssh = ssh.map(Arc::new);
        let opened = match stream {
            Stream::Unix(stream) => {
                stream.set_nonblocking(true)?;
                open(tokio::net::UnixStream::from_std(stream)?, ssh.clone()).await
            }
            Stream::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                open(tokio::net::TcpStream::from_std(stream)?, ssh.clone()).await
            }
        };
        let sender = opened.map_err(io::Error::other)?;
        Ok(Connection { sender, ssh, used: Instant::now() })
    }
}

async fn open(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ssh: Option<Arc<Ssh>>,
) -> hyper::Result<SendRequest<Body>> {
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        let _ended_with_it = ssh;
        let _ = connection.await; // the request gets the error
    });
    Ok(sender)
}

impl Connection {
    fn explain(&self, error: hyper::Error) -> io::Error {
        let error = io::Error::other(error);
        match &self.ssh {
            Some(ssh) => ssh.explain(error),
            None => error,
        }
    }
}

//! Serves the same pages over HTTP/2.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::header::{HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Sleep, sleep};

use super::counts::{Request, spelled};
use super::http1::{BETWEEN_EVENTS, Site, ZEROS};
use super::pages::{Asked, Body, page};

const MAX_BODY: usize = 1 << 20;

pub(super) async fn serve<S>(stream: S, at: SocketAddr, sni: Option<String>, site: &Site)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| answer(request, at, sni.clone(), site.clone()));
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    // Whoever is on the other side may leave at any time.
    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(
    request: hyper::Request<Incoming>,
    at: SocketAddr,
    sni: Option<String>,
    site: Site,
) -> Result<hyper::Response<Sent>, Infallible> {
    let (parts, body) = request.into_parts();
    let mut head = format!("{} {} HTTP/2\r\n", parts.method, parts.uri);
    for (name, value) in &parts.headers {
        head.push_str(&format!("{name}: {}\r\n", String::from_utf8_lossy(value.as_bytes())));
    }
    let body = Limited::new(body, MAX_BODY).collect().await;
    let body = body.map(|all| all.to_bytes()).unwrap_or_default();
    let body = String::from_utf8_lossy(&body).into_owned();
    let path = parts.uri.path_and_query().map_or("/", |both| both.as_str());
    let asked = Asked {
        method: parts.method.as_str(),
        path,
        wants_upgrade: false,
        head: &head,
        body: &body,
    };
    let page = page(&asked, &site.files);
    site.watch.requested(Request { at: spelled(at), sni, head: head.clone(), body: body.clone() });
    let body = match page.body {
        Body::Bytes(bytes) => Sent::Once(Some(Bytes::from(bytes))),
        Body::Zeros(count) => Sent::Zeros(count),
        Body::Events(count) => Sent::Events { sent: 0, all: count, pause: None },
        Body::Upgraded => Sent::Once(None),
    };
    let mut response = hyper::Response::new(body);
    *response.status_mut() = hyper::StatusCode::from_u16(page.status).unwrap_or_default();
    for (name, value) in page.headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    Ok(response)
}

/// A page's body, as it is made up.
enum Sent {
    Once(Option<Bytes>),
    Zeros(u64),
    Events { sent: u32, all: u32, pause: Option<Pin<Box<Sleep>>> },
}

impl hyper::body::Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match &mut *self {
            Self::Once(bytes) => bytes.take(),
            Self::Zeros(0) => None,
            Self::Zeros(left) => {
                let length = (*left).min(ZEROS.len() as u64);
                *left -= length;
                Some(Bytes::from_static(&ZEROS[..length as usize]))
            }
            Self::Events { sent, all, pause } => {
                if let Some(pause) = pause {
                    ready!(pause.as_mut().poll(context));
                }
                *sent += 1;
                *pause = Some(Box::pin(sleep(BETWEEN_EVENTS)));
                (*sent <= *all).then(|| Bytes::from(format!("data: event {sent}\n\n")))
            }
        };
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    /// Becomes the answer's length, where that is known.
    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Once(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Zeros(left) => SizeHint::with_exact(*left),
            Self::Events { .. } => SizeHint::default(),
        }
    }
}

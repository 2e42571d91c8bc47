//! Runs HTTP/1 and HTTP/2 servers towards the sandbox, with a bound on everything a client can send.

use std::convert::Infallible;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::http::body::Body;
use crate::http::headers::bad_request;
use crate::limits::{CONNECTION_WINDOW, MAX_HEAD_BYTES, MAX_HEADERS, SEND_BUFFER, STREAM_WINDOW};
use crate::proxy::{AccessRequest, Proxy};

/// Until a head has arrived. Clients reuse connections, and a request fails if its connection is closed under it, so
/// this is longer than clients usually keep one.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5 * 60);
const MAX_STREAMS: u32 = 100;

pub(crate) async fn serve_h1<I, S>(io: I, service: S) -> Result<(), hyper::Error>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send,
{
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(KEEP_ALIVE_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_header_size(MAX_HEAD_BYTES)
        .max_buf_size(MAX_HEAD_BYTES)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades()
        .await
}

/// Rapid resets are bounded by h2's own limits, which exist for that attack.
pub(crate) async fn serve_h2<I, S>(io: I, service: S) -> Result<(), hyper::Error>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(Duration::from_secs(60))
        .keep_alive_timeout(Duration::from_secs(30))
        .auto_date_header(false)
        .serve_connection(TokioIo::new(io), service)
        .await
}

/// Reports a request that hyper could not parse, and has already responded to.
pub(crate) fn report_parse_error(
    proxy: &Proxy,
    access: &AccessRequest<'_>,
    served: Result<(), hyper::Error>,
) {
    if let Err(error) = served
        && error.is_parse()
    {
        let _ = proxy.deny(access, bad_request(&error.to_string()));
    }
}

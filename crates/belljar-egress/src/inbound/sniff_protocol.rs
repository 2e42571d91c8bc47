//! Detects the protocol of a client connection by its first byte, and serves it: HTTP proxy, SOCKS or a route.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belljar_spec::egress::{DenyReason, PROXY_PORT, Via};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::timeout;

use crate::http::body::Body;
use crate::http::forward;
use crate::http::framing::{MonitoredIo, monitor_framing};
use crate::http::headers::bad_request;
use crate::http::refusal_response::refusal_response;
use crate::inbound::connect;
use crate::inbound::connect_plan::ConnectPlan;
use crate::inbound::half_close::{HalfCloseIo, PendingRequests};
use crate::inbound::route;
use crate::inbound::socks;
use crate::io::stream::Stream;
use crate::limits::MAX_HEAD_BYTES;
use crate::policy::Denial;
use crate::proxy::{Proxy, Refusal};
use crate::upstream::pool::UpstreamPool;
use crate::upstream::tls::TlsContext;

/// For the first byte, and for the head of each request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
const SOCKS_4: u8 = 4;
const SOCKS_5: u8 = 5;

/// Serves one connection until it ends.
pub(crate) async fn serve(proxy: Arc<Proxy>, tls: Arc<TlsContext>, stream: Stream, port: u16) {
    if port != PROXY_PORT {
        return Box::pin(route::serve(&proxy, &tls, stream, port)).await;
    }
    match timeout(HEADER_TIMEOUT, stream.first_byte()).await {
        Ok(Ok(Some(SOCKS_5))) => Box::pin(socks::serve(&proxy, &tls, stream)).await,
        Ok(Ok(Some(SOCKS_4))) => socks::refuse_version_4(&proxy, &stream),
        Ok(Ok(Some(_))) => Box::pin(serve_http(proxy, tls, stream)).await,
        Ok(Ok(None) | Err(_)) | Err(_) => {}
    }
}

/// A tunnel that starts when the response to CONNECT is sent.
type PendingTunnel = Arc<Mutex<Option<(ConnectPlan, OnUpgrade)>>>;

async fn serve_http(proxy: Arc<Proxy>, tls: Arc<TlsContext>, stream: Stream) {
    let pending_tunnel = PendingTunnel::default();
    let (stream, framing) = monitor_framing(stream);
    let pool = Arc::new(UpstreamPool::new(&tls, Some(framing)));
    let (request_count, requests) = (AtomicU64::new(0), Arc::new(PendingRequests::default()));
    let service = service_fn(|request| {
        let (proxy, pending_tunnel, pool) = (proxy.clone(), pending_tunnel.clone(), pool.clone());
        let (number, pending) = (request_count.fetch_add(1, Ordering::Relaxed), requests.begin());
        async move {
            let response = respond(&proxy, &pending_tunnel, &pool, (number, request)).await;
            Ok::<_, Infallible>(response.map(|body| pending.track(body)))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_header_size(MAX_HEAD_BYTES)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(HalfCloseIo::new(stream, &requests)), service)
        .with_upgrades();
    // Boxed, so that a tunnel does not keep the memory of the HTTP server before it.
    let served = Box::pin(connection).await;
    let tunnel = pending_tunnel.lock().unwrap_or_else(PoisonError::into_inner).take();
    if served.is_err_and(|error| error.is_parse()) {
        let detail = Some("it is not HTTP/1".to_owned());
        let denial = Denial { reason: DenyReason::BadRequest, detail };
        proxy.deny_unparsed(b"(unreadable)", Via::Http, denial);
        return;
    }
    let Some((plan, upgrade)) = tunnel else { return pool.wait_for_upgraded().await };
    drop(pool);
    let Ok(upgraded) = upgrade.await else { return };
    if let Ok(parts) = upgraded.downcast::<TokioIo<HalfCloseIo<MonitoredIo<Stream>>>>() {
        // Copied, since hyper's read buffer keeps its full capacity.
        let prefix = parts.read_buf.to_vec();
        drop(parts.read_buf);
        let client = parts.io.into_inner().into_inner().into_inner();
        Box::pin(plan.run(&tls, client, prefix)).await;
    }
}

async fn respond(
    proxy: &Arc<Proxy>,
    pending_tunnel: &PendingTunnel,
    pool: &UpstreamPool,
    (number, mut request): (u64, Request<Incoming>),
) -> Response<Body> {
    if request.method() != Method::CONNECT {
        return forward_plain(proxy, pool, request).await;
    }
    let upgrade = hyper::upgrade::on(&mut request);
    let (request, _) = request.into_parts();
    if let Some(fault) = pool.framing.as_ref().and_then(|framing| framing.fault_up_to(number)) {
        let target = request.uri.to_string();
        return refusal_response(&proxy.deny_unparsed(
            target.as_bytes(),
            Via::Connect,
            bad_request(fault),
        ));
    }
    match connect::open(proxy, &request).await {
        Ok(plan) => {
            if let Some(framing) = &pool.framing {
                framing.stop();
            }
            *pending_tunnel.lock().unwrap_or_else(PoisonError::into_inner) = Some((plan, upgrade));
            Response::new(Body::Text(None))
        }
        Err(refusal) => refusal_response(&refusal),
    }
}

/// A request that names its host itself.
async fn forward_plain(
    proxy: &Arc<Proxy>,
    pool: &UpstreamPool,
    request: Request<Incoming>,
) -> Response<Body> {
    let uri = request.uri();
    if uri.authority().is_none() {
        let detail = "this is a proxy, and the request names no host; ask for http://host/path, \
                      or use CONNECT";
        let refusal = proxy.deny_unparsed(uri.path().as_bytes(), Via::Http, bad_request(detail));
        return refusal_response(&Refusal { message: format!("belljar: {detail}."), ..refusal });
    }
    forward::forward_absolute(proxy, pool, request).await
}

//! The proxy's door: what comes from inside is told apart by its first byte.

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
use crate::http::framing::{Watched, watched};
use crate::http::headers::bad;
use crate::http::refusal_response::refused;
use crate::inbound::connect;
use crate::inbound::connect_plan::Way;
use crate::inbound::half_close::{Patient, Requests};
use crate::inbound::route;
use crate::inbound::socks;
use crate::io::stream::Stream;
use crate::limits::LONGEST_HEAD;
use crate::policy::Denial;
use crate::proxy::{Proxy, Refusal};
use crate::upstream::pool::Slot;
use crate::upstream::tls::Tls;

/// For the first byte, and for each head of a request.
const PATIENCE: Duration = Duration::from_secs(60);
const SOCKS_4: u8 = 4;
const SOCKS_5: u8 = 5;

/// Serves one connection until it ends.
pub(crate) async fn serve(proxy: Arc<Proxy>, tls: Arc<Tls>, stream: Stream, port: u16) {
    if port != PROXY_PORT {
        return Box::pin(route::serve(&proxy, &tls, stream, port)).await;
    }
    match timeout(PATIENCE, stream.first_byte()).await {
        Ok(Ok(Some(SOCKS_5))) => Box::pin(socks::serve(&proxy, &tls, stream)).await,
        Ok(Ok(Some(SOCKS_4))) => socks::refuse_version_4(&proxy, &stream),
        Ok(Ok(Some(_))) => Box::pin(serve_http(proxy, tls, stream)).await,
        Ok(Ok(None) | Err(_)) | Err(_) => {}
    }
}

/// A tunnel that begins when the answer to CONNECT was sent.
type Next = Arc<Mutex<Option<(Way, OnUpgrade)>>>;

async fn serve_http(proxy: Arc<Proxy>, tls: Arc<Tls>, stream: Stream) {
    let next = Next::default();
    let (stream, framing) = watched(stream);
    let slot = Arc::new(Slot::new(&tls, Some(framing)));
    let (heads, requests) = (AtomicU64::new(0), Arc::new(Requests::default()));
    let service = service_fn(|request| {
        let (proxy, next, slot) = (proxy.clone(), next.clone(), slot.clone());
        let (number, under_way) = (heads.fetch_add(1, Ordering::Relaxed), requests.begin());
        async move {
            let answer = answer(&proxy, &next, &slot, (number, request)).await;
            Ok::<_, Infallible>(answer.map(|body| under_way.until_the_end_of(body)))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(LONGEST_HEAD)
        .max_header_size(LONGEST_HEAD)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(Patient::new(stream, &requests)), service)
        .with_upgrades();
    // Apart, so that a tunnel does not keep the memory for what was before it.
    let served = Box::pin(connection).await;
    let taken = next.lock().unwrap_or_else(PoisonError::into_inner).take();
    if served.is_err_and(|error| error.is_parse()) {
        let detail = Some("it is not HTTP/1".to_owned());
        let denial = Denial { reason: DenyReason::BadRequest, detail };
        proxy.deny_text(b"(unreadable)", Via::Http, denial);
        return;
    }
    let Some((way, upgrade)) = taken else { return slot.ended().await };
    drop(slot);
    let Ok(upgraded) = upgrade.await else { return };
    if let Ok(parts) = upgraded.downcast::<TokioIo<Patient<Watched<Stream>>>>() {
        // A copy: of what was read, nothing may be left, and its buffer is as large as ever.
        let early = parts.read_buf.to_vec();
        drop(parts.read_buf);
        let inner = parts.io.into_inner().into_inner().into_inner();
        Box::pin(way.carry(&tls, inner, early)).await;
    }
}

async fn answer(
    proxy: &Arc<Proxy>,
    next: &Next,
    slot: &Slot,
    (number, mut request): (u64, Request<Incoming>),
) -> Response<Body> {
    if request.method() != Method::CONNECT {
        return plain(proxy, slot, request).await;
    }
    let upgrade = hyper::upgrade::on(&mut request);
    let (request, _) = request.into_parts();
    if let Some(fault) = slot.framing.as_ref().and_then(|framing| framing.fault_until(number)) {
        let asked = request.uri.to_string();
        return refused(&proxy.deny_text(asked.as_bytes(), Via::Connect, bad(fault)));
    }
    match connect::open(proxy, &request).await {
        Ok(way) => {
            if let Some(framing) = &slot.framing {
                framing.over();
            }
            *next.lock().unwrap_or_else(PoisonError::into_inner) = Some((way, upgrade));
            Response::new(Body::Words(None))
        }
        Err(refusal) => refused(&refusal),
    }
}

/// A request that names its host itself.
async fn plain(proxy: &Arc<Proxy>, slot: &Slot, request: Request<Incoming>) -> Response<Body> {
    let uri = request.uri();
    if uri.authority().is_none() {
        let detail = "this is a proxy, and the request names no host; ask for http://host/path, \
                      or use CONNECT";
        let refusal = proxy.deny_text(uri.path().as_bytes(), Via::Http, bad(detail));
        return refused(&Refusal { words: format!("belljar: {detail}."), ..refusal });
    }
    forward::plain(proxy, slot, request).await
}

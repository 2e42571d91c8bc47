//! Upgrades HTTP/1.1 connections to WebSocket and relays them, counted and unread.
//!
//! Extended CONNECT is not offered on HTTP/2; clients then open an HTTP/1.1 connection.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE,
};
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::http::body::SharedTicket;
use crate::http::headers::{list_items, strip_hop_by_hop};
use crate::limits::IDLE_TIMEOUT;
use crate::proxy::Flow;

const BUFFER_SIZE: usize = 16 * 1024;
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
const UPGRADE_TOKEN: HeaderValue = HeaderValue::from_static("upgrade");

/// Whether a request asks for an upgrade to WebSocket.
pub(crate) fn is_upgrade_request<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    request.version() == Version::HTTP_11
        && *request.method() == Method::GET
        && has_token(headers, CONNECTION, b"upgrade")
        && has_token(headers, UPGRADE, b"websocket")
        && !headers.contains_key(CONTENT_LENGTH)
        && !headers.contains_key(TRANSFER_ENCODING)
}

fn has_token(headers: &HeaderMap, name: HeaderName, token: &[u8]) -> bool {
    list_items(headers, name).any(|item| item.eq_ignore_ascii_case(token))
}

/// Restores the upgrade headers, which were stripped with the other hop-by-hop headers.
pub(crate) fn add_upgrade_headers(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, UPGRADE_TOKEN);
    headers.insert(UPGRADE, WEBSOCKET);
}

/// The host agreed; only the upgrade that was requested is returned.
pub(crate) fn set_response_headers(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    add_upgrade_headers(headers);
}

pub(crate) async fn relay(inside: OnUpgrade, outside: OnUpgrade, ticket: SharedTicket) {
    let (inside, outside) = match tokio::try_join!(inside, outside) {
        Ok((inside, outside)) => (TokioIo::new(inside), TokioIo::new(outside)),
        Err(error) => {
            let _ = ticket.failed_because(502, "it broke off", error.to_string());
            return;
        }
    };
    let (from_inside, to_inside) = tokio::io::split(inside);
    let (from_outside, to_outside) = tokio::io::split(outside);
    let progress = AtomicU64::new(0);
    // A failure in one direction ends both; a regular end leaves the other open.
    let _ = tokio::try_join!(
        pass(from_inside, to_outside, &progress, |bytes| ticket.count_out(bytes)),
        pass(from_outside, to_inside, &progress, |bytes| ticket.count_in(bytes)),
    );
}

struct Broken;

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    progress: &AtomicU64,
    count: impl Fn(usize) -> Flow,
) -> Result<(), Broken> {
    let mut buffer = vec![0; BUFFER_SIZE];
    loop {
        let before = progress.load(Ordering::Relaxed);
        let length = match timeout(IDLE_TIMEOUT, from.read(&mut buffer)).await {
            Ok(read) => read.map_err(|_| Broken)?,
            Err(_) if progress.load(Ordering::Relaxed) == before => return Err(Broken),
            Err(_) => continue,
        };
        progress.fetch_add(1, Ordering::Relaxed);
        if length == 0 {
            return to.shutdown().await.map_err(|_| Broken);
        }
        if count(length) == Flow::Stops {
            return Err(Broken);
        }
        to.write_all(&buffer[..length]).await.map_err(|_| Broken)?;
        to.flush().await.map_err(|_| Broken)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_upgrade(method: &str, headers: &[(&str, &str)]) -> bool {
        let mut request = Request::builder().method(method);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        is_upgrade_request(&request.body(()).unwrap())
    }

    #[test]
    fn only_websocket_upgrades_are_accepted() {
        let upgrade = [("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")];
        assert!(is_upgrade("GET", &upgrade));
        assert!(!is_upgrade("POST", &upgrade));
        assert!(!is_upgrade("GET", &[("connection", "upgrade"), ("upgrade", "h2c")]));
        assert!(!is_upgrade("GET", &[("upgrade", "websocket")]));
        let body = [("connection", "upgrade"), ("upgrade", "websocket"), ("content-length", "1")];
        assert!(!is_upgrade("GET", &body));
    }
}

//! Builds the proxy's own HTTP responses to refused requests: a short text, and the reason in a header.

use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};

use crate::http::body::Body;
use crate::proxy::Refusal;
use crate::report::denial_text;

pub(crate) const DENIED_HEADER: &str = "x-belljar-denied";

/// After a malformed request the rest of the connection is not trusted, so it is closed.
pub(crate) fn refusal_response(refusal: &Refusal) -> Response<Body> {
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::FORBIDDEN);
    let mut response = Response::new(Body::text(format!("{}\n", refusal.message)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if let Some(reason) = refusal.public_reason() {
        headers.insert(DENIED_HEADER, HeaderValue::from_static(denial_text::reason_name(reason)));
    }
    if status == StatusCode::BAD_REQUEST {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The same as bytes, for a connection from which nothing is read.
pub(crate) fn refusal_bytes(refusal: &Refusal) -> String {
    let Refusal { status, message, .. } = refusal;
    let reason = refusal.public_reason().map_or("", denial_text::reason_name);
    format!(
        "HTTP/1.1 {status} Forbidden\r\nconnection: close\r\ncontent-type: text/plain; charset=utf-8\r\n\
         content-length: {}\r\n{DENIED_HEADER}: {reason}\r\n\r\n{message}\n",
        message.len() + 1
    )
}

//! Sends one request over one upstream connection, and waits for the response.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::header::{HOST, HeaderValue};
use hyper::http::uri::{Authority, Parts as UriParts, Scheme};
use hyper::{Request, Response, Uri, Version};
use tokio::time::timeout;

use crate::http::body::{BodyError, Upload};
use crate::http::headers::Target;
use crate::http::request_target::wire_form;
use crate::upstream::pool::{H1Lease, Sender};

/// Models think long. It restarts while the request body is still moving.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Why there is no response.
pub(crate) enum SendError {
    /// Nothing was sent; the request is returned.
    NotSent(Box<Request<Upload>>),
    /// The connection ended before a byte of the response.
    Ended,
    TimedOut,
    /// The request body failed.
    Body(BodyFault),
    Failed(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFault {
    Malformed,
    Idle,
    Budget,
}

/// The connection is reserved until the response is complete.
pub(crate) struct UpstreamResponse {
    pub(crate) response: Response<Incoming>,
    pub(crate) lease: Option<H1Lease>,
}

pub(crate) async fn send(
    sender: Sender,
    target: &Target,
    mut request: Request<Upload>,
) -> Result<UpstreamResponse, SendError> {
    let progress = request.body().progress();
    let invalid = |_| SendError::Failed("the request has no form on the wire".to_owned());
    match sender {
        Sender::H1(mut lease) => {
            format_h1(&mut request, target).map_err(invalid)?;
            let Some(sender) = &mut lease.sender else { return Err(SendError::Ended) };
            let response = wait_for_response(sender.try_send_request(request), &progress).await?;
            Ok(UpstreamResponse { response, lease: Some(lease) })
        }
        Sender::H2(mut sender) => {
            format_h2(&mut request, target).map_err(invalid)?;
            let response = wait_for_response(sender.try_send_request(request), &progress).await?;
            Ok(UpstreamResponse { response, lease: None })
        }
    }
}

/// The request cannot be written in this HTTP version.
struct InvalidForm;

impl<E: Into<hyper::http::Error>> From<E> for InvalidForm {
    fn from(_: E) -> Self {
        Self
    }
}

/// `GET /path`, and `Host`.
fn format_h1(request: &mut Request<Upload>, target: &Target) -> Result<(), InvalidForm> {
    let mut parts = UriParts::default();
    parts.path_and_query = Some(wire_form(request.uri()).ok_or(InvalidForm)?);
    *request.uri_mut() = Uri::from_parts(parts)?;
    *request.version_mut() = Version::HTTP_11;
    let host = HeaderValue::try_from(target.authority())?;
    request.headers_mut().insert(HOST, host);
    Ok(())
}

/// `:scheme`, `:authority` and `:path`.
fn format_h2(request: &mut Request<Upload>, target: &Target) -> Result<(), InvalidForm> {
    let mut parts = UriParts::default();
    parts.path_and_query = Some(wire_form(request.uri()).ok_or(InvalidForm)?);
    parts.scheme = Some(Scheme::try_from(target.scheme.name())?);
    parts.authority = Some(Authority::try_from(target.authority())?);
    *request.uri_mut() = Uri::from_parts(parts)?;
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().remove(HOST);
    Ok(())
}

async fn wait_for_response(
    sent: impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Upload>>>>,
    progress: &Arc<AtomicU64>,
) -> Result<Response<Incoming>, SendError> {
    let mut sent = Box::pin(sent);
    loop {
        let before = progress.load(Ordering::Relaxed);
        match timeout(RESPONSE_TIMEOUT, &mut sent).await {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(mut error)) => {
                return Err(match error.take_message() {
                    Some(request) => SendError::NotSent(Box::new(request)),
                    None => classify(error.error()),
                });
            }
            Err(_) if progress.load(Ordering::Relaxed) == before => {
                return Err(SendError::TimedOut);
            }
            Err(_) => {}
        }
    }
}

fn classify(error: &hyper::Error) -> SendError {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(inner) = cause {
        match inner.downcast_ref::<BodyError>() {
            Some(BodyError::Http(_) | BodyError::Framing(_)) => {
                return SendError::Body(BodyFault::Malformed);
            }
            Some(BodyError::Idle) => return SendError::Body(BodyFault::Idle),
            Some(BodyError::Budget) => return SendError::Body(BodyFault::Budget),
            None => cause = inner.source(),
        }
    }
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        return SendError::Ended;
    }
    SendError::Failed(error.to_string())
}

//! One request over one connection: its form on the wire, and the wait for its answer.

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
use crate::http::request_target::on_the_wire;
use crate::upstream::pool::{Busy, Sender};

/// Models think long. It begins anew as long as the request itself is still on its way.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10 * 60);

/// Why there is no answer.
pub(crate) enum Unanswered {
    /// Nothing was sent: here it is again.
    NotSent(Box<Request<Upload>>),
    /// The connection ended, and not a byte had come back.
    Ended,
    TimedOut,
    /// What came from inside broke off.
    Body(BodyFault),
    Failed(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFault {
    Malformed,
    Idle,
    Budget,
}

/// The connection is busy for as long as the answer lasts.
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    pub(crate) busy: Option<Busy>,
}

pub(crate) async fn send(
    sender: Sender,
    target: &Target,
    mut request: Request<Upload>,
) -> Result<Answer, Unanswered> {
    let moved = request.body().moved();
    let unfit = |_| Unanswered::Failed("the request has no form on the wire".to_owned());
    match sender {
        Sender::H1(mut busy) => {
            shape_h1(&mut request, target).map_err(unfit)?;
            let Some(sender) = &mut busy.sender else { return Err(Unanswered::Ended) };
            let response = answer(sender.try_send_request(request), &moved).await?;
            Ok(Answer { response, busy: Some(busy) })
        }
        Sender::H2(mut sender) => {
            shape_h2(&mut request, target).map_err(unfit)?;
            let response = answer(sender.try_send_request(request), &moved).await?;
            Ok(Answer { response, busy: None })
        }
    }
}

/// The request has no form on the wire.
struct Unfit;

impl<E: Into<hyper::http::Error>> From<E> for Unfit {
    fn from(_: E) -> Self {
        Self
    }
}

/// `GET /path`, and `Host`.
fn shape_h1(request: &mut Request<Upload>, target: &Target) -> Result<(), Unfit> {
    let mut parts = UriParts::default();
    parts.path_and_query = Some(on_the_wire(request.uri()).ok_or(Unfit)?);
    *request.uri_mut() = Uri::from_parts(parts)?;
    *request.version_mut() = Version::HTTP_11;
    let host = HeaderValue::try_from(target.authority())?;
    request.headers_mut().insert(HOST, host);
    Ok(())
}

/// `:scheme`, `:authority` and `:path`.
fn shape_h2(request: &mut Request<Upload>, target: &Target) -> Result<(), Unfit> {
    let mut parts = UriParts::default();
    parts.path_and_query = Some(on_the_wire(request.uri()).ok_or(Unfit)?);
    parts.scheme = Some(Scheme::try_from(target.scheme.name())?);
    parts.authority = Some(Authority::try_from(target.authority())?);
    *request.uri_mut() = Uri::from_parts(parts)?;
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().remove(HOST);
    Ok(())
}

async fn answer(
    sent: impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Upload>>>>,
    moved: &Arc<AtomicU64>,
) -> Result<Response<Incoming>, Unanswered> {
    let mut sent = Box::pin(sent);
    loop {
        let before = moved.load(Ordering::Relaxed);
        match timeout(ANSWER_PATIENCE, &mut sent).await {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(mut error)) => {
                return Err(match error.take_message() {
                    Some(request) => Unanswered::NotSent(Box::new(request)),
                    None => why(error.error()),
                });
            }
            Err(_) if moved.load(Ordering::Relaxed) == before => return Err(Unanswered::TimedOut),
            Err(_) => {}
        }
    }
}

fn why(error: &hyper::Error) -> Unanswered {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(inner) = cause {
        match inner.downcast_ref::<BodyError>() {
            Some(BodyError::Http(_) | BodyError::Framing(_)) => {
                return Unanswered::Body(BodyFault::Malformed);
            }
            Some(BodyError::Idle) => return Unanswered::Body(BodyFault::Idle),
            Some(BodyError::Budget) => return Unanswered::Body(BodyFault::Budget),
            None => cause = inner.source(),
        }
    }
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        return Unanswered::Ended;
    }
    Unanswered::Failed(error.to_string())
}

//! Streams request and response bodies: counted against the budget, bounded in idle time, never collected.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use crate::http::framing::Framing;
use crate::http::headers::{head_size, strip_trailers};
use crate::http::secret_mask::SecretMask;
use crate::limits::IDLE_TIMEOUT;
use crate::policy::Denial;
use crate::proxy::{Flow, Refusal, Ticket};
use crate::upstream::pool::H1Lease;

/// After the last bytes, whatever they are. Parts that a host sends together arrive closer together than this.
const MAX_HOLD: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("nothing came for {} minutes", IDLE_TIMEOUT.as_secs() / 60)]
    Idle,
    #[error("a budget is spent")]
    Budget,
    #[error("{0}")]
    Framing(&'static str),
}

/// The ticket of an exchange, shared by its two directions.
#[derive(Clone)]
pub(crate) struct SharedTicket(Arc<Mutex<Option<Ticket>>>);

impl SharedTicket {
    pub(crate) fn new(ticket: Ticket) -> Self {
        Self(Arc::new(Mutex::new(Some(ticket))))
    }

    /// Takes the ticket out. No byte passes until it is put back.
    pub(crate) fn take(&self) -> Option<Ticket> {
        self.ticket().take()
    }

    pub(crate) fn put_back(&self, ticket: Ticket) {
        *self.ticket() = Some(ticket);
    }

    pub(crate) fn status(&self, status: u16) {
        if let Some(ticket) = &mut *self.ticket() {
            ticket.status(status);
        }
    }

    pub(crate) fn failed(&self, status: u16, detail: &'static str) -> Refusal {
        self.failed_because(status, detail, detail.to_owned())
    }

    /// For a failure whose details are for the record only.
    pub(crate) fn failed_because(
        &self,
        status: u16,
        public: &'static str,
        detail: String,
    ) -> Refusal {
        match &mut *self.ticket() {
            Some(ticket) => ticket.failed_because(status, public, detail),
            None => Refusal { status, message: format!("belljar: {public}."), reason: None },
        }
    }

    pub(crate) fn denied(&self, denial: Denial) -> Refusal {
        match &mut *self.ticket() {
            Some(ticket) => ticket.denied(denial),
            None => Refusal::denied(denial.reason, "belljar: it is not allowed".to_owned()),
        }
    }

    pub(crate) fn count_out(&self, bytes: usize) -> Flow {
        self.ticket().as_mut().map_or(Flow::Stops, |ticket| ticket.count_out(bytes as u64))
    }

    pub(crate) fn count_in(&self, bytes: usize) -> Flow {
        self.ticket().as_mut().map_or(Flow::Stops, |ticket| ticket.count_in(bytes as u64))
    }

    fn ticket(&self) -> MutexGuard<'_, Option<Ticket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request body, from the client to a host.
pub(crate) struct Upload {
    /// `None`: the request has no body.
    body: Option<Incoming>,
    ticket: SharedTicket,
    framing: Option<Arc<Framing>>,
    idle: IdleTimer,
    /// Counts frames, so that the wait for a response can tell a slow upload from a stall.
    progress: Arc<AtomicU64>,
}

impl Upload {
    pub(crate) fn new(
        body: Option<Incoming>,
        ticket: SharedTicket,
        framing: Option<Arc<Framing>>,
    ) -> Self {
        Self { body, ticket, framing, idle: IdleTimer::new(), progress: Arc::default() }
    }

    pub(crate) fn progress(&self) -> Arc<AtomicU64> {
        self.progress.clone()
    }
}

impl HttpBody for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        let frame = match Pin::new(body).poll_frame(cx) {
            Poll::Ready(Some(frame)) => frame?,
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => {
                ready!(this.idle.poll(cx));
                return Poll::Ready(Some(Err(BodyError::Idle)));
            }
        };
        if let Some(fault) = this.framing.as_ref().and_then(|framing| framing.fault()) {
            return Poll::Ready(Some(Err(BodyError::Framing(fault))));
        }
        this.idle.reset();
        this.progress.fetch_add(1, Ordering::Relaxed);
        let frame = match frame.into_trailers() {
            Ok(mut trailers) => {
                strip_trailers(&mut trailers);
                Frame::trailers(trailers)
            }
            Err(data) => data,
        };
        if this.ticket.count_out(size_of_frame(&frame)) == Flow::Stops {
            return Poll::Ready(Some(Err(BodyError::Budget)));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

/// A response body: a host's, or a text of the proxy itself.
pub(crate) enum Body {
    Text(Option<Bytes>),
    Download(Box<Download>),
}

impl Body {
    pub(crate) fn text(text: String) -> Self {
        Self::Text(Some(text.into()).filter(|text: &Bytes| !text.is_empty()))
    }
}

/// A response body, from a host to the client.
pub(crate) struct Download {
    body: Incoming,
    ticket: SharedTicket,
    idle: IdleTimer,
    mask: Option<SecretMask>,
    /// When held bytes are sent, if nothing follows them.
    release: Option<Pin<Box<Sleep>>>,
    last: Option<Frame<Bytes>>,
    /// Reserves the connection that the body is read from.
    _lease: Option<H1Lease>,
}

impl Download {
    pub(crate) fn new(
        body: Incoming,
        ticket: SharedTicket,
        mask: Option<SecretMask>,
        lease: Option<H1Lease>,
    ) -> Self {
        let (idle, release, last) = (IdleTimer::new(), None, None);
        Self { body, ticket, idle, mask, release, last, _lease: lease }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            let frame = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(Some(Err(error))) => return self.fail(error.into()),
                Poll::Ready(None) => return Poll::Ready(self.flush().map(Ok)),
                Poll::Pending => {
                    if let Poll::Ready(held) = self.poll_release(cx) {
                        return Poll::Ready(Some(Ok(held)));
                    }
                    ready!(self.idle.poll(cx));
                    return self.fail(BodyError::Idle);
                }
            };
            self.idle.reset();
            if self.ticket.count_in(size_of_frame(&frame)) == Flow::Stops {
                return Poll::Ready(Some(Err(BodyError::Budget)));
            }
            let Some(mask) = &mut self.mask else { return Poll::Ready(Some(Ok(frame))) };
            match frame.into_data() {
                Ok(data) => {
                    let seen = mask.mask_data(data);
                    self.release = Some(Box::pin(sleep(MAX_HOLD)));
                    if !seen.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(seen))));
                    }
                }
                Err(frame) => {
                    if let Ok(mut trailers) = frame.into_trailers() {
                        mask.mask_headers(&mut trailers);
                        self.last = Some(Frame::trailers(trailers));
                    }
                }
            }
        }
    }

    fn fail(&self, error: BodyError) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let _ = self.ticket.failed_because(502, "it broke off", error.to_string()); // the response has already started
        Poll::Ready(Some(Err(error)))
    }

    /// Single events are not held back until the next one.
    fn poll_release(&mut self, cx: &mut Context<'_>) -> Poll<Frame<Bytes>> {
        let Some(release) = &mut self.release else { return Poll::Pending };
        ready!(release.as_mut().poll(cx));
        self.release = None;
        match self.mask.as_mut().map(SecretMask::flush).filter(|held| !held.is_empty()) {
            Some(held) => Poll::Ready(Frame::data(held)),
            None => Poll::Pending,
        }
    }

    /// The held bytes, then the trailers.
    fn flush(&mut self) -> Option<Frame<Bytes>> {
        let held = self.mask.as_mut().map(SecretMask::flush).filter(|held| !held.is_empty());
        held.map(Frame::data).or_else(|| self.last.take())
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Download(download) => download.poll_next(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_none(),
            Self::Download(download) => {
                let held = download.mask.as_ref().map_or(0, SecretMask::held);
                download.body.is_end_stream() && held == 0 && download.last.is_none()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
            Self::Download(download) => {
                let held = download.mask.as_ref().map_or(0, SecretMask::held) as u64;
                let inner = download.body.size_hint();
                let mut hint = SizeHint::new();
                hint.set_lower(inner.lower().saturating_add(held));
                if let Some(upper) = inner.upper() {
                    hint.set_upper(upper.saturating_add(held));
                }
                hint
            }
        }
    }
}

/// Trailers can carry data too.
fn size_of_frame(frame: &Frame<Bytes>) -> usize {
    let trailers = frame.trailers_ref().map_or(0, |trailers| head_size(0, trailers));
    frame.data_ref().map_or(0, Bytes::len) + trailers as usize
}

struct IdleTimer(Pin<Box<Sleep>>);

impl IdleTimer {
    fn new() -> Self {
        Self(Box::pin(sleep(IDLE_TIMEOUT)))
    }

    fn reset(&mut self) {
        self.0.as_mut().reset(Instant::now() + IDLE_TIMEOUT);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

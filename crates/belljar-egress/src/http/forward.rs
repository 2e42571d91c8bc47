//! Carries single requests from a door to a host, and the answers back.

use std::convert::Infallible;
use std::sync::Arc;

use belljar_spec::egress::{DenyReason, Scheme, Via};
use belljar_spec::host::parse_authority;
use belljar_spec::host_rule::Seen;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_ENCODING, HeaderMap};
use hyper::http::request::Parts;
use hyper::service::{Service, service_fn};
use hyper::{Method, Request, Response, StatusCode, Version};

use crate::http::body::{Body, Download, Shared, Upload};
use crate::http::headers::{
    Target, bad, check_length, path_of, size_of, strip_hop_by_hop, strip_request,
};
use crate::http::overrides;
use crate::http::refusal_response::refused;
use crate::http::request_target::settle;
use crate::http::secret_injection::{Keys, NotPut};
use crate::http::secret_mask::Mask;
use crate::http::websocket;
use crate::policy::Denial;
use crate::proxy::{Ask, Flow, Proxy, Refusal, Ticket};
use crate::upstream::pool::{Age, Purpose, Sender, Slot};
use crate::upstream::send::{Answer, BodyFault, Unanswered, send};

/// A request that was admitted.
pub(crate) struct Errand<'a> {
    pub(crate) target: Target,
    pub(crate) keys: Keys<'a>,
    pub(crate) ticket: Ticket,
}

/// A request in absolute form, as a proxy gets it.
pub(crate) async fn plain(
    proxy: &Arc<Proxy>,
    slot: &Slot,
    request: Request<Incoming>,
) -> Response<Body> {
    let uri = request.uri();
    let authority = uri.authority().map_or("", |authority| authority.as_str()).as_bytes();
    let unreadable = |denial| refused(&proxy.deny_text(authority, Via::Http, denial));
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => {
            return unreadable(bad("https:// in the open; ask for a tunnel with CONNECT"));
        }
        _ => return unreadable(bad("a proxy is asked for http://host/path")),
    }
    let (host, port) = match parse_authority(authority) {
        Ok((host, port)) => (host, port.unwrap_or(Scheme::Http.usual_port())),
        Err(error) => {
            let detail = Some(error.to_string());
            return unreadable(Denial { reason: DenyReason::NotAName, detail });
        }
    };
    let target = Target { scheme: Scheme::Http, host, port };
    if port == Scheme::Https.usual_port() && !target.is_own(&proxy.policy.spec) {
        let seen = Seen::Request { method: request.method().as_str(), path: path_of(uri) };
        let ask = Ask { host: target.host, port, via: Via::Http, seen };
        let detail = Some(format!("through port {port} goes TLS"));
        return refused(&proxy.deny(&ask, Denial { reason: DenyReason::NotTls, detail }));
    }
    asked(proxy, slot, target, Via::Http, request).await
}

/// For a connection that is for one host: each request in it is decided about, and must be for that host.
pub(crate) fn handler(
    proxy: &Arc<Proxy>,
    slot: &Arc<Slot>,
    target: &Target,
    via: Via,
) -> impl Service<
    Request<Incoming>,
    Response = Response<Body>,
    Error = Infallible,
    Future: Send + 'static,
> + use<> {
    let (proxy, slot, target) = (proxy.clone(), slot.clone(), target.clone());
    service_fn(move |request| {
        let (proxy, slot, target) = (proxy.clone(), slot.clone(), target.clone());
        async move { Ok(asked(&proxy, &slot, target, via, request).await) }
    })
}

async fn asked(
    proxy: &Arc<Proxy>,
    slot: &Slot,
    target: Target,
    via: Via,
    request: Request<Incoming>,
) -> Response<Body> {
    let (mut parts, body) = request.into_parts();
    let settled = settle(&mut parts);
    let seen = Seen::Request { method: parts.method.as_str(), path: path_of(&parts.uri) };
    let ask = Ask { host: target.host.clone(), port: target.port, via, seen };
    let judged = proxy.policy.judges(&target.host, target.port);
    let checked = check_form(slot, &parts)
        .and(settled)
        .and_then(|()| target.check(&parts))
        .and_then(|()| judged.map_or(Ok(()), |judged| overrides::check(judged, &parts)));
    if let Err(denial) = checked {
        return refused(&proxy.deny(&ask, denial));
    }
    let mut ticket = match proxy.admit(&ask) {
        Ok(ticket) => ticket,
        Err(refusal) => return refused(&refusal),
    };
    let keys = match Keys::of_host(proxy, &target) {
        Ok(keys) => keys,
        Err(error) => return refused(&ticket.failed_because(502, NotPut::TOLD, error.to_string())),
    };
    let request = Request::from_parts(parts, body);
    let carried = carry(proxy, slot, Errand { target, keys, ticket }, request).await;
    carried.unwrap_or_else(|refusal| refused(&refusal))
}

/// What must hold for a request, wherever it goes.
pub(crate) fn check_form(slot: &Slot, request: &Parts) -> Result<(), Denial> {
    if let Some(fault) = slot.framing.as_ref().and_then(|framing| framing.fault()) {
        return Err(bad(fault));
    }
    if request.method == Method::CONNECT {
        return Err(bad("a tunnel within a connection"));
    }
    check_length(&request.headers)
}

pub(crate) async fn carry(
    proxy: &Arc<Proxy>,
    slot: &Slot,
    errand: Errand<'_>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let Errand { target, keys, mut ticket } = errand;
    let inside = websocket::wanted(&request).then(|| hyper::upgrade::on(&mut request));
    let (mut parts, body) = request.into_parts();
    parts.extensions.clear();
    strip_request(&mut parts.headers);
    if inside.is_some() {
        websocket::ask(&mut parts.headers);
    }
    if parts.method == Method::TRACE && !keys.is_empty() {
        return Err(ticket.denied(bad("TRACE gives back what was put in")));
    }
    keys.put_into(&mut parts)
        .map_err(|error| ticket.failed_because(502, NotPut::TOLD, error.to_string()))?;
    let first_line = parts.method.as_str().len() + parts.uri.to_string().len() + 12;
    if ticket.count_out(size_of(first_line, &parts.headers)) == Flow::Stops {
        return Err(over_budget(&mut ticket));
    }
    let (sender, age) = match inside {
        Some(_) => (slot.dial(&target, &mut ticket, Purpose::Upgrade).await?, Age::New),
        None => slot.any(&target, &mut ticket).await?,
    };
    let shared = Shared::new(ticket);
    let outgoing = Outgoing { slot, target: &target, shared: &shared };
    let Answer { mut response, busy } = outgoing.send(sender, age, parts, body).await?;
    let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let outside = switches.then(|| hyper::upgrade::on(&mut response));
    let (mut parts, body) = response.into_parts();
    shared.status(parts.status.as_u16());
    if shared.count_in(size_of(12, &parts.headers) as usize) == Flow::Stops {
        return Err(shared.failed(403, OVER));
    }
    parts.extensions.clear();
    parts.version = Version::HTTP_11;
    let mut mask = Mask::new(&keys, &proxy.reporter);
    if let Some(mask) = &mut mask {
        mask.cover_headers(&mut parts.headers);
    }
    match (inside, outside) {
        (Some(inside), Some(outside)) => {
            websocket::answer(&mut parts.headers);
            slot.becomes(websocket::relay(inside, outside, shared));
            Ok(Response::from_parts(parts, Body::Words(None)))
        }
        (None, Some(_)) => Err(shared.failed(502, "it changed the protocol without being asked")),
        (_, None) => {
            strip_hop_by_hop(&mut parts.headers);
            // It was asked for as it is, so that what was put in could be found in it.
            if !keys.is_empty() && is_coded(&parts.headers) && !body.is_end_stream() {
                let why = "its answer is compressed, which it was asked not to be: a secret in it would not be seen";
                return Err(shared.failed(502, why));
            }
            let download = Download::new(body, shared, mask, busy);
            Ok(Response::from_parts(parts, Body::Download(Box::new(download))))
        }
    }
}

fn is_coded(headers: &HeaderMap) -> bool {
    let plain = |coding: &[u8]| matches!(coding.to_ascii_lowercase().as_slice(), b"" | b"identity");
    let mut values = headers.get_all(CONTENT_ENCODING).iter();
    values.any(|value| {
        value.as_bytes().split(|byte| *byte == b',').any(|coding| !plain(coding.trim_ascii()))
    })
}

const OVER: &str = "a budget is spent";

fn over_budget(ticket: &mut Ticket) -> Refusal {
    ticket.failed(403, OVER)
}

struct Outgoing<'a> {
    slot: &'a Slot,
    target: &'a Target,
    shared: &'a Shared,
}

impl Outgoing<'_> {
    /// A kept connection may turn out to be dead. Then a new one is tried, if it is certain that the host did
    /// nothing yet: nothing was sent, or nothing that changes anything.
    async fn send(
        &self,
        sender: Sender,
        age: Age,
        parts: Parts,
        body: Incoming,
    ) -> Result<Answer, Refusal> {
        let empty = hyper::body::Body::is_end_stream(&body);
        let body = Some(body).filter(|_| !empty);
        let repeatable =
            empty && matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS);
        let spare = (repeatable && age == Age::Kept).then(|| parts.clone());
        let sent = send(sender, self.target, self.request(parts, body)).await;
        let again = match (sent, spare) {
            (Ok(answer), _) => return Ok(answer),
            (Err(Unanswered::NotSent(request)), _) if age == Age::Kept => *request,
            (Err(Unanswered::Ended), Some(spare)) => self.request(spare, None),
            (Err(other), _) => return Err(self.refusal(other)),
        };
        let Some(mut ticket) = self.shared.lend() else {
            return Err(self.refusal(Unanswered::Ended));
        };
        let sender = self.slot.dial(self.target, &mut ticket, Purpose::Requests).await?;
        self.shared.give_back(ticket);
        send(sender, self.target, again).await.map_err(|error| self.refusal(error))
    }

    fn request(&self, parts: Parts, body: Option<Incoming>) -> Request<Upload> {
        let framing = self.slot.framing.clone();
        Request::from_parts(parts, Upload::new(body, self.shared.clone(), framing))
    }

    fn refusal(&self, error: Unanswered) -> Refusal {
        let failed = |status, why: &'static str| self.shared.failed(status, why);
        match error {
            Unanswered::NotSent(_) => failed(502, "it takes no request"),
            Unanswered::Ended => failed(502, "it closed the connection without an answer"),
            Unanswered::TimedOut => failed(504, "it does not answer"),
            Unanswered::Body(BodyFault::Malformed) => {
                let fault = self.slot.framing.as_ref().and_then(|framing| framing.fault());
                self.shared.denied(bad(fault.unwrap_or("its body is malformed")))
            }
            Unanswered::Body(BodyFault::Idle) => failed(408, "its body does not come"),
            Unanswered::Body(BodyFault::Budget) => failed(403, OVER),
            Unanswered::Failed(why) => {
                self.shared.failed_because(502, "its answer cannot be read", why)
            }
        }
    }
}

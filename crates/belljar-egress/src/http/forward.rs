//! Forwards single HTTP requests to their host and returns the responses.

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

use crate::http::body::{Body, Download, SharedTicket, Upload};
use crate::http::headers::{
    Target, bad_request, check_length, head_size, list_items, path_only, strip_hop_by_hop,
    strip_request,
};
use crate::http::overrides;
use crate::http::refusal_response::refusal_response;
use crate::http::request_target::normalize;
use crate::http::secret_injection::{Credentials, InjectionError};
use crate::http::secret_mask::SecretMask;
use crate::http::websocket;
use crate::policy::Denial;
use crate::proxy::{AccessRequest, Flow, Proxy, Refusal, Ticket};
use crate::upstream::pool::{ConnectionAge, Purpose, Sender, UpstreamPool};
use crate::upstream::send::{BodyFault, SendError, UpstreamResponse, send};

/// A request that was allowed, with its ticket and credentials.
pub(crate) struct AdmittedRequest<'a> {
    pub(crate) target: Target,
    pub(crate) credentials: Credentials<'a>,
    pub(crate) ticket: Ticket,
}

/// A request in absolute form (`GET http://host/path`).
pub(crate) async fn forward_absolute(
    proxy: &Arc<Proxy>,
    pool: &UpstreamPool,
    request: Request<Incoming>,
) -> Response<Body> {
    let uri = request.uri();
    let authority = uri.authority().map_or("", |authority| authority.as_str()).as_bytes();
    let deny = |denial| refusal_response(&proxy.deny_unparsed(authority, Via::Http, denial));
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => {
            return deny(bad_request("https:// in the open; ask for a tunnel with CONNECT"));
        }
        _ => return deny(bad_request("a proxy is asked for http://host/path")),
    }
    let (host, port) = match parse_authority(authority) {
        Ok((host, port)) => (host, port.unwrap_or(Scheme::Http.usual_port())),
        Err(error) => {
            let detail = Some(error.to_string());
            return deny(Denial { reason: DenyReason::NotAName, detail });
        }
    };
    let target = Target { scheme: Scheme::Http, host, port };
    if port == Scheme::Https.usual_port() && !target.is_private_service(&proxy.policy().spec) {
        let seen = Seen::Request { method: request.method().as_str(), path: path_only(uri) };
        let access = AccessRequest { host: target.host, port, via: Via::Http, seen };
        let detail = Some(format!("through port {port} goes TLS"));
        return refusal_response(
            &proxy.deny(&access, Denial { reason: DenyReason::NotTls, detail }),
        );
    }
    forward_checked(proxy, pool, target, Via::Http, request).await
}

/// A service for a connection to one host: each request is decided about, and must be for that host.
pub(crate) fn handler(
    proxy: &Arc<Proxy>,
    pool: &Arc<UpstreamPool>,
    target: &Target,
    via: Via,
) -> impl Service<
    Request<Incoming>,
    Response = Response<Body>,
    Error = Infallible,
    Future: Send + 'static,
> + use<> {
    let (proxy, pool, target) = (proxy.clone(), pool.clone(), target.clone());
    service_fn(move |request| {
        let (proxy, pool, target) = (proxy.clone(), pool.clone(), target.clone());
        async move { Ok(forward_checked(&proxy, &pool, target, via, request).await) }
    })
}

async fn forward_checked(
    proxy: &Arc<Proxy>,
    pool: &UpstreamPool,
    target: Target,
    via: Via,
    request: Request<Incoming>,
) -> Response<Body> {
    let (mut parts, body) = request.into_parts();
    let normalized = normalize(&mut parts);
    let seen = Seen::Request { method: parts.method.as_str(), path: path_only(&parts.uri) };
    let access = AccessRequest { host: target.host.clone(), port: target.port, via, seen };
    let policy = proxy.policy();
    let scope = policy.rule_scope(&target.host, target.port);
    let checked = check_form(pool, &parts)
        .and(normalized)
        .and_then(|()| target.check(&parts))
        .and_then(|()| scope.map_or(Ok(()), |scope| overrides::check(scope, &parts)));
    if let Err(denial) = checked {
        return refusal_response(&proxy.deny(&access, denial));
    }
    let mut ticket = match proxy.admit(&access) {
        Ok(ticket) => ticket,
        Err(refusal) => return refusal_response(&refusal),
    };
    let credentials = match Credentials::for_request(&policy, &proxy.secrets, &target, &parts) {
        Ok(credentials) => credentials,
        Err(error) => {
            return refusal_response(&ticket.failed_because(
                502,
                InjectionError::PUBLIC_MESSAGE,
                error.to_string(),
            ));
        }
    };
    let request = Request::from_parts(parts, body);
    let exchanged =
        exchange(proxy, pool, AdmittedRequest { target, credentials, ticket }, request).await;
    exchanged.unwrap_or_else(|refusal| refusal_response(&refusal))
}

/// Checks that apply to every request.
pub(crate) fn check_form(pool: &UpstreamPool, request: &Parts) -> Result<(), Denial> {
    if let Some(fault) = pool.framing.as_ref().and_then(|framing| framing.fault()) {
        return Err(bad_request(fault));
    }
    if request.method == Method::CONNECT {
        return Err(bad_request("CONNECT inside a connection that is already a tunnel"));
    }
    check_length(&request.headers)
}

pub(crate) async fn exchange(
    proxy: &Arc<Proxy>,
    pool: &UpstreamPool,
    admitted: AdmittedRequest<'_>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let AdmittedRequest { target, credentials, mut ticket } = admitted;
    let inside = websocket::is_upgrade_request(&request).then(|| hyper::upgrade::on(&mut request));
    let (mut parts, body) = request.into_parts();
    parts.extensions.clear();
    strip_request(&mut parts.headers);
    if inside.is_some() {
        websocket::add_upgrade_headers(&mut parts.headers);
    }
    if parts.method == Method::TRACE && !credentials.is_empty() {
        return Err(ticket.denied(bad_request("TRACE gives back what was put in")));
    }
    credentials.insert_into(&mut parts).map_err(|error| {
        ticket.failed_because(502, InjectionError::PUBLIC_MESSAGE, error.to_string())
    })?;
    let first_line = parts.method.as_str().len() + parts.uri.to_string().len() + 12;
    if ticket.count_out(head_size(first_line, &parts.headers)) == Flow::Stops {
        return Err(over_budget(&mut ticket));
    }
    let (sender, age) = match inside {
        Some(_) => (pool.dial(&target, &mut ticket, Purpose::Upgrade).await?, ConnectionAge::New),
        None => pool.acquire(&target, &mut ticket).await?,
    };
    let ticket_handle = SharedTicket::new(ticket);
    let outgoing = Outgoing { pool, target: &target, ticket_handle: &ticket_handle };
    let UpstreamResponse { mut response, lease } = outgoing.send(sender, age, parts, body).await?;
    let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let outside = switches.then(|| hyper::upgrade::on(&mut response));
    let (mut parts, body) = response.into_parts();
    ticket_handle.status(parts.status.as_u16());
    if ticket_handle.count_in(head_size(12, &parts.headers) as usize) == Flow::Stops {
        return Err(ticket_handle.failed(403, BUDGET_SPENT));
    }
    parts.extensions.clear();
    parts.version = Version::HTTP_11;
    let mut mask = SecretMask::new(&credentials, &proxy.reporter);
    if let Some(mask) = &mut mask {
        mask.mask_headers(&mut parts.headers);
    }
    match (inside, outside) {
        (Some(inside), Some(outside)) => {
            websocket::set_response_headers(&mut parts.headers);
            pool.set_upgraded(websocket::relay(inside, outside, ticket_handle));
            Ok(Response::from_parts(parts, Body::Text(None)))
        }
        (None, Some(_)) => {
            Err(ticket_handle.failed(502, "it changed the protocol without being asked"))
        }
        (_, None) => {
            strip_hop_by_hop(&mut parts.headers);
            // The request asked for an uncompressed response, so that the secret can be found in it.
            if !credentials.is_empty() && is_compressed(&parts.headers) && !body.is_end_stream() {
                let why = "its answer is compressed, which it was asked not to be: a secret in it would not be seen";
                return Err(ticket_handle.failed(502, why));
            }
            let download = Download::new(body, ticket_handle, mask, lease);
            Ok(Response::from_parts(parts, Body::Download(Box::new(download))))
        }
    }
}

fn is_compressed(headers: &HeaderMap) -> bool {
    list_items(headers, CONTENT_ENCODING)
        .any(|coding| !matches!(coding.to_ascii_lowercase().as_slice(), b"" | b"identity"))
}

const BUDGET_SPENT: &str = "a budget is spent";

fn over_budget(ticket: &mut Ticket) -> Refusal {
    ticket.failed(403, BUDGET_SPENT)
}

struct Outgoing<'a> {
    pool: &'a UpstreamPool,
    target: &'a Target,
    ticket_handle: &'a SharedTicket,
}

impl Outgoing<'_> {
    /// A reused connection may be dead. Then a new one is tried, if the host certainly did nothing yet: nothing was
    /// sent, or only a request that changes nothing.
    async fn send(
        &self,
        sender: Sender,
        age: ConnectionAge,
        parts: Parts,
        body: Incoming,
    ) -> Result<UpstreamResponse, Refusal> {
        let empty = hyper::body::Body::is_end_stream(&body);
        let body = Some(body).filter(|_| !empty);
        let repeatable =
            empty && matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS);
        let spare = (repeatable && age == ConnectionAge::Reused).then(|| parts.clone());
        let sent = send(sender, self.target, self.request(parts, body)).await;
        let again = match (sent, spare) {
            (Ok(response), _) => return Ok(response),
            (Err(SendError::NotSent(request)), _) if age == ConnectionAge::Reused => *request,
            (Err(SendError::Ended), Some(spare)) => self.request(spare, None),
            (Err(other), _) => return Err(self.refusal(other)),
        };
        let Some(mut ticket) = self.ticket_handle.take() else {
            return Err(self.refusal(SendError::Ended));
        };
        let sender = self.pool.dial(self.target, &mut ticket, Purpose::Requests).await?;
        self.ticket_handle.put_back(ticket);
        send(sender, self.target, again).await.map_err(|error| self.refusal(error))
    }

    fn request(&self, parts: Parts, body: Option<Incoming>) -> Request<Upload> {
        let framing = self.pool.framing.clone();
        Request::from_parts(parts, Upload::new(body, self.ticket_handle.clone(), framing))
    }

    fn refusal(&self, error: SendError) -> Refusal {
        let failed = |status, why: &'static str| self.ticket_handle.failed(status, why);
        match error {
            SendError::NotSent(_) => failed(502, "it takes no request"),
            SendError::Ended => failed(502, "it closed the connection without an answer"),
            SendError::TimedOut => failed(504, "it does not answer"),
            SendError::Body(BodyFault::Malformed) => {
                let fault = self.pool.framing.as_ref().and_then(|framing| framing.fault());
                self.ticket_handle.denied(bad_request(fault.unwrap_or("its body is malformed")))
            }
            SendError::Body(BodyFault::Idle) => failed(408, "its body does not come"),
            SendError::Body(BodyFault::Budget) => failed(403, BUDGET_SPENT),
            SendError::Failed(why) => {
                self.ticket_handle.failed_because(502, "its answer cannot be read", why)
            }
        }
    }
}

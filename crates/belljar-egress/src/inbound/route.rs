//! Serves a route: a plain HTTP port in the sandbox that forwards to one target and adds its secret.
//!
//! It is for tools that take a base URL.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use belljar_spec::Host;
use belljar_spec::egress::{DenyReason, RouteSpec, RouteTarget, Scheme, Via};
use belljar_spec::host::parse_authority;
use belljar_spec::host_rule::{Seen, is_plain_path};
use hyper::body::Incoming;
use hyper::header::{HOST, HeaderMap, HeaderValue, LOCATION, ORIGIN, REFERER};
use hyper::http::request::Parts;
use hyper::http::uri::PathAndQuery;
use hyper::service::service_fn;
use hyper::{Request, Response, Uri, Version};

use crate::http::body::Body;
use crate::http::forward::{AdmittedRequest, check_form, exchange};
use crate::http::framing::monitor_framing;
use crate::http::headers::{Target, bad_request, name_mismatch, path_only};
use crate::http::overrides;
use crate::http::refusal_response::refusal_response;
use crate::http::request_target::normalize;
use crate::http::secret_injection::{Credentials, InjectionError};
use crate::inbound::http_server;
use crate::inbound::tcp_route;
use crate::io::stream::Stream;
use crate::policy::Denial;
use crate::proxy::{AccessRequest, Proxy, Refusal};
use crate::upstream::pool::UpstreamPool;
use crate::upstream::tls::TlsContext;

/// Serves a connection to a route's port.
pub(crate) async fn serve(proxy: &Arc<Proxy>, tls: &Arc<TlsContext>, io: Stream, port: u16) {
    let Some(route) = proxy.policy().route(port).cloned() else { return };
    let Some(scheme) = route.to.scheme.http() else {
        return tcp_route::serve(proxy, io, &route).await;
    };
    let (io, framing) = monitor_framing(io);
    let pool = Arc::new(UpstreamPool::new(tls, Some(framing)));
    let route = Arc::new(route);
    let (handled, with, through) = (proxy.clone(), route.clone(), pool.clone());
    let service = service_fn(move |request| {
        let (proxy, pool, route) = (handled.clone(), through.clone(), with.clone());
        async move {
            let response = respond(&proxy, &pool, (&route, scheme), request).await;
            Ok::<_, Infallible>(response.unwrap_or_else(|refusal| refusal_response(&refusal)))
        }
    });
    let served = http_server::serve_h1(io, service).await;
    http_server::report_parse_error(proxy, &access_to(&route, Seen::Nothing), served);
    pool.wait_for_upgraded().await;
}

pub(super) fn access_to<'a>(route: &RouteSpec, seen: Seen<'a>) -> AccessRequest<'a> {
    AccessRequest { host: route.to.host.clone(), port: route.to.port, via: Via::Route, seen }
}

async fn respond(
    proxy: &Arc<Proxy>,
    pool: &UpstreamPool,
    (route, scheme): (&RouteSpec, Scheme),
    request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let (mut parts, body) = request.into_parts();
    let host_header = parts.headers.get(HOST).cloned();
    let normalized = normalize(&mut parts);
    let full_path = format!("{}{}", route.to.path, path_only(&parts.uri));
    let method = parts.method.clone();
    let access = access_to(route, Seen::Request { method: method.as_str(), path: &full_path });
    check_form(pool, &parts)
        .and(normalized)
        .and_then(|()| check(route, &parts))
        .map_err(|denial| proxy.deny(&access, denial))?;
    parts.uri = join_path(&route.to, &parts.uri)
        .ok_or_else(|| proxy.deny(&access, bad_request("its path is no path")))?;
    // They name an origin that exists only in the sandbox.
    parts.headers.remove(ORIGIN);
    parts.headers.remove(REFERER);
    let mut ticket = proxy.admit_route(&access, route.listen)?;
    let policy = proxy.policy();
    let credentials = Credentials::for_route(&policy, &proxy.secrets, route).map_err(|error| {
        ticket.failed_because(502, InjectionError::PUBLIC_MESSAGE, error.to_string())
    })?;
    let RouteTarget { host, port, .. } = route.to.clone();
    let admitted = AdmittedRequest { target: Target { scheme, host, port }, credentials, ticket };
    let mut response = exchange(proxy, pool, admitted, Request::from_parts(parts, body)).await?;
    rewrite_redirect(response.headers_mut(), (route, scheme), host_header.as_ref());
    Ok(response)
}

/// The Host header must be loopback: a web page whose name was rebound to loopback sends that name.
fn check(route: &RouteSpec, request: &Parts) -> Result<(), Denial> {
    if request.uri.authority().is_some() || request.uri.scheme().is_some() {
        return Err(bad_request("this port is no proxy; ask for /path"));
    }
    let mut hosts = request.headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if is_loopback(host.as_bytes()) => {}
        (None, _) if request.version == Version::HTTP_10 => {}
        (Some(host), None) => return Err(name_mismatch(host.as_bytes())),
        (None, _) => return Err(bad_request("Host is not there")),
        (Some(_), Some(_)) => return Err(bad_request("Host is there more than once")),
    }
    // Where the operator named a path, no request may leave it.
    if route.to.path.is_empty() {
        return Ok(());
    }
    if !is_plain_path(path_only(&request.uri)) {
        return Err(Denial {
            reason: DenyReason::RequestNotListed,
            detail: Some(format!("its path may lead out of {}", route.to.path)),
        });
    }
    overrides::check_path(&request.headers)
}

fn is_loopback(authority: &[u8]) -> bool {
    match parse_authority(authority) {
        Ok((Host::Name(name), _)) => name == "localhost" || name.ends_with(".localhost"),
        Ok((Host::Address(IpAddr::V4(address)), _)) => address.is_loopback(),
        Ok((Host::Address(IpAddr::V6(address)), _)) => address.is_loopback(),
        Err(_) => false,
    }
}

/// The same path and query, below the target's path.
fn join_path(target: &RouteTarget, uri: &Uri) -> Option<Uri> {
    let requested = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let joined =
        if requested == "*" { requested.to_owned() } else { format!("{}{requested}", target.path) };
    joined.parse().ok()
}

/// Rewrites a redirect within the target to this port, so that the next request gets the secret too.
fn rewrite_redirect(
    headers: &mut HeaderMap,
    (route, target_scheme): (&RouteSpec, Scheme),
    host_header: Option<&HeaderValue>,
) {
    let Some(location) = headers.get(LOCATION).and_then(|value| value.to_str().ok()) else {
        return;
    };
    let elsewhere = location.starts_with("//"); // scheme-relative: another host
    let Some(location) = location.parse::<Uri>().ok().filter(|_| !elsewhere) else { return };
    if let Some(authority) = location.authority() {
        let scheme = location.scheme_str().unwrap_or_default();
        let Ok((host, port)) = parse_authority(authority.as_str().as_bytes()) else { return };
        let port = port.unwrap_or(target_scheme.usual_port());
        if scheme != target_scheme.name() || host != route.to.host || port != route.to.port {
            return;
        }
    }
    let path = location.path_and_query().map_or("/", PathAndQuery::as_str);
    let rest = match path.strip_prefix(route.to.path.as_str()) {
        Some("") => "/".to_owned(),
        Some(rest) if rest.starts_with('/') => rest.to_owned(),
        Some(rest) if rest.starts_with('?') => format!("/{rest}"),
        _ => return,
    };
    let host_header = host_header.and_then(|value| value.to_str().ok()).map(str::to_owned);
    let host_header = host_header.unwrap_or_else(|| format!("127.0.0.1:{}", route.listen));
    if let Ok(value) = HeaderValue::try_from(format!("http://{host_header}{rest}")) {
        headers.insert(LOCATION, value);
    }
}

#[cfg(test)]
mod tests {
    use belljar_spec::egress::RouteScheme;

    use super::*;

    fn route(path: &str) -> RouteSpec {
        let host = Host::parse(b"api.example").unwrap();
        let to = RouteTarget { scheme: RouteScheme::Https, host, port: 443, path: path.to_owned() };
        RouteSpec { listen: 8080, to, secret: None }
    }

    fn redirected(path: &str, location: &str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(LOCATION, HeaderValue::try_from(location).unwrap());
        rewrite_redirect(
            &mut headers,
            (&route(path), Scheme::Https),
            Some(&HeaderValue::from_static("localhost:8080")),
        );
        headers[LOCATION].to_str().unwrap().to_owned()
    }

    #[test]
    fn a_redirect_within_the_target_is_rewritten_to_the_route() {
        let cases = [
            ("", "https://api.example/a?b", "http://localhost:8080/a?b"),
            ("", "https://API.example:443/a", "http://localhost:8080/a"),
            ("", "https://api.example", "http://localhost:8080/"),
            ("/v1", "https://api.example/v1/a", "http://localhost:8080/a"),
            ("/v1", "/v1/a", "http://localhost:8080/a"),
            ("/v1", "/v1?x", "http://localhost:8080/?x"),
            ("/v1", "/v10", "/v10"),
            ("/v1", "https://api.example/other", "https://api.example/other"),
            ("", "https://api.example.evil/", "https://api.example.evil/"),
            ("", "http://api.example/", "http://api.example/"),
            ("", "https://api.example:8443/", "https://api.example:8443/"),
            ("", "relative", "relative"),
            ("", "//evil.example/x", "//evil.example/x"),
        ];
        for (path, location, expected) in cases {
            assert_eq!(redirected(path, location), expected, "{location}");
        }
    }

    fn denial_of(path: &str, uri: &str, hosts: &[&str]) -> Option<DenyReason> {
        let mut request = Request::builder().uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        check(&route(path), &parts).err().map(|denial| denial.reason)
    }

    #[test]
    fn only_requests_for_loopback_are_served() {
        for host in ["localhost", "localhost:8080", "127.0.0.1:8080", "127.1.2.3", "[::1]:8080"] {
            assert_eq!(denial_of("", "/x", &[host]), None, "{host}");
        }
        for host in ["evil.example", "api.example", "10.0.0.1:8080", "localhost.evil", "127.1", ""]
        {
            assert_eq!(denial_of("", "/x", &[host]), Some(DenyReason::NamesDiffer), "{host}");
        }
        assert_eq!(denial_of("", "/x", &[]), Some(DenyReason::BadRequest));
        assert_eq!(denial_of("", "/", &["localhost", "localhost"]), Some(DenyReason::BadRequest));
        assert_eq!(
            denial_of("", "http://localhost/", &["localhost"]),
            Some(DenyReason::BadRequest)
        );
    }

    #[test]
    fn no_header_leaves_the_path_of_the_route() {
        let denial_of = |path: &str, header: &str| {
            let request =
                Request::builder().uri("/x").header(HOST, "localhost").header(header, "/y");
            let (parts, ()) = request.body(()).unwrap().into_parts();
            check(&route(path), &parts).err().map(|denial| denial.reason)
        };
        for header in ["x-original-url", "x-forwarded-prefix", "destination"] {
            assert_eq!(denial_of("/v1", header), Some(DenyReason::BadRequest), "{header}");
            assert_eq!(denial_of("", header), None, "{header}");
        }
        assert_eq!(denial_of("/v1", "x-http-method-override"), None);
    }

    #[test]
    fn no_request_leaves_the_path_of_the_route() {
        assert_eq!(denial_of("/v1", "/a/b?c=../..", &["localhost"]), None);
        for path in ["/../admin", "/%2e%2e/admin", "/..%2fadmin", "//x"] {
            assert_eq!(denial_of("/v1", path, &["localhost"]), Some(DenyReason::RequestNotListed));
            assert_eq!(denial_of("", path, &["localhost"]), None);
        }
        let uri = join_path(&route("/v1").to, &"/a?b=c".parse().unwrap()).unwrap();
        assert_eq!(uri, "/v1/a?b=c");
    }
}

//! Handles CONNECT: parses and checks the request for a tunnel, then opens it.

use std::sync::Arc;

use belljar_spec::Host;
use belljar_spec::egress::{DenyReason, PROXY_PORT, Via};
use belljar_spec::host::parse_authority;
use belljar_spec::host_rule::Seen;
use hyper::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use hyper::http::request::Parts;

use crate::http::headers::{bad_request, name_mismatch};
use crate::inbound::connect_plan::ConnectPlan;
use crate::policy::Denial;
use crate::proxy::{AccessRequest, Proxy, Refusal};

/// Decides about the request and connects.
pub(crate) async fn open(proxy: &Arc<Proxy>, request: &Parts) -> Result<ConnectPlan, Refusal> {
    let (host, port) = target(proxy, request)?;
    if let Some(denial) = find_contradiction(request, &host, port) {
        let access = AccessRequest { host, port, via: Via::Connect, seen: Seen::Nothing };
        return Err(proxy.deny(&access, denial));
    }
    ConnectPlan::open(proxy, host, port, Via::Connect).await
}

fn target(proxy: &Proxy, request: &Parts) -> Result<(Host, u16), Refusal> {
    let uri = &request.uri;
    let text = uri.to_string();
    let refuse = |denial| proxy.deny_unparsed(text.as_bytes(), Via::Connect, denial);
    let plain = uri.scheme().is_none() && uri.path_and_query().is_none();
    let Some(authority) = uri.authority().filter(|_| plain) else {
        return Err(refuse(bad_request("CONNECT takes host:port")));
    };
    match parse_authority(authority.as_str().as_bytes()) {
        Ok((host, Some(port))) => Ok((host, port)),
        Ok((_, None)) => Err(refuse(bad_request("CONNECT needs a port"))),
        Err(error) => {
            let detail = Some(error.to_string());
            Err(refuse(Denial { reason: DenyReason::NotAName, detail }))
        }
    }
}

/// Finds what in the request contradicts its target.
fn find_contradiction(request: &Parts, host: &Host, port: u16) -> Option<Denial> {
    let headers = &request.headers;
    let empty = |length: &hyper::header::HeaderValue| length.as_bytes() == b"0";
    if headers.contains_key(TRANSFER_ENCODING) || !headers.get_all(CONTENT_LENGTH).iter().all(empty)
    {
        return Some(bad_request("CONNECT has no body"));
    }
    let mut hosts = headers.get_all(HOST).iter();
    let named = hosts.next()?;
    if hosts.next().is_some() {
        return Some(bad_request("Host is there more than once"));
    }
    match parse_authority(named.as_bytes()) {
        Ok((named_host, named_port))
            if named_host == *host && named_port.is_none_or(|named_port| named_port == port) =>
        {
            None
        }
        // Some clients send the proxy's address as Host, not the target's.
        Ok((named_host, Some(PROXY_PORT))) if is_loopback(&named_host) => None,
        _ => Some(name_mismatch(named.as_bytes())),
    }
}

fn is_loopback(host: &Host) -> bool {
    match host {
        Host::Name(name) => name == "localhost",
        Host::Address(address) => address.is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn judge(headers: &[(&str, &str)]) -> Option<DenyReason> {
        let mut request = Request::builder().method("CONNECT").uri("a.example:443");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let host = Host::parse(b"a.example").unwrap();
        find_contradiction(&parts, &host, 443).map(|denial| denial.reason)
    }

    #[test]
    fn the_host_header_agrees_or_is_absent() {
        for good in
            ["a.example", "a.example:443", "A.EXAMPLE.", "A.example.:443", "127.0.0.1:61080"]
        {
            assert_eq!(judge(&[("host", good)]), None, "{good}");
        }
        for bad in [
            "b.example",
            "a.example:80",
            "127.0.0.1:443",
            "b.example:61080",
            "",
            "a.example@b",
            "a.example:443:443",
            "[a",
        ] {
            assert_eq!(judge(&[("host", bad)]), Some(DenyReason::NamesDiffer), "{bad}");
        }
        assert_eq!(judge(&[]), None);
        let twice = [("host", "a.example"), ("host", "a.example")];
        assert_eq!(judge(&twice), Some(DenyReason::BadRequest));
    }

    #[test]
    fn connect_with_a_body_is_denied() {
        assert_eq!(judge(&[("content-length", "0")]), None);
        assert_eq!(judge(&[("content-length", "5")]), Some(DenyReason::BadRequest));
        assert_eq!(judge(&[("transfer-encoding", "chunked")]), Some(DenyReason::BadRequest));
    }
}

//! Checks and strips headers: hop-by-hop fields, lengths, and host names that must agree.

use belljar_spec::Host;
use belljar_spec::egress::{DenyReason, EgressSpec, Scheme};
use belljar_spec::host::parse_authority;
use belljar_spec::text::escape;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::{Uri, Version};
use memchr::memrchr;

use crate::http::overrides;
use crate::policy::Denial;

const SHOWN: usize = 255;

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) scheme: Scheme,
    pub(crate) host: Host,
    pub(crate) port: u16,
}

impl Target {
    /// As written in `Host` and `:authority`.
    pub(crate) fn authority(&self) -> String {
        if self.port == self.scheme.usual_port() {
            return self.host.to_string();
        }
        format!("{}:{}", self.host, self.port)
    }

    /// Whether the operator listed it as a private service.
    pub(crate) fn is_private_service(&self, spec: &EgressSpec) -> bool {
        spec.allow_private.iter().any(|text| {
            let listed = parse_authority(text.as_bytes());
            listed.is_ok_and(|(host, port)| host == self.host && port == Some(self.port))
        })
    }

    fn matches_authority(&self, authority: &[u8]) -> bool {
        let Ok((host, port)) = parse_authority(authority) else { return false };
        host == self.host && port.unwrap_or(self.scheme.usual_port()) == self.port
    }

    /// Every host name in a request must be this one, in whatever spelling.
    pub(crate) fn check(&self, request: &Parts) -> Result<(), Denial> {
        let mut hosts = request.headers.get_all(HOST).iter();
        let (host, second) = (hosts.next(), hosts.next());
        if second.is_some() {
            return Err(bad_request("Host is there more than once"));
        }
        if host.is_none() && request.version == Version::HTTP_11 {
            return Err(bad_request("Host is not there"));
        }
        let authority = request.uri.authority().map(|authority| authority.as_str().as_bytes());
        if host.is_none() && authority.is_none() && request.version != Version::HTTP_10 {
            return Err(bad_request("it names no host"));
        }
        for name in [host.map(HeaderValue::as_bytes), authority].into_iter().flatten() {
            if !self.matches_authority(name) {
                return Err(name_mismatch(name));
            }
        }
        match request.uri.scheme_str() {
            Some(scheme) if scheme != self.scheme.name() => Err(name_mismatch(scheme.as_bytes())),
            _ => Ok(()),
        }
    }
}

pub(crate) fn bad_request(why: &str) -> Denial {
    Denial { reason: DenyReason::BadRequest, detail: Some(why.to_owned()) }
}

pub(crate) fn name_mismatch(name: &[u8]) -> Denial {
    let name = without_user(name);
    let shown = escape(&name[..name.len().min(SHOWN)]);
    Denial { reason: DenyReason::NamesDiffer, detail: Some(shown) }
}

/// An authority that is safe to show: the part before the host is a user name, and often a password.
pub(crate) fn without_user(authority: &[u8]) -> &[u8] {
    memrchr(b'@', authority).map_or(authority, |at| &authority[at + 1..])
}

/// A request must have one length. On HTTP/1 [`crate::http::framing`] has checked more than is left here.
pub(crate) fn check_length(headers: &HeaderMap) -> Result<(), Denial> {
    let lengths = headers.get_all(CONTENT_LENGTH).iter().count();
    if lengths > 1 || (lengths == 1 && headers.contains_key(TRANSFER_ENCODING)) {
        return Err(bad_request("its length is ambiguous"));
    }
    Ok(())
}

/// Removes what concerns only one connection. `TE: trailers` is about the content, so it stays.
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let mut gone: Vec<HeaderName> = list_items(headers, CONNECTION)
        .filter_map(|name| HeaderName::from_bytes(name).ok())
        .filter(|name| *name != TE)
        .collect();
    gone.extend(headers.keys().filter(|name| name.as_str().starts_with("proxy-")).cloned());
    gone.extend([CONNECTION, HeaderName::from_static("keep-alive"), TRANSFER_ENCODING, UPGRADE]);
    for name in gone {
        headers.remove(name);
    }
    let wants_trailers =
        list_items(headers, TE).any(|coding| coding.eq_ignore_ascii_case(b"trailers"));
    headers.remove(TE);
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// The items of a header that is a comma-separated list, over all its lines.
pub(crate) fn list_items(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &[u8]> {
    let values = headers.get_all(name).iter();
    values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

/// The same for a request. The proxy answers `Expect` itself, by reading the body.
pub(crate) fn strip_request(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    headers.remove(EXPECT);
    headers.remove(HeaderName::from_static("http2-settings"));
    headers.remove(HOST); // written anew in normalized form
}

/// Removes trailers that would have a meaning as headers.
pub(crate) fn strip_trailers(headers: &mut HeaderMap) {
    strip_request(headers);
    overrides::strip(headers);
    for name in ["content-length", "authorization", "cookie", "set-cookie", "content-encoding"] {
        headers.remove(name);
    }
}

/// Without the query, which may contain secrets.
pub(crate) fn path_only(uri: &Uri) -> &str {
    match uri.path() {
        "" => "/",
        path => path,
    }
}

/// The approximate size of a head on the wire: bytes in headers count as well.
pub(crate) fn head_size(first_line: usize, headers: &HeaderMap) -> u64 {
    let fields: usize =
        headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    (first_line + fields) as u64
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn target(scheme: Scheme, host: &str, port: u16) -> Target {
        Target { scheme, host: Host::parse(host.as_bytes()).unwrap(), port }
    }

    fn check(uri: &str, hosts: &[&str]) -> Option<DenyReason> {
        let mut request = Request::builder().uri(uri);
        for host in hosts {
            request = request.header("host", *host);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        target(Scheme::Https, "a.example", 443).check(&parts).err().map(|denial| denial.reason)
    }

    #[test]
    fn every_name_of_the_host_must_agree() {
        for host in ["a.example", "A.Example.", "a.example:443"] {
            assert_eq!(check("/", &[host]), None, "{host}");
            assert_eq!(check("https://a.example/x", &[host]), None, "{host}");
        }
        for host in ["b.example", "a.example:80", "a.example:", "", "x@a.example", "a.example, b"] {
            assert_eq!(check("/", &[host]), Some(DenyReason::NamesDiffer), "{host}");
        }
        assert_eq!(check("/", &[]), Some(DenyReason::BadRequest));
        assert_eq!(check("/", &["a.example", "a.example"]), Some(DenyReason::BadRequest));
        assert_eq!(check("https://b.example/", &["a.example"]), Some(DenyReason::NamesDiffer));
        assert_eq!(check("http://a.example:443/", &["a.example"]), Some(DenyReason::NamesDiffer));
    }

    #[test]
    fn an_authority_has_its_port_only_if_it_is_not_the_default() {
        assert_eq!(target(Scheme::Https, "a", 443).authority(), "a");
        assert_eq!(target(Scheme::Http, "a", 443).authority(), "a:443");
        assert_eq!(target(Scheme::Http, "[::1]", 8080).authority(), "[::1]:8080");
    }

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Mine"),
            ("connection", "te"),
            ("x-mine", "1"),
            ("keep-alive", "5"),
            ("proxy-authorization", "Basic x"),
            ("proxy-connection", "keep-alive"),
            ("te", "gzip, Trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("http2-settings", "x"),
            ("expect", "100-continue"),
            ("host", "a"),
            ("x-yours", "2"),
            ("content-length", "3"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        strip_request(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-length", "te", "x-yours"]);
        assert_eq!(headers["te"], "trailers");
    }
}

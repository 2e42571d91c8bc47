//! Normalizes the target of a request (RFC 9112, section 3.2), so that what the rules judge is exactly what is sent.

use hyper::http::request::Parts;
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Uri};

use crate::http::headers::bad_request;
use crate::policy::Denial;

/// The fault in bytes of a request line (without its end). The URI parser drops a fragment silently, so it has to be
/// found before. (In HTTP/2 it cannot be seen: it is dropped before anything is judged, and is not sent.)
pub(crate) fn fault_in_line(line: &[u8]) -> Option<&'static str> {
    line.iter().find_map(|byte| fault(*byte))
}

fn fault(byte: u8) -> Option<&'static str> {
    match byte {
        b'#' => Some("its target has a fragment"),
        b'\\' => Some("its target has a backslash"),
        0..=0x1f | 0x7f => Some("its target has a control character"),
        _ => None,
    }
}

/// To be called first. Afterwards the target is a path with or without a query, or `*` for `OPTIONS`.
pub(crate) fn normalize(request: &mut Parts) -> Result<(), Denial> {
    let uri = &request.uri;
    if uri.authority().is_some() && uri.scheme().is_none() {
        return Err(bad_request("its target is neither a path nor a whole address"));
    }
    let target = uri.path_and_query().map_or("", PathAndQuery::as_str);
    if let Some(fault) = fault_in_line(target.as_bytes()) {
        return Err(bad_request(fault));
    }
    let target = match target.as_bytes().first() {
        None => "/".to_owned(),
        Some(b'?') => format!("/{target}"),
        Some(b'/') => target.to_owned(),
        Some(b'*') if target == "*" && request.method == Method::OPTIONS => target.to_owned(),
        Some(_) => return Err(bad_request("its target is no path")),
    };
    let unfit = || bad_request("its target is no path");
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(target.parse().map_err(|_| unfit())?);
    request.uri = Uri::from_parts(parts).map_err(|_| unfit())?;
    Ok(())
}

/// The target as it is sent. `None` for anything that [`normalize`] would not produce.
pub(crate) fn wire_form(uri: &Uri) -> Option<PathAndQuery> {
    let target = uri.path_and_query()?.as_str();
    let is_fit =
        (target.starts_with('/') || target == "*") && fault_in_line(target.as_bytes()).is_none();
    // What a URI displays and what it contains may differ: an empty path displays as a slash.
    target.parse().ok().filter(|_| is_fit)
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn normalized(method: &str, uri: &str) -> Option<String> {
        let request = Request::builder().method(method).uri(uri).body(()).ok()?;
        let (mut parts, ()) = request.into_parts();
        normalize(&mut parts).ok()?;
        let sent = wire_form(&parts.uri)?;
        let mut alone = hyper::http::uri::Parts::default();
        alone.path_and_query = Some(sent);
        let sent = Uri::from_parts(alone).unwrap().to_string();
        // What is judged is what is sent.
        assert_eq!(
            sent.split('?').next(),
            Some(crate::http::headers::path_only(&parts.uri)),
            "{uri}"
        );
        Some(sent)
    }

    #[test]
    fn a_target_has_one_form() {
        for (uri, sent) in [
            ("/", "/"),
            ("/a/b?c=d", "/a/b?c=d"),
            ("//a", "//a"),
            ("/?", "/?"),
            ("http://a.example", "/"),
            ("http://a.example/", "/"),
            ("http://a.example?x", "/?x"),
            ("http://a.example/a%20b?x[y]=1|2", "/a%20b?x[y]=1|2"),
            // The parser has dropped the fragment of these.
            ("http://a.example#x", "/"),
            ("http://a.example/a#x", "/a"),
        ] {
            assert_eq!(normalized("GET", uri).as_deref(), Some(sent), "{uri}");
        }
        assert_eq!(normalized("OPTIONS", "*").as_deref(), Some("*"));
        for uri in ["*", "a.example:80", "a.example", "/a\\b", "/a?b\\c", "/a\u{7f}b"] {
            assert_eq!(normalized("GET", uri), None, "{uri}");
        }
    }

    #[test]
    fn invalid_target_bytes_are_found_in_the_request_line() {
        assert_eq!(fault_in_line(b"GET http://a.example/a?b=c HTTP/1.1"), None);
        for bad in [&b"GET /#x HTTP/1.1"[..], b"GET http://h#x", b"GET /\\x", b"G\0", b"GET\t/"] {
            assert!(fault_in_line(bad).is_some(), "{bad:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_target_is_judged_as_one_and_sent_as_another(
            method in proptest::sample::select(vec!["GET", "OPTIONS"]),
            uri in "(http://a\\.example)?[/*?#%.;a-c\\\\]{0,8}",
        ) {
            if let Some(sent) = normalized(method, &uri) {
                proptest::prop_assert!(sent.starts_with('/') || sent == "*", "{} {}", uri, sent);
            }
        }
    }
}

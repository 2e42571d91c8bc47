//! Detects headers and parameters that make a server use another method or path than the request line.
//!
//! Where rules judge methods or paths, such a request is denied: the server might act on something that was not
//! judged.

use hyper::header::{HeaderMap, HeaderName};
use hyper::http::request::Parts;
use percent_encoding::percent_decode_str;

use crate::http::headers::bad_request;
use crate::policy::{Denial, RuleScope};
use crate::report::shorten;

/// For requests that rules judge.
pub(crate) fn check(scope: RuleScope, request: &Parts) -> Result<(), Denial> {
    let is_one = |name: &HeaderName| replaces_method(name.as_str()) || replaces_path(name.as_str());
    refuse_header(&request.headers, is_one)?;
    let parameter = match scope {
        RuleScope::MethodsAndPaths => request.uri.query().and_then(method_parameter),
        RuleScope::Paths => None,
    };
    match parameter {
        Some(name) => {
            let why = format!(
                "the parameter {} can replace the method that the rules judge",
                shorten(&name)
            );
            Err(bad_request(&why))
        }
        None => Ok(()),
    }
}

/// For requests whose path alone is restricted.
pub(crate) fn check_path(headers: &HeaderMap) -> Result<(), Denial> {
    refuse_header(headers, |name| replaces_path(name.as_str()))
}

fn refuse_header(headers: &HeaderMap, is_one: impl Fn(&HeaderName) -> bool) -> Result<(), Denial> {
    match headers.keys().find(|name| is_one(name)) {
        Some(name) => {
            let name = shorten(name.as_str());
            Err(bad_request(&format!(
                "the header {name} can replace the method or path that the rules judge"
            )))
        }
        None => Ok(()),
    }
}

/// A request cannot be denied any more after its body, and some servers read trailers as headers.
pub(crate) fn strip(trailers: &mut HeaderMap) {
    let removed: Vec<HeaderName> = trailers
        .keys()
        .filter(|name| replaces_method(name.as_str()) || replaces_path(name.as_str()))
        .cloned()
        .collect();
    removed.iter().for_each(|name| drop(trailers.remove(name)));
}

/// Only letters and digits, in lower case: gateways treat `-`, `_` and other characters alike.
fn normalized(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn contains_any(text: &str, parts: &[&str]) -> bool {
    parts.iter().any(|part| text.contains(part))
}

/// `X-HTTP-Method-Override`, `X-HTTP-Method`, `X-Method-Override`, `X-Original-Method` and so on. Not a header that
/// only mentions it, such as `X-Payment-Method`.
fn replaces_method(name: &str) -> bool {
    const MARKERS: &[&str] = &[
        "override",
        "httpmethod",
        "httpverb",
        "original",
        "rewrit",
        "forwarded",
        "tunnel",
        "realmethod",
        "requestmethod",
    ];
    let name = normalized(name);
    // CORS preflight.
    if name.starts_with("accesscontrol") {
        return false;
    }
    matches!(name.as_str(), "method" | "xmethod" | "verb" | "xverb")
        || (contains_any(&name, &["method", "verb"]) && contains_any(&name, MARKERS))
}

/// `X-Original-URL`, `X-Rewrite-URL`, `X-Forwarded-Prefix`, CGI variables (`SCRIPT_NAME`, `PATH_INFO`), and second
/// paths: `Destination`, `X-Amz-Copy-Source`.
fn replaces_path(name: &str) -> bool {
    const MARKERS: &[&str] = &[
        "original",
        "rewrit",
        "forwarded",
        "override",
        "replaced",
        "real",
        "requesturi",
        "requesturl",
        "requestpath",
        "destination",
        "unencoded",
        "proxyur",
    ];
    const EXACT: &[&str] =
        &["url", "uri", "path", "xurl", "xuri", "xpath", "baseurl", "xbaseurl", "destination"];
    const SECOND: &[&str] = &["copysource", "renamesource", "copyfrom", "scriptname", "pathinfo"];
    let name = normalized(name);
    EXACT.contains(&name.as_str())
        || contains_any(&name, SECOND)
        || (contains_any(&name, &["url", "uri", "path", "prefix"]) && contains_any(&name, MARKERS))
}

/// The name of a parameter such as `_method`, decoded as a server may decode it. `method` alone is an ordinary name.
fn method_parameter(query: &str) -> Option<String> {
    query.split(['&', ';']).find_map(|part| {
        let name = part.split('=').next().unwrap_or_default().replace('+', " ");
        let name = percent_decode_str(&name).decode_utf8_lossy().trim().to_owned();
        let starts_plain = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        let is_plain_name =
            matches!(normalized(&name).as_str(), "method" | "xmethod" | "verb" | "xverb");
        (replaces_method(&name) && !(starts_plain && is_plain_name)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_replace_the_method_are_found_in_every_spelling() {
        for name in [
            "x-http-method-override",
            "X_HTTP_Method_Override",
            "x-http-method",
            "x-method-override",
            "http-method-override",
            "x.http.method.override",
            "x-original-method",
            "x-forwarded-method",
            "x-rewrite-method",
            "x-http-verb",
            "x-method",
            "_method",
        ] {
            assert!(replaces_method(name), "{name}");
        }
        for name in ["access-control-request-method", "x-payment-method", "accept", "x-methodology"]
        {
            assert!(!replaces_method(name), "{name}");
        }
    }

    #[test]
    fn headers_that_replace_the_path_or_name_a_second_one_are_found() {
        for name in [
            "x-original-url",
            "X_Original_URL",
            "x-rewrite-url",
            "x-original-uri",
            "x-forwarded-path",
            "x-forwarded-prefix",
            "x-forwarded-uri",
            "x-override-url",
            "x-replaced-path",
            "x-envoy-original-path",
            "x-ms-original-url",
            "x-http-destinationurl",
            "x-waws-unencoded-url",
            "request-uri",
            "x-request-uri",
            "x-proxy-url",
            "script_name",
            "x-script-name",
            "path-info",
            "destination",
            "x-amz-copy-source",
            "x-ms-rename-source",
            "x-copy-from",
        ] {
            assert!(replaces_path(name), "{name}");
        }
        for name in ["referer", "x-forwarded-for", "x-forwarded-host", "origin", "content-type"] {
            assert!(!replaces_path(name), "{name}");
        }
    }

    #[test]
    fn parameters_that_replace_the_method_are_found_in_every_spelling() {
        for query in [
            "_method=DELETE",
            "a=b&_method=PUT",
            "a;_METHOD=PUT",
            "%5fmethod=PUT",
            "%5F%6dethod=PUT",
            ".method=PUT",
            "+_method=PUT",
            "_method[]=PUT",
            "_method",
            "X-HTTP-Method-Override=PUT",
            "x_http_method=PUT",
        ] {
            assert!(method_parameter(query).is_some(), "{query}");
        }
        for query in ["", "method=x", "payment_method=x", "a=_method", "q=%5fmethod&b"] {
            assert_eq!(method_parameter(query), None, "{query}");
        }
    }
}

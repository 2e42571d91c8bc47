//! Inserts secrets into requests: each at its place, for its host and port only.
//!
//! The proxy follows no redirects. A client that follows one makes a new request, which gets the secrets of its own
//! host only.

use std::sync::Arc;

use belljar_spec::egress::{RouteSpec, Scheme, SecretPlace, SecretSpec, SecretValue};
use belljar_spec::host_rule::Seen;
use data_encoding::BASE64;
use hyper::Uri;
use hyper::header::{
    ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, IF_RANGE, RANGE,
};
use hyper::http::request::Parts;
use memchr::memmem;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, utf8_percent_encode};
use zeroize::Zeroizing;

use crate::http::headers::{Target, path_only};
use crate::http::overrides;
use crate::policy::{Policy, RuleScope, is_login};
use crate::secret_store::SecretStore;

/// Everything but the unreserved characters is escaped.
pub(crate) const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The secrets of one request.
#[derive(Debug, Default)]
pub(crate) struct Credentials<'a>(Vec<Credential<'a>>);

#[derive(Debug)]
pub(crate) struct Credential<'a> {
    pub(crate) place: &'a SecretPlace,
    pub(crate) value: Arc<SecretValue>,
}

/// A secret that could not be inserted. The request is not sent without it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the secret {env} cannot be put in: {why}")]
pub(crate) struct InjectionError {
    env: String,
    why: &'static str,
}

impl InjectionError {
    /// What the client sees.
    pub(crate) const PUBLIC_MESSAGE: &'static str = "its secret cannot be put in";
}

impl<'a> Credentials<'a> {
    /// For a request to a host. Without TLS there are none, since the client chooses the scheme. For a service without TLS the
    /// operator writes a route.
    pub(crate) fn for_request(
        policy: &'a Policy,
        values: &SecretStore,
        target: &Target,
        request: &Parts,
    ) -> Result<Self, InjectionError> {
        if target.scheme == Scheme::Http {
            return Ok(Self::default());
        }
        // A request that a header or a parameter can turn into another one is none of an agent's.
        let seen = match overrides::check(RuleScope::MethodsAndPaths, request) {
            Ok(()) => {
                let (method, path) = (request.method.as_str(), path_only(&request.uri));
                Seen::Request { method, path }
            }
            Err(_) => Seen::Nothing,
        };
        let secrets = policy.request_secrets(&target.host, target.port, seen);
        secrets.map(|secret| credential(values, secret)).collect::<Result<_, _>>().map(Self)
    }

    /// For a route: its own secret. The operator wrote its target, and whether that has TLS.
    pub(crate) fn for_route(
        policy: &'a Policy,
        values: &SecretStore,
        route: &RouteSpec,
    ) -> Result<Self, InjectionError> {
        let Some(env) = &route.secret else { return Ok(Self::default()) };
        let missing = InjectionError { env: env.clone(), why: "it is not for this host and port" };
        let mut secrets = policy.secrets(&route.to.host, route.to.port);
        // A route gets every request, and a login is not for every request.
        let is_wanted = |secret: &&SecretSpec| secret.env == *env && !is_login(secret);
        let secret = secrets.find(is_wanted).ok_or(missing)?;
        Ok(Self(vec![credential(values, secret)?]))
    }

    #[cfg(test)]
    pub(crate) fn of(keys: Vec<Credential<'a>>) -> Self {
        Self(keys)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Credential<'a>> {
        self.0.iter()
    }

    pub(crate) fn insert_into(&self, request: &mut Parts) -> Result<(), InjectionError> {
        for credential in &self.0 {
            let inserted = match credential.place {
                SecretPlace::Header { name } => {
                    set_header(&mut request.headers, name, &credential.value)
                }
                SecretPlace::Bearer => {
                    let text = Zeroizing::new(format!("Bearer {}", credential.value.value));
                    set(&mut request.headers, AUTHORIZATION, text.as_bytes())
                }
                SecretPlace::Basic { user } => {
                    let text = Zeroizing::new(format!("Basic {}", *basic(user, &credential.value)));
                    set(&mut request.headers, AUTHORIZATION, text.as_bytes())
                }
                SecretPlace::Query { name } => set_query(&mut request.uri, name, &credential.value),
            };
            inserted.map_err(|why| InjectionError { env: credential.value.env.clone(), why })?;
        }
        if !self.is_empty() {
            // So that a response that repeats the value can be read and the value masked: not compressed, and not in
            // ranges that each hold only a part of it.
            request.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            request.headers.remove(RANGE);
            request.headers.remove(IF_RANGE);
        }
        Ok(())
    }
}

fn credential<'a>(
    values: &SecretStore,
    secret: &'a SecretSpec,
) -> Result<Credential<'a>, InjectionError> {
    let value = values.get(&secret.env);
    let missing = || InjectionError { env: secret.env.clone(), why: "it has no value" };
    Ok(Credential { place: &secret.place, value: value.ok_or_else(missing)? })
}

/// The encoded credentials of Basic authentication.
pub(crate) fn basic(user: &str, secret: &SecretValue) -> Zeroizing<String> {
    let pair = Zeroizing::new(format!("{user}:{}", secret.value));
    Zeroizing::new(BASE64.encode(pair.as_bytes()))
}

/// The client's text around the placeholder stays (`Bearer …`, `token …`). A value without the placeholder is
/// replaced: with a key of another account the client could send data to that account.
fn set_header(
    headers: &mut HeaderMap,
    name: &str,
    secret: &SecretValue,
) -> Result<(), &'static str> {
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "no header has such a name")?;
    let placeholder = secret.placeholder.as_bytes();
    let holds = |value: &&HeaderValue| {
        !placeholder.is_empty() && memmem::find(value.as_bytes(), placeholder).is_some()
    };
    let Some(template) = headers.get_all(&name).iter().find(holds) else {
        return set(headers, name, secret.value.as_bytes());
    };
    let mut text = Zeroizing::new(Vec::new());
    let mut rest = template.as_bytes();
    while let Some(at) = memmem::find(rest, placeholder) {
        text.extend_from_slice(&rest[..at]);
        text.extend_from_slice(secret.value.as_bytes());
        rest = &rest[at + placeholder.len()..];
    }
    text.extend_from_slice(rest);
    set(headers, name, &text)
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &[u8]) -> Result<(), &'static str> {
    let mut value =
        HeaderValue::from_bytes(value).map_err(|_| "its value has no place in a header")?;
    value.set_sensitive(true); // HTTP/2 then never indexes it
    headers.insert(name, value);
    Ok(())
}

/// Other parameters stay as they are, byte for byte.
fn set_query(uri: &mut Uri, name: &str, secret: &SecretValue) -> Result<(), &'static str> {
    let named = |part: &&str| {
        let name_part = part.split('=').next().unwrap_or_default().replace('+', " ");
        percent_decode(name_part.as_bytes()).eq(name.bytes())
    };
    let mut text = Zeroizing::new(format!("{}?", uri.path()));
    for part in uri.query().unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
        if !named(&part) {
            text.push_str(part);
            text.push('&');
        }
    }
    text.extend(utf8_percent_encode(name, ESCAPED));
    text.push('=');
    text.extend(utf8_percent_encode(&secret.value, ESCAPED));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(text.parse().map_err(|_| "it makes no address")?);
    *uri = Uri::from_parts(parts).map_err(|_| "it makes no address")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn insert(place: SecretPlace, uri: &str, headers: &[(&str, &str)]) -> Parts {
        let value = SecretValue {
            env: "KEY".into(),
            value: "s3/cr et".into(),
            placeholder: "belljar-placeholder".into(),
        };
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        Credentials::of(vec![Credential { place: &place, value: Arc::new(value) }])
            .insert_into(&mut parts)
            .unwrap();
        parts
    }

    fn header(name: &str, headers: &[(&str, &str)]) -> Vec<String> {
        let parts = insert(SecretPlace::Header { name: name.into() }, "/", headers);
        assert_eq!(parts.headers[ACCEPT_ENCODING], "identity");
        let values = parts.headers.get_all(name).iter();
        values.map(|value| value.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_header_is_set_or_its_placeholder_replaced() {
        assert_eq!(header("x-key", &[]), ["s3/cr et"]);
        assert_eq!(header("x-key", &[("x-key", "the agent's own")]), ["s3/cr et"]);
        let twice = [("x-key", "his"), ("X-Key", "token belljar-placeholder;v=1")];
        assert_eq!(header("x-key", &twice), ["token s3/cr et;v=1"]);
        assert_eq!(header("x-key", &[("accept-encoding", "br, gzip")]), ["s3/cr et"]);
    }

    #[test]
    fn a_placeholder_elsewhere_is_not_replaced() {
        let headers = [("x-other", "belljar-placeholder")];
        let parts = insert(SecretPlace::Bearer, "/?k=belljar-placeholder", &headers);
        assert_eq!(parts.headers["x-other"], "belljar-placeholder");
        assert_eq!(parts.uri, "/?k=belljar-placeholder");
        assert_eq!(parts.headers[AUTHORIZATION], "Bearer s3/cr et");
    }

    #[test]
    fn basic_authentication_has_a_user() {
        let mine = [("authorization", "Basic bXk6b3du")];
        let parts = insert(SecretPlace::Basic { user: "x".into() }, "/", &mine);
        assert_eq!(parts.headers[AUTHORIZATION], "Basic eDpzMy9jciBldA==");
        assert!(parts.headers[AUTHORIZATION].is_sensitive());
    }

    #[test]
    fn a_parameter_is_set_and_the_others_stay() {
        let query = |uri: &str| {
            insert(SecretPlace::Query { name: "api key".into() }, uri, &[]).uri.to_string()
        };
        assert_eq!(query("/a"), "/a?api%20key=s3%2Fcr%20et");
        assert_eq!(query("/a?b=%2f&c"), "/a?b=%2f&c&api%20key=s3%2Fcr%20et");
        assert_eq!(query("/?api+key=own&b&a%70i%20key"), "/?b&api%20key=s3%2Fcr%20et");
        assert_eq!(query("https://h/x?"), "https://h/x?api%20key=s3%2Fcr%20et");
    }

    #[test]
    fn a_value_that_is_not_valid_in_a_header_stops_the_request() {
        let value =
            SecretValue { env: "KEY".into(), value: "a\nb".into(), placeholder: String::new() };
        let (mut parts, ()) = Request::new(()).into_parts();
        let error = Credentials::of(vec![Credential {
            place: &SecretPlace::Bearer,
            value: Arc::new(value),
        }])
        .insert_into(&mut parts)
        .unwrap_err();
        assert_eq!(error.env, "KEY");
        assert!(!error.to_string().contains("a\nb"));
    }
}

//! Gets the value of the `Authorization` header that a registry asks for.

use bytes::Bytes;
use data_encoding::BASE64;
use http_body_util::Full;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use zeroize::{Zeroize, Zeroizing};

use super::PullError;
use super::challenge::Challenge;
use super::registry::{Registry, read_body};
use super::transport::{Endpoint, send};
use crate::credentials::Secret;

const MAX_ANSWER: usize = 64 * 1024;
/// By which token services know who asks.
const CLIENT: &str = "belljar";

#[derive(Default, Deserialize, Zeroize)]
#[zeroize(drop)]
struct Token {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

/// Nothing if there is no way to meet the challenge.
pub(super) async fn authorize(
    registry: &Registry,
    challenge: &Challenge,
) -> Result<Option<HeaderValue>, PullError> {
    match challenge {
        Challenge::Basic => Ok(match registry.secret() {
            Some(Secret::Password { user, password }) => basic(user, password),
            _ => None,
        }),
        Challenge::Bearer { realm, service, scope } => {
            let default = format!("repository:{}:pull", registry.path());
            let scope = scope.as_deref().unwrap_or(&default);
            token(registry, realm, service.as_deref().unwrap_or(registry.host()), scope).await
        }
    }
}

fn basic(user: &str, password: &str) -> Option<HeaderValue> {
    let both = Zeroizing::new(format!("{user}:{password}"));
    let text = Zeroizing::new(format!("Basic {}", BASE64.encode(both.as_bytes())));
    sensitive(&text)
}

fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Credentials go to the service that the registry names, over TLS.
async fn token(
    registry: &Registry,
    realm: &str,
    service: &str,
    scope: &str,
) -> Result<Option<HeaderValue>, PullError> {
    let bad = |why: &str| registry.bad_answer("a token", why);
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let (service, scope) = (encode(service), encode(scope));
    let uri: Uri = realm.parse().map_err(|_| bad("the token service has no valid address"))?;
    let host = Endpoint::of(&uri).map_err(|error| registry.unreachable(error))?.host;
    let request = match registry.secret() {
        Some(Secret::IdentityToken(secret)) => {
            let body = format!(
                "grant_type=refresh_token&service={service}&scope={scope}&client_id={CLIENT}&refresh_token={}",
                encode(secret)
            );
            Request::builder()
                .method(Method::POST)
                .uri(uri)
                .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                .body(Full::new(Bytes::from(body)))
        }
        other => {
            let joint = if uri.query().is_some() { '&' } else { '?' };
            let uri = format!("{realm}{joint}service={service}&scope={scope}");
            let mut request = Request::builder().method(Method::GET).uri(uri);
            if let Some(Secret::Password { user, password }) = other {
                let value =
                    basic(user, password).ok_or_else(|| bad("the user's name cannot be sent"))?;
                request = request.header(header::AUTHORIZATION, value);
            }
            request.body(Full::default())
        }
    };
    let request = request.map_err(|_| bad("the token service has no valid address"))?;
    let answer = send(request).await;
    let answer = answer.map_err(|error| PullError::Transport { host: host.clone(), error })?;
    match answer.status() {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Ok(None),
        status => return Err(registry.status(status, "a token", &[])),
    }
    let text = Zeroizing::new(read_body(registry, answer, MAX_ANSWER, "a token").await?);
    let token: Token =
        serde_json::from_slice(&text).map_err(|_| bad("the token is not JSON of its kind"))?;
    let value = if token.token.is_empty() { &token.access_token } else { &token.token };
    let header = Zeroizing::new(format!("Bearer {value}"));
    sensitive(&header)
        .filter(|_| !value.is_empty())
        .map_or_else(|| Err(bad("the token is empty")), |v| Ok(Some(v)))
}

//! Asks an agent's token endpoint for new tokens. Every byte of the answer is hostile until it was parsed.

use std::time::Duration;

use belljar_egress::token_request::{TokenAnswer, TokenUrl, post};
use belljar_spec::egress::LoginSource;
use belljar_spec::manifest::AgentKind;
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use super::LoginError;
use super::format::is_token;
use super::jwt;

/// Of the whole request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Where an answer says no lifetime.
const DEFAULT_LIFETIME_S: f64 = 3600.0;
/// A longer lifetime is not believed: the token is refreshed after this.
const MAX_LIFETIME_S: f64 = 366.0 * 24.0 * 3600.0;
/// Of the error code in an answer.
const MAX_CODE: usize = 64;

/// The identifiers of the agents' own programs at their services. They are public: every copy of the program has them.
const CLAUDE_CLIENT: &str = "9d1c250a-e61b-44d9-88ed-5944d1962f5e";
const CODEX_CLIENT: &str = "app_EMoamEEZ73f0CkXaXp7hrann";
const GEMINI_CLIENT: &str =
    "681255809395-oo8ft2oprdrnp9e3aqf6av3hmdib135j.apps.googleusercontent.com";
/// Google names this the secret of an installed program, and says that it is none:
/// <https://developers.google.com/identity/protocols/oauth2#installed>.
const GEMINI_CLIENT_SECRET: &str = "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";

/// New tokens.
#[derive(Clone)]
pub(super) struct Answer {
    pub(super) access: Zeroizing<String>,
    /// `None`: the old one stays valid.
    pub(super) refresh: Option<Zeroizing<String>>,
    pub(super) id: Option<Zeroizing<String>>,
    lifetime_s: f64,
}

impl Answer {
    /// In milliseconds since 1970.
    pub(super) fn expires(&self, now: u64) -> u64 {
        let stated = jwt::expiry(&self.access);
        let expires = stated.unwrap_or(now.saturating_add((self.lifetime_s * 1000.0) as u64));
        expires.min(now.saturating_add((MAX_LIFETIME_S * 1000.0) as u64))
    }
}

/// The address of an agent's token endpoint.
pub(super) fn default_url(agent: AgentKind) -> Option<&'static str> {
    match agent {
        AgentKind::Claude => Some("https://platform.claude.com/v1/oauth/token"),
        AgentKind::Codex => Some("https://auth.openai.com/oauth/token"),
        AgentKind::Gemini => Some("https://oauth2.googleapis.com/token"),
        AgentKind::Command => None,
    }
}

/// Spends the refresh token.
pub(super) fn refresh(source: &LoginSource, token: &str, now: u64) -> Result<Answer, LoginError> {
    let url = TokenUrl::parse(&source.token_url)?;
    let (content_type, body) = request(source.agent, token);
    let answer = post(&url, content_type, body.as_bytes(), REQUEST_TIMEOUT)?;
    parse(&url.host(), &answer, now)
}

fn request(agent: AgentKind, token: &str) -> (&'static str, Zeroizing<String>) {
    let as_json = |client: &str| {
        let body = json!({
            "grant_type": "refresh_token", "refresh_token": token, "client_id": client,
        });
        ("application/json", Zeroizing::new(body.to_string()))
    };
    match agent {
        AgentKind::Claude | AgentKind::Command => as_json(CLAUDE_CLIENT),
        AgentKind::Codex => as_json(CODEX_CLIENT),
        AgentKind::Gemini => {
            let fields = [
                ("grant_type", "refresh_token"),
                ("refresh_token", token),
                ("client_id", GEMINI_CLIENT),
                ("client_secret", GEMINI_CLIENT_SECRET),
            ];
            let fields: Vec<String> =
                fields.iter().map(|(name, value)| format!("{name}={}", escaped(value))).collect();
            ("application/x-www-form-urlencoded", Zeroizing::new(fields.join("&")))
        }
    }
}

/// Percent-encodes everything but unreserved characters.
fn escaped(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

pub(super) fn parse(host: &str, answer: &TokenAnswer, now: u64) -> Result<Answer, LoginError> {
    let object = match serde_json::from_slice::<Value>(&answer.body) {
        Ok(Value::Object(object)) => Some(object),
        _ => None,
    };
    let host = host.to_owned();
    if answer.status != 200 {
        let status = answer.status;
        // A proxy on the way, or a page of a captive portal, does not speak for the service.
        let code = object.as_ref().and_then(error_code);
        return Err(match (status, code) {
            (400 | 401 | 403, Some(code)) => LoginError::Refused { host, status, code },
            _ => LoginError::Status { host, status },
        });
    }
    let wrong = |why: &str| LoginError::Answer { host: host.clone(), why: why.to_owned() };
    let object = object.ok_or_else(|| wrong("the answer is not a JSON object"))?;
    let token = |key: &str| match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if is_token(text) => Ok(Some(Zeroizing::new(text.clone()))),
        Some(_) => Err(wrong(&format!("{key} is not a token"))),
    };
    let access = token("access_token")?.ok_or_else(|| wrong("there is no access_token"))?;
    let lifetime_s = match object.get("expires_in") {
        None | Some(Value::Null) => DEFAULT_LIFETIME_S,
        Some(value) => value.as_f64().ok_or_else(|| wrong("expires_in is not a number"))?,
    };
    if !(lifetime_s.is_finite() && lifetime_s > 0.0) {
        return Err(wrong("the new token is expired already"));
    }
    let lifetime_s = lifetime_s.min(MAX_LIFETIME_S);
    let new =
        Answer { access, refresh: token("refresh_token")?, id: token("id_token")?, lifetime_s };
    match new.expires(now) > now {
        true => Ok(new),
        false => Err(wrong("the new token is expired already")),
    }
}

/// A short name such as `invalid_grant`, wherever the service puts it. Nothing else of the answer is shown: it may
/// repeat the token.
fn error_code(object: &Map<String, Value>) -> Option<String> {
    let error = object.get("error").or_else(|| object.get("code"))?;
    let code = match error {
        Value::String(code) => code,
        Value::Object(error) => {
            error.get("code").or_else(|| error.get("type")).and_then(Value::as_str)?
        }
        _ => return None,
    };
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    let shown = (1..=MAX_CODE).contains(&code.len()) && code.bytes().all(is_plain);
    Some(if shown { code.to_owned() } else { "an unknown error".to_owned() })
}

//! The files in which claude, codex and gemini store their logins.

use std::time::{SystemTime, UNIX_EPOCH};

use belljar_spec::egress::LoginSource;
use belljar_spec::manifest::AgentKind;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::LoginError;
use super::endpoint::Answer;
use super::json_edit::{Edit, ObjectText, apply};
use super::jwt;

/// Longer than any token.
pub(super) const MAX_TOKEN: usize = 8 * 1024;
/// Codex refreshes a token of unknown lifetime after this time.
const CODEX_INTERVAL_MS: u64 = 8 * 24 * 3600 * 1000;
/// The claim of a codex token that names the account.
const OPENAI_CLAIM: &str = "https://api.openai.com/auth";

/// What a login holds.
#[derive(Clone)]
pub(crate) struct Tokens {
    pub(crate) access: Zeroizing<String>,
    pub(crate) refresh: Option<Zeroizing<String>>,
    /// In milliseconds since 1970; `None` where nothing says when.
    pub(crate) expires: Option<u64>,
    pub(crate) account: Option<String>,
    /// What the service calls the subscription.
    pub(crate) plan: Option<String>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens(expires {:?}, …)", self.expires)
    }
}

impl Tokens {
    pub(crate) fn is_expired(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// Milliseconds since 1970, by the host's wall clock, as the files have them.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// The tokens in the text of a login file.
pub(super) fn parse(source: &LoginSource, text: &str) -> Result<Tokens, LoginError> {
    let wrong = |why: &str| LoginError::malformed(source, why);
    let whole = ObjectText::parse(text).map_err(|error| {
        wrong(&format!("not a JSON object (line {}, column {})", error.line(), error.column()))
    })?;
    let tokens = match source.agent {
        AgentKind::Claude => {
            let login = whole.object("claudeAiOauth").ok_or_else(|| wrong("no claudeAiOauth"))?;
            Tokens {
                access: required(&login, "accessToken").map_err(|why| wrong(&why))?,
                refresh: login
                    .text("refreshToken")
                    .filter(|text| !text.is_empty())
                    .map(Zeroizing::new),
                expires: millis(login.number("expiresAt")),
                account: None,
                plan: login.text("subscriptionType"),
            }
        }
        AgentKind::Codex => codex(&whole).map_err(|why| wrong(&why))?,
        AgentKind::Gemini => Tokens {
            access: required(&whole, "access_token").map_err(|why| wrong(&why))?,
            refresh: whole
                .text("refresh_token")
                .filter(|text| !text.is_empty())
                .map(Zeroizing::new),
            expires: millis(whole.number("expiry_date")),
            account: None,
            plan: None,
        },
        AgentKind::Command => return Err(LoginError::NoLogin(source.agent)),
    };
    Ok(tokens)
}

fn codex(whole: &ObjectText<'_>) -> Result<Tokens, String> {
    let Some(login) = whole.object("tokens") else {
        return Err(match whole.has("OPENAI_API_KEY") {
            true => "it holds an API key; use auth = \"secret\"".to_owned(),
            false => "no tokens".to_owned(),
        });
    };
    let access = required(&login, "access_token")?;
    let claims = login.text("id_token").and_then(|token| jwt::claims(&token));
    let claim =
        |name: &str| Some(claims.as_ref()?.get(OPENAI_CLAIM)?.get(name)?.as_str()?.to_owned());
    let refreshed =
        whole.text("last_refresh").and_then(|text| text.parse::<jiff::Timestamp>().ok());
    let refreshed = refreshed.and_then(|time| u64::try_from(time.as_millisecond()).ok());
    Ok(Tokens {
        expires: jwt::expiry(&access).or(refreshed.map(|time| time + CODEX_INTERVAL_MS)),
        refresh: login.text("refresh_token").filter(|text| !text.is_empty()).map(Zeroizing::new),
        account: login.text("account_id").or_else(|| claim("chatgpt_account_id")),
        plan: claim("chatgpt_plan_type"),
        access,
    })
}

fn required(object: &ObjectText<'_>, key: &str) -> Result<Zeroizing<String>, String> {
    let token = Zeroizing::new(object.text(key).ok_or_else(|| format!("no {key}"))?);
    match is_token(&token) {
        true => Ok(token),
        false => Err(format!("{key} is not a token")),
    }
}

/// It goes into a header: visible ASCII, and not too long.
pub(super) fn is_token(text: &str) -> bool {
    (1..=MAX_TOKEN).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn millis(number: Option<f64>) -> Option<u64> {
    number.filter(|number| *number > 0.0).map(|number| number as u64)
}

/// The text with the tokens of an answer; everything else stays as it is.
pub(super) fn updated(
    source: &LoginSource,
    text: &str,
    answer: &Answer,
    now: u64,
) -> Result<Zeroizing<String>, LoginError> {
    let wrong = |why: &str| LoginError::malformed(source, why);
    let whole = ObjectText::parse(text).map_err(|_| wrong("not a JSON object"))?;
    let mut edits: Vec<Edit> = Vec::new();
    let expires = answer.expires(now);
    let token = |token: &Zeroizing<String>| Value::from(token.as_str());
    match source.agent {
        AgentKind::Claude => {
            let login = whole.object("claudeAiOauth").ok_or_else(|| wrong("no claudeAiOauth"))?;
            edits.push(login.set("accessToken", &token(&answer.access)));
            edits.extend(answer.refresh.iter().map(|new| login.set("refreshToken", &token(new))));
            edits.push(login.set("expiresAt", &json!(expires)));
        }
        AgentKind::Codex => {
            let login = whole.object("tokens").ok_or_else(|| wrong("no tokens"))?;
            edits.push(login.set("access_token", &token(&answer.access)));
            edits.extend(answer.refresh.iter().map(|new| login.set("refresh_token", &token(new))));
            edits.extend(answer.id.iter().map(|new| login.set("id_token", &token(new))));
            let time =
                i64::try_from(now).ok().and_then(|now| jiff::Timestamp::from_millisecond(now).ok());
            edits.extend(time.map(|time| whole.set("last_refresh", &json!(time.to_string()))));
        }
        AgentKind::Gemini => {
            edits.push(whole.set("access_token", &token(&answer.access)));
            edits.extend(answer.refresh.iter().map(|new| whole.set("refresh_token", &token(new))));
            edits.extend(answer.id.iter().map(|new| whole.set("id_token", &token(new))));
            edits.push(whole.set("expiry_date", &json!(expires)));
        }
        AgentKind::Command => return Err(LoginError::NoLogin(source.agent)),
    }
    let new = Zeroizing::new(apply(text, edits));
    parse(source, &new)?; // what is written can be read again
    Ok(new)
}

/// `into` with the tokens of `from`, another text of the same login; everything else stays as it is.
pub(super) fn carried_over(
    source: &LoginSource,
    from: &str,
    into: &str,
) -> Result<Zeroizing<String>, LoginError> {
    let wrong = || LoginError::malformed(source, "not a JSON object");
    let (old, new) = (ObjectText::parse(into), ObjectText::parse(from));
    let (Ok(old), Ok(new)) = (old, new) else { return Err(wrong()) };
    let (member, inner, outer): (_, &[&str], &[&str]) = match source.agent {
        AgentKind::Claude => {
            (Some("claudeAiOauth"), &["accessToken", "refreshToken", "expiresAt"], &[])
        }
        AgentKind::Codex => {
            (Some("tokens"), &["access_token", "refresh_token", "id_token"], &["last_refresh"])
        }
        AgentKind::Gemini => {
            (None, &[], &["access_token", "refresh_token", "id_token", "expiry_date"])
        }
        AgentKind::Command => return Err(LoginError::NoLogin(source.agent)),
    };
    let copied = |old: &ObjectText<'_>, new: &ObjectText<'_>, keys: &[&str]| -> Vec<Edit> {
        keys.iter().filter_map(|key| Some(old.set(key, &new.value(key)?))).collect()
    };
    let mut edits = copied(&old, &new, outer);
    if let Some(member) = member {
        let (Some(old), Some(new)) = (old.object(member), new.object(member)) else {
            return Err(wrong());
        };
        edits.extend(copied(&old, &new, inner));
    }
    let text = Zeroizing::new(apply(into, edits));
    parse(source, &text)?; // what is written can be read again
    Ok(text)
}

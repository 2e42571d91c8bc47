//! Which logins the host has, and how long they are valid. Never their values.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use belljar_spec::RunSpec;
use belljar_spec::egress::LoginSource;
use belljar_spec::login_settings::LoginSettings;
use belljar_spec::manifest::AgentKind;
use serde::Serialize;

use super::file::LoginFile;
use super::format::{self, Tokens};
use super::{LoginError, RunLogin, prepare};

/// One login of the host.
#[derive(Clone, Debug, Serialize)]
pub struct LoginStatus {
    pub agent: &'static str,
    pub file: PathBuf,
    /// RFC 3339, in UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// One line for a person.
    pub text: String,
    /// Why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The logins that the host has; an agent without one is left out.
pub fn statuses(env: &BTreeMap<OsString, OsString>) -> Vec<LoginStatus> {
    let source = |agent| prepare::source(agent, env, &LoginSettings::default()).ok();
    let all = AgentKind::ALL.iter().filter_map(|agent| source(*agent));
    all.filter_map(|source| of(&source)).collect()
}

/// The login of a run, as the file has it now; `None` for a run without one.
pub fn status(spec: &RunSpec) -> Option<LoginStatus> {
    let source = RunLogin::of(spec)?.source;
    of(&source).or_else(|| Some(unusable(&source, &LoginError::missing(&source))))
}

fn of(source: &LoginSource) -> Option<LoginStatus> {
    match LoginFile::read(source) {
        Ok(file) => {
            let until = left(file.tokens.expires, format::now());
            Some(LoginStatus {
                agent: source.agent.name(),
                file: source.file.as_path().to_owned(),
                expires: file.tokens.expires.and_then(shown_time),
                text: format!("{}, {until}", describe(source, &file.tokens)),
                problem: None,
            })
        }
        Err(LoginError::Missing { .. }) => None,
        Err(error) => Some(unusable(source, &error)),
    }
}

fn unusable(source: &LoginSource, error: &LoginError) -> LoginStatus {
    LoginStatus {
        agent: source.agent.name(),
        file: source.file.as_path().to_owned(),
        expires: None,
        text: error.to_string(),
        problem: Some(error.to_string()),
    }
}

/// The file, and the subscription if it is known.
pub(super) fn describe(source: &LoginSource, tokens: &Tokens) -> String {
    let plan = tokens.plan.as_deref().map(|plan| belljar_spec::text::escape(plan.as_bytes()));
    match plan {
        Some(plan) => format!("{} ({plan})", source.file),
        None => source.file.to_string(),
    }
}

/// `valid for 3h 12m`, `expired`.
pub(crate) fn left(expires: Option<u64>, now: u64) -> String {
    let Some(expires) = expires else { return "valid for an unknown time".to_owned() };
    match expires.saturating_sub(now) / 1000 {
        0 => "expired".to_owned(),
        seconds @ 1..120 => format!("valid for {seconds}s"),
        seconds @ 120..3600 => format!("valid for {}m", seconds / 60),
        seconds @ 3600..172_800 => {
            format!("valid for {}h {}m", seconds / 3600, seconds % 3600 / 60)
        }
        seconds => format!("valid for {} days", seconds / 86_400),
    }
}

pub(crate) fn shown_time(millis: u64) -> Option<String> {
    let time = jiff::Timestamp::from_millisecond(i64::try_from(millis).ok()?).ok()?;
    Some(time.to_string())
}

/// How the user logs in on the host.
pub(crate) fn login_command(agent: AgentKind) -> &'static str {
    match agent {
        AgentKind::Claude => "run claude and type /login",
        AgentKind::Codex => "codex login",
        AgentKind::Gemini => "run gemini and choose the login with Google",
        AgentKind::Command => "",
    }
}

//! What each agent needs for a login that stays outside: where its requests go, and what lies inside in its place.

use belljar_spec::egress::{LoginPart, SecretPlace};
use belljar_spec::manifest::AgentKind;
use serde_json::json;

use super::format::Tokens;
use super::jwt;

/// The year 2100: a placeholder never expires, or the agent inside would try to refresh it.
const FAR_FUTURE_S: u64 = 4_102_444_800;

/// One secret of the login.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoginSecret {
    /// The variable inside, which holds a placeholder.
    pub(super) env: &'static str,
    pub(super) part: LoginPart,
    /// The header; `None` is a bearer token.
    pub(super) header: Option<&'static str>,
}

impl LoginSecret {
    pub(super) fn place(&self) -> SecretPlace {
        match self.header {
            Some(name) => SecretPlace::Header { name: name.to_owned() },
            None => SecretPlace::Bearer,
        }
    }
}

/// The preset of one agent.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoginPreset {
    /// Gets the secrets.
    pub(super) host: &'static str,
    pub(super) secrets: &'static [LoginSecret],
    pub(super) env: &'static [(&'static str, &'static str)],
    /// The login file, relative to the agent's directory.
    pub(super) file: &'static str,
    /// The agent's directory: a variable of the host, or this below the user's home.
    pub(super) directory: (&'static str, &'static str),
}

pub(super) fn preset(agent: AgentKind) -> Option<LoginPreset> {
    match agent {
        AgentKind::Claude => Some(LoginPreset {
            host: "api.anthropic.com",
            secrets: &[LoginSecret {
                env: "CLAUDE_CODE_OAUTH_TOKEN",
                part: LoginPart::AccessToken,
                header: None,
            }],
            env: &[],
            file: ".credentials.json",
            directory: ("CLAUDE_CONFIG_DIR", ".claude"),
        }),
        AgentKind::Codex => Some(LoginPreset {
            host: "chatgpt.com",
            secrets: &[
                LoginSecret {
                    env: "BELLJAR_CODEX_TOKEN",
                    part: LoginPart::AccessToken,
                    header: None,
                },
                LoginSecret {
                    env: "BELLJAR_CODEX_ACCOUNT",
                    part: LoginPart::Account,
                    header: Some("chatgpt-account-id"),
                },
            ],
            env: &[],
            file: "auth.json",
            directory: ("CODEX_HOME", ".codex"),
        }),
        AgentKind::Gemini => Some(LoginPreset {
            host: "cloudcode-pa.googleapis.com",
            secrets: &[LoginSecret {
                env: "GOOGLE_CLOUD_ACCESS_TOKEN",
                part: LoginPart::AccessToken,
                header: None,
            }],
            env: &[("GOOGLE_GENAI_USE_GCA", "true")],
            file: "oauth_creds.json",
            directory: ("GEMINI_CLI_HOME", ".gemini"),
        }),
        AgentKind::Command => None,
    }
}

/// A file of the run's home without which the agent takes itself for logged out: its path there, and its content. It
/// holds no part of the login but the name of the plan, which decides what codex offers.
///
/// It names no account: codex would look for that account's name in a list of the service, which has the real ones. The
/// proxy adds the account to requests.
pub(crate) fn placeholder_file(
    agent: AgentKind,
    tokens: Option<&Tokens>,
) -> Option<(&'static str, String)> {
    if agent != AgentKind::Codex {
        return None; // a variable is enough
    }
    let plan = tokens.and_then(|tokens| tokens.plan.as_deref());
    let claims = json!({
        "exp": FAR_FUTURE_S,
        "https://api.openai.com/auth": { "chatgpt_plan_type": plan.unwrap_or("plus") },
    });
    let token = jwt::placeholder(&claims);
    let login = json!({
        "auth_mode": "chatgpt",
        "OPENAI_API_KEY": null,
        "tokens": {
            "id_token": token,
            "access_token": token,
            "refresh_token": "belljar-placeholder",
        },
        "last_refresh": "2026-01-01T00:00:00Z",
    });
    Some((".codex/auth.json", format!("{login:#}\n")))
}

//! The requests that get the parts of an agent's login. A run's own rules can allow more requests, but not to more of
//! them is the login added: the same token could make API keys of the account.

use belljar_spec::manifest::AgentKind;

/// As in `network.allow`; empty for an agent without a login.
pub fn login_rules(agent: AgentKind) -> &'static [&'static str] {
    match agent {
        AgentKind::Claude => {
            &["api.anthropic.com:443/v1/messages", "GET api.anthropic.com:443/v1/models"]
        }
        AgentKind::Codex => &["chatgpt.com:443/backend-api/codex"],
        AgentKind::Gemini => &["cloudcode-pa.googleapis.com:443"],
        AgentKind::Command => &[],
    }
}

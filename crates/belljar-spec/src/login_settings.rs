//! `login.toml`: where logins are refreshed. Only in the configuration directories of the user and of the
//! administrator: a manifest that could set it would get the user's login.

use crate::manifest::table::section;
use crate::manifest::{AgentKind, ManifestError, parse_file};
use crate::text::OsText;

section! {
    /// Settings of logins, by agent.
    pub struct LoginSettings {
        /// Claude Code.
        claude: LoginEndpoint,
        /// Codex.
        codex: LoginEndpoint,
        /// Gemini CLI.
        gemini: LoginEndpoint,
    }
}

section! {
    /// The service that refreshes a login.
    pub struct LoginEndpoint {
        /// The address of the token endpoint, instead of the agent's own.
        token_url: Option<String>,
    }
}

impl LoginSettings {
    /// `path` is only for messages.
    pub fn parse(content: &[u8], path: &OsText) -> Result<Self, ManifestError> {
        parse_file(content, path)
    }

    pub fn token_url(&self, agent: AgentKind) -> Option<&str> {
        let endpoint = match agent {
            AgentKind::Claude => &self.claude,
            AgentKind::Codex => &self.codex,
            AgentKind::Gemini => &self.gemini,
            AgentKind::Command => return None,
        };
        endpoint.token_url.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_belongs_to_its_agent_and_other_keys_are_refused() {
        let path = OsText::from("/login.toml");
        let text = b"[codex]\ntoken_url = \"https://a.example/t\"\n";
        let settings = LoginSettings::parse(text, &path).unwrap();
        assert_eq!(settings.token_url(AgentKind::Codex), Some("https://a.example/t"));
        assert_eq!(settings.token_url(AgentKind::Claude), None);
        for bad in ["[codex]\nurl = 1\n", "[cursor]\n", "token_url = \"x\"\n"] {
            assert!(LoginSettings::parse(bad.as_bytes(), &path).is_err(), "{bad}");
        }
        // No manifest has the key.
        let manifest = b"[login.claude]\ntoken_url = \"https://a.example/t\"\n";
        assert!(crate::Manifest::parse(manifest, &path).is_err());
        assert!(crate::Manifest::parse(b"[claude]\ntoken_url = \"x\"\n", &path).is_err());
    }
}

//! The agents that `cargo xtask test agents` installs: their names, services and keys.

use std::path::PathBuf;

use super::ModelApi;

/// Names the directory that has the agents' programs. `cargo xtask test agents` sets it.
pub const AGENTS_VARIABLE: &str = "BELLJAR_TEST_AGENTS";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RealAgent {
    Claude,
    Codex,
    Gemini,
}

impl RealAgent {
    pub const ALL: [Self; 3] = [Self::Claude, Self::Codex, Self::Gemini];

    /// Of the program, and of the kind in a manifest.
    pub fn name(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
        }
    }

    pub fn api(self) -> ModelApi {
        match self {
            Self::Claude => ModelApi::Messages,
            Self::Codex => ModelApi::Responses,
            Self::Gemini => ModelApi::GenerateContent,
        }
    }

    /// The variable that has its key.
    pub fn key_variable(self) -> &'static str {
        match self {
            Self::Claude => "ANTHROPIC_API_KEY",
            Self::Codex => "CODEX_API_KEY",
            Self::Gemini => "GEMINI_API_KEY",
        }
    }

    /// The directory with the programs. A test without it fails: it cannot check anything.
    pub fn programs() -> PathBuf {
        let directory = std::env::var_os(AGENTS_VARIABLE).map(PathBuf::from);
        directory.unwrap_or_else(|| {
            panic!("{AGENTS_VARIABLE} is not set; run `cargo xtask test agents`, which sets it")
        })
    }
}

//! Rules on the commands that are started in a running sandbox: data only. The code that knows a shell's grammar
//! interprets them.

use serde::{Deserialize, Serialize};

use crate::manifest::CommandMode;

/// A second layer, never the boundary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandPolicy {
    pub mode: CommandMode,
    /// Beyond the built-in ones.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub deny: Vec<RuleSpec>,
    /// These win.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub allow: Vec<RuleSpec>,
}

/// A rule, with examples that must hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct RuleSpec {
    pub rule: String,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub matches: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub no_match: Vec<String>,
}

/// The built-in rules are reported, and stop nothing.
impl Default for CommandPolicy {
    fn default() -> Self {
        Self { mode: CommandMode::Warn, deny: Vec::new(), allow: Vec::new() }
    }
}

impl CommandPolicy {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

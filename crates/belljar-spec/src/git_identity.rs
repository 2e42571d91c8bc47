//! The name and the address that commits made inside get.

use serde::{Deserialize, Serialize};

/// A longer value is cut: it is nobody's name.
const MAX_CHARACTERS: usize = 256;

/// An author, as git knows one. Never empty values, and no control characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitIdentity {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub email: Option<String>,
}

impl GitIdentity {
    /// `None` where nothing is left of either value.
    pub fn new(name: Option<&str>, email: Option<&str>) -> Option<Self> {
        let identity = Self { name: name.and_then(plain), email: email.and_then(plain) };
        (identity != Self::default()).then_some(identity)
    }

    /// The content of a configuration file of git's that says so, and nothing else.
    pub fn config_file(&self) -> String {
        let mut text = "[user]\n".to_owned();
        for (key, value) in [("name", &self.name), ("email", &self.email)] {
            // Made anew: a spec can come from a record.
            if let Some(value) = value.as_deref().and_then(plain) {
                let quoted = value.replace('\\', "\\\\").replace('"', "\\\"");
                text.push_str(&format!("\t{key} = \"{quoted}\"\n"));
            }
        }
        text
    }
}

/// One line of text: no control characters, no spaces around it, not longer than anybody's name.
fn plain(value: &str) -> Option<String> {
    let kept: String =
        value.chars().filter(|c| !c.is_control()).take(MAX_CHARACTERS).collect::<String>();
    let kept = kept.trim();
    (!kept.is_empty()).then(|| kept.to_owned())
}

/// `Ann Example <ann@example.org>`.
impl std::fmt::Display for GitIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.name, &self.email) {
            (Some(name), Some(email)) => write!(f, "{name} <{email}>"),
            (Some(name), None) => f.write_str(name),
            (None, Some(email)) => write!(f, "<{email}>"),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn a_value_is_one_line_of_text_that_ends_no_quote() {
        let identity =
            GitIdentity::new(Some(" Ann \"A\"\n[core]\n\tpager = \\x\u{1b}[31m "), Some("\n \t"));
        let identity = identity.unwrap();
        assert_eq!(identity.email, None);
        let expected = "[user]\n\tname = \"Ann \\\"A\\\"[core]pager = \\\\x[31m\"\n";
        assert_eq!(identity.config_file(), expected);
        assert_eq!(GitIdentity::new(Some(""), None), None);
        let long = GitIdentity::new(Some(&"x".repeat(5000)), None).unwrap();
        assert_eq!(long.name.unwrap().len(), MAX_CHARACTERS);
        let both = GitIdentity::new(Some("Ann"), Some("a@example.org")).unwrap();
        assert_eq!(both.to_string(), "Ann <a@example.org>");
    }
}

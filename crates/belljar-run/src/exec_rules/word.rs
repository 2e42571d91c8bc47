//! A word of a command as a shell would make it, as far as that is known before it runs.

/// Stands in a word for text that only the running shell knows.
const UNKNOWN: char = '\u{0}';
/// The home inside, as a word names it before it is expanded.
const HOME_INSIDE: &str = "/home/agent";

/// Quotes and escapes are undone. `$HOME` is `~`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Word(String);

impl Word {
    pub(crate) fn known(text: &str) -> Self {
        Self(text.replace(UNKNOWN, ""))
    }

    pub(crate) fn unknown() -> Self {
        Self(UNKNOWN.to_string())
    }

    pub(crate) fn push(&mut self, text: &str) {
        self.0.extend(text.chars().filter(|one| *one != UNKNOWN));
    }

    pub(crate) fn push_unknown(&mut self) {
        self.0.push(UNKNOWN);
    }

    pub(crate) fn append(&mut self, other: &Self) {
        self.0.push_str(&other.0);
    }

    /// `None` where a part of it is not known.
    pub(crate) fn text(&self) -> Option<&str> {
        (!self.0.contains(UNKNOWN)).then_some(self.0.as_str())
    }

    pub(crate) fn is_unknown(&self) -> bool {
        self.text().is_none()
    }

    /// What is compared. What is not known fits `*` and nothing else.
    pub(crate) fn raw(&self) -> &str {
        &self.0
    }

    /// As it is shown to people.
    pub(crate) fn shown(&self) -> String {
        self.0.replace(UNKNOWN, "$…")
    }

    /// The file name of a program's path.
    pub(crate) fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// A path without detours: `//x/./y/..` is `/x`.
    pub(crate) fn clean(&self) -> String {
        let text = match self.0.strip_prefix(HOME_INSIDE) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("~{rest}"),
            _ => self.0.clone(),
        };
        let Some(first) = text.chars().next().filter(|first| matches!(first, '/' | '~' | '.'))
        else {
            return match text.strip_suffix('/') {
                Some(rest) if !rest.is_empty() => rest.to_owned(),
                _ => text,
            };
        };
        let mut parts: Vec<&str> = Vec::new();
        for part in text.split('/') {
            match part {
                "" | "." => {}
                ".." if parts.last().is_some_and(|last| !matches!(*last, ".." | "~")) => {
                    parts.pop();
                }
                ".." if first == '/' => {}
                part => parts.push(part),
            }
        }
        let joined = parts.join("/");
        match first {
            '/' => format!("/{joined}"),
            _ if joined.is_empty() => ".".to_owned(),
            _ => joined,
        }
    }
}

//! A shell word after expansion, as far as it is known before the command runs.

/// Marks text that is only known at run time.
const UNKNOWN: char = '\u{0}';
/// The home directory in the sandbox; `~` is compared with it.
const HOME_INSIDE: &str = "/home/agent";

/// Without quotes and escapes. `$HOME` becomes `~`.
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

    /// `None` if a part of it is not known.
    pub(crate) fn text(&self) -> Option<&str> {
        (!self.0.contains(UNKNOWN)).then_some(self.0.as_str())
    }

    pub(crate) fn is_unknown(&self) -> bool {
        self.text().is_none()
    }

    /// The text for matching. An unknown part matches only `*`.
    pub(crate) fn raw(&self) -> &str {
        &self.0
    }

    /// For messages.
    pub(crate) fn shown(&self) -> String {
        self.0.replace(UNKNOWN, "$…")
    }

    /// The file name of a program's path.
    pub(crate) fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// The normalized path: `//x/./y/..` is `/x`.
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

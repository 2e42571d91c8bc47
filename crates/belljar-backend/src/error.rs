//! Errors of backends.

use std::error::Error;
use std::fmt;

use belljar_spec::BackendName;

type Source = Box<dyn Error + Send + Sync>;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct ImageError {
    pub why: String,
    pub fix: String,
}

/// Why a backend cannot be used here, and what would change that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Unavailable {
    pub why: String,
    pub fix: String,
}

impl Unavailable {
    pub fn new(why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { why: why.into(), fix: fix.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("{what} cannot be done by the {backend} backend: {why}")]
    Unsupported { backend: BackendName, what: String, why: String },
    #[error(
        "sandbox.shell: there is no program {path} inside; name one that the sandbox has, or mount a directory \
         that has one: -v DIR:DIR"
    )]
    NoShell { path: String },
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct BindError(pub Source);

impl BindError {
    /// Whether it is about what the run asks for, so that every backend would refuse it.
    pub fn is_of_the_run(&self) -> bool {
        self.0.downcast_ref().is_some_and(belljar_bind::BindError::is_of_the_run)
    }
}

/// What a start that failed may have left on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftBehind {
    Nothing,
    /// Something of the run may still be there: the next command has to look.
    Possibly,
}

/// Shown as its cause is: it adds only what may be left.
#[derive(Debug)]
pub struct StartError {
    left: LeftBehind,
    cause: Source,
    is_of_the_run: bool,
}

impl StartError {
    /// Nothing of the run is left.
    pub fn new(cause: impl Into<Source>) -> Self {
        Self::leaving(LeftBehind::Nothing, cause)
    }

    pub fn leaving(left: LeftBehind, cause: impl Into<Source>) -> Self {
        Self { left, cause: cause.into(), is_of_the_run: false }
    }

    /// It is about what the run asks for: another backend would refuse it too.
    #[must_use]
    pub fn of_the_run(self) -> Self {
        Self { is_of_the_run: true, ..self }
    }

    pub fn is_of_the_run(&self) -> bool {
        self.is_of_the_run
    }

    pub fn may_have_left_something(&self) -> bool {
        self.left == LeftBehind::Possibly
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl Error for StartError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.source()
    }
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DestroyError(pub Source);

#[cfg(test)]
mod tests {
    use belljar_spec::text::error_chain;

    use super::*;

    #[test]
    fn a_failed_start_is_shown_once_with_its_causes() {
        let cause = BindError(Box::new(std::io::Error::other("no room")));
        let shown = error_chain(&StartError::new(cause));
        assert_eq!(shown, "no room");
        assert!(!StartError::new("x").may_have_left_something());
        assert!(StartError::leaving(LeftBehind::Possibly, "x").may_have_left_something());
    }
}

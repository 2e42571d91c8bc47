//! Why a backend could not do what it was asked for.

use belljar_spec::BackendName;

type Source = Box<dyn std::error::Error + Send + Sync>;

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
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct BindError(pub Source);

/// What a start that failed may have left on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftBehind {
    Nothing,
    /// Something of the run may still be there: the next command has to look.
    Possibly,
}

#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct StartError {
    left: LeftBehind,
    source: Source,
}

impl StartError {
    /// Nothing of the run is left.
    pub fn new(source: impl Into<Source>) -> Self {
        Self { left: LeftBehind::Nothing, source: source.into() }
    }

    pub fn leaving(left: LeftBehind, source: impl Into<Source>) -> Self {
        Self { left, source: source.into() }
    }

    pub fn may_have_left_something(&self) -> bool {
        self.left == LeftBehind::Possibly
    }
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DestroyError(pub Source);

//! The errors of an image build, with the next step for the user.

use std::io;
use std::path::PathBuf;

use belljar_backend::engine::image::BadReference;
use belljar_backend::{ImageError, Unavailable};
use belljar_spec::{BackendName, OsText};

use super::context::ContextError;
use super::ignore::IgnoreError;
use crate::config::ReadError;
use crate::config::trust::{TrustError, TrustState};

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(transparent)]
    Name(#[from] BadReference),
    #[error("\"{0}\" has a digest, which only a registry assigns; use a name without one")]
    NameWithDigest(String),
    #[error("the {0} backend has no images; use --backend docker or --backend podman")]
    NoEngine(BackendName),
    #[error("the {backend} engine cannot be used: {reason}")]
    Unavailable { backend: BackendName, reason: Unavailable },
    #[error("{} has neither a Dockerfile nor a Containerfile", shown(.0))]
    NoDockerfile(PathBuf),
    #[error("{} does not exist", shown(.0))]
    NoFile(PathBuf),
    #[error("the context {} is not a directory", shown(.0))]
    NoDirectory(PathBuf),
    #[error("the name of {} is not valid UTF-8, which the API of the engine requires", shown(.0))]
    NameNotUtf8(PathBuf),
    #[error("the context contains a file {}, a name that Belljar reserves; rename it", shown(.0))]
    NameTaken(PathBuf),
    #[error("cannot read {}: {error}", shown(.path))]
    Io { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Context(#[from] ContextError),
    #[error(transparent)]
    Ignore(#[from] IgnoreError),
    #[error(transparent)]
    Trust(TrustError),
    #[error(
        "{} is a link in {}, where a run could have planted it; use the path of its target",
        shown(.link), shown(.tree)
    )]
    Planted { link: PathBuf, tree: PathBuf },
    #[error(
        "a run could have changed {} or its .dockerignore, and {}; the engine would execute the \
         Dockerfile",
        shown(.dockerfile), state(*.standing)
    )]
    Untrusted { standing: TrustState, dockerfile: PathBuf, context: PathBuf },
    #[error("{backend}: {reason}")]
    Engine { backend: BackendName, reason: ImageError },
    #[error("{name} could not be built: {why}")]
    Failed { name: String, why: String },
    /// Podman gives no reason if it rejects the context.
    #[error("{name} could not be built, and the engine gave no reason")]
    NoReason { name: String, points_outside: Option<OsText> },
    #[error("nothing was built: {0}; build again when the files are not being changed")]
    ContextNotSent(io::Error),
    #[error("another build has taken the name {0} in the meantime; build again")]
    Overtaken(String),
}

impl BuildError {
    /// What to do next, if there is something.
    pub fn fix(&self) -> Option<String> {
        match self {
            Self::Name(_) => Some("set a name: -t NAME[:TAG], in lower case".to_owned()),
            Self::Unavailable { reason, .. } => Some(reason.fix.clone()),
            Self::Engine { reason, .. } => Some(reason.fix.clone()),
            Self::NoDockerfile(_) => {
                Some("use -f FILE, or build the Dockerfile that Belljar ships: --agent".to_owned())
            }
            Self::NoReason { points_outside: Some(link), .. } => Some(format!(
                "{link} is a link that points out of the context, which Podman refuses; add it to \
                 .dockerignore"
            )),
            Self::NoReason { points_outside: None, .. } => Some("see the engine's log".to_owned()),
            Self::Untrusted { dockerfile, context, .. } => {
                let context = match dockerfile.parent() == Some(context) {
                    true => String::new(),
                    false => format!("--context {} ", shown(context)),
                };
                let file = shown(dockerfile);
                Some(format!("check it, then run: belljar trust {context}{file}"))
            }
            _ => None,
        }
    }

    /// The build started, and one of its steps failed.
    pub fn is_build_failure(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::NoReason { .. })
    }
}

fn shown(path: &std::path::Path) -> String {
    OsText::from(path).to_string()
}

fn state(standing: TrustState) -> &'static str {
    match standing {
        TrustState::Changed => "it has changed since it was trusted",
        TrustState::Unknown | TrustState::Trusted => "it is not trusted yet",
    }
}

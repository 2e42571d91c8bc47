//! Why an image was not built.

use std::io;
use std::path::PathBuf;

use belljar_backend::engine::image::BadReference;
use belljar_backend::{ImageError, Unavailable};
use belljar_spec::{BackendName, OsText};

use super::context::ContextError;
use super::ignore::IgnoreError;
use crate::config::ReadError;
use crate::config::trust::{Standing, TrustError};

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(transparent)]
    Name(#[from] BadReference),
    #[error("\"{0}\" has a digest, which only a registry can give; name it without")]
    NameWithDigest(String),
    #[error("the {0} backend has no images; name an engine: --backend docker or podman")]
    NoEngine(BackendName),
    #[error("the {backend} engine cannot be used: {reason}")]
    Unavailable { backend: BackendName, reason: Unavailable },
    #[error("{} has neither a Dockerfile nor a Containerfile", shown(.0))]
    NoDockerfile(PathBuf),
    #[error("there is no {}", shown(.0))]
    NoFile(PathBuf),
    #[error("the context {} is no directory", shown(.0))]
    NoDirectory(PathBuf),
    #[error("the name of {} is not UTF-8, which the engine's interface cannot carry", shown(.0))]
    OddName(PathBuf),
    #[error("the context has a file {}, a name that belljar needs itself", shown(.0))]
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
        "{} is a link in {}, and a run could have put it there; name the place itself",
        shown(.link), shown(.tree)
    )]
    Planted { link: PathBuf, tree: PathBuf },
    #[error(
        "a run could have changed {}, or the .dockerignore that it is built with, and {}; the engine \
         would execute what it says",
        shown(.dockerfile), state(*.standing)
    )]
    Untrusted { standing: Standing, dockerfile: PathBuf, context: PathBuf },
    #[error("{backend}: {reason}")]
    Engine { backend: BackendName, reason: ImageError },
    #[error("{name} could not be built: {why}")]
    Failed { name: String, why: String },
    /// Podman says no more if it does not like the context.
    #[error("{name} could not be built, and the engine does not say why")]
    NoReason { name: String, leads_out: Option<OsText> },
    #[error("nothing was built: {0}; build again when nobody writes there")]
    Unsent(io::Error),
    #[error("another build took the name {0} meanwhile; build again")]
    Overtaken(String),
}

impl BuildError {
    /// What to do next, where there is something.
    pub fn fix(&self) -> Option<String> {
        match self {
            Self::Name(_) => Some("name it: -t NAME[:TAG], in lower case".to_owned()),
            Self::Unavailable { reason, .. } => Some(reason.fix.clone()),
            Self::Engine { reason, .. } => Some(reason.fix.clone()),
            Self::NoDockerfile(_) => {
                Some("name one: -f FILE; or build the one that is shipped: --agent".to_owned())
            }
            Self::NoReason { leads_out: Some(link), .. } => Some(format!(
                "{link} of the context is a link that leads out of it, which Podman refuses; name it \
                 in .dockerignore"
            )),
            Self::NoReason { leads_out: None, .. } => Some("see the engine's log".to_owned()),
            Self::Untrusted { dockerfile, context, .. } => {
                let context = match dockerfile.parent() == Some(context) {
                    true => String::new(),
                    false => format!("--context {} ", shown(context)),
                };
                let file = shown(dockerfile);
                Some(format!("read it, and if it is as you want it: belljar trust {context}{file}"))
            }
            _ => None,
        }
    }

    /// The build began, and a step of it failed.
    pub fn is_of_the_build(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::NoReason { .. })
    }
}

fn shown(path: &std::path::Path) -> String {
    OsText::from(path).to_string()
}

fn state(standing: Standing) -> &'static str {
    match standing {
        Standing::Changed => "it has changed since it was trusted",
        Standing::Unknown | Standing::Trusted => "it is not trusted yet",
    }
}

//! What can go wrong for a program that embeds belljar.

use std::path::PathBuf;

use belljar_record::home::HomeError;
use belljar_run::config::ConfigError;
use belljar_spec::wire::control::{ControlError, LaunchRefusal, RefusalKind};
use belljar_spec::{BackendName, ExecFailure, OsText, Unmet};

use super::copy::CopyError;
use super::output::Output;

/// Why something did not happen. The text says what to do next where there is something.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The backend cannot be used on this host.
    #[error("{} cannot be used here: {why}{}", named(*backend), next(Some(fix)))]
    Unavailable { backend: Option<BackendName>, why: String, fix: String },
    /// A required clause does not hold, so nothing was started.
    #[error("refused to start: {}{}{}", chain(causes), listed(missing), next(fix.as_ref()))]
    Refused { missing: Vec<Unmet>, causes: Vec<String>, fix: Option<String> },
    /// It was tried and failed.
    #[error("the sandbox was not started: {}{}", chain(causes), next(fix.as_ref()))]
    Start { causes: Vec<String>, fix: Option<String> },
    /// The command never began; the sandbox is as it was.
    #[error("cannot run {program}: {failure}")]
    Exec { program: OsText, failure: ExecFailure },
    /// The command's time, or the run's, was over. What it had printed is here.
    #[error("the command did not end in time and was ended, with everything it had started")]
    Deadline { output: Box<Output> },
    /// The supervisor would not do it.
    #[error("not done: {0}")]
    NotDone(#[from] ControlError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(
        "no belljar executable: looked for {looked}; install it, or name it with {} or \
         SandboxBuilder::belljar",
        belljar_spec::env::EXE
    )]
    NoExecutable { looked: String },
    #[error(
        "{} is belljar {theirs} and this program was built with {ours}; install the same one, or \
         name it with {}",
        shown(path),
        belljar_spec::env::EXE
    )]
    OtherBuild { path: Option<PathBuf>, ours: String, theirs: String },
    #[error("the connection to the sandbox's supervisor is gone: {why}")]
    Lost { why: String },
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error("cannot {what}: {error}")]
    Io {
        what: String,
        #[source]
        error: std::io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io { what, error }
    }

    pub(crate) fn lost(why: impl Into<String>) -> Self {
        Self::Lost { why: why.into() }
    }

    /// `backend` is the one that was asked for by name.
    pub(crate) fn of_refusal(refusal: LaunchRefusal, backend: Option<BackendName>) -> Self {
        let LaunchRefusal { kind, causes, missing, fix } = refusal;
        match kind {
            RefusalKind::Unavailable => Self::Unavailable {
                backend,
                why: chain(&causes),
                fix: fix.unwrap_or_else(|| "belljar doctor tells what this host lacks".to_owned()),
            },
            RefusalKind::Refused => Self::Refused { missing, causes, fix },
            RefusalKind::Start => Self::Start { causes, fix },
            RefusalKind::Io => {
                let error = std::io::Error::other(chain(&causes));
                Self::Io { what: "keep the run's record".to_owned(), error }
            }
        }
    }
}

fn named(backend: Option<BackendName>) -> String {
    backend.map_or_else(|| "a sandbox".to_owned(), |name| format!("the {name} backend"))
}

fn chain(causes: &[String]) -> String {
    if causes.is_empty() { "no reason was given".to_owned() } else { causes.join(": ") }
}

fn listed(missing: &[Unmet]) -> String {
    let one = |unmet: &Unmet| format!("\n  {}: {}", unmet.clause, unmet.enforcement.reason());
    missing.iter().map(one).collect()
}

fn next(fix: Option<&String>) -> String {
    fix.map(|fix| format!("; {fix}")).unwrap_or_default()
}

fn shown(path: &Option<PathBuf>) -> String {
    let path = path.as_deref().map(|path| OsText::from(path).to_string());
    path.unwrap_or_else(|| "what answered".to_owned())
}

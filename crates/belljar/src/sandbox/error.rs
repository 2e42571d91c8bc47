//! The error type of the library.

use std::path::PathBuf;

use belljar_record::home::HomeError;
use belljar_record::store::FindError;
use belljar_record::{KeyError, OutputError, ReadError};
use belljar_run::config::ConfigError;
use belljar_run::run::ResumeError;
use belljar_spec::wire::control::{ControlError, LaunchRefusal, RefusalKind};
use belljar_spec::{BackendName, ExecFailure, OsText, Unmet};

use super::copy::CopyError;
use super::files::FileError;
use super::output::Output;
use crate::recorded::review::ChangesError;

/// An error of the library. The text includes a fix where there is one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The backend is not available on this host.
    #[error("{} is not available here: {why}{}", named(*backend), next(Some(fix)))]
    Unavailable { backend: Option<BackendName>, why: String, fix: String },
    /// A required clause is not enforced, so nothing was started.
    #[error("refused to start: {}{}{}", chain(causes), listed(missing), next(fix.as_ref()))]
    Refused { missing: Vec<Unmet>, causes: Vec<String>, fix: Option<String> },
    /// The sandbox failed to start.
    #[error("the sandbox did not start: {}{}", chain(causes), next(fix.as_ref()))]
    Start { causes: Vec<String>, fix: Option<String> },
    /// The command was not executed; the sandbox is unchanged.
    #[error("cannot run {program}: {failure}")]
    Exec { program: OsText, failure: ExecFailure },
    /// The command or the run timed out. `output` is what the command had printed.
    #[error("the command timed out and was killed, with everything it had started")]
    Deadline { output: Box<Output> },
    /// The supervisor refused the request.
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
        "{} is belljar {theirs}, but this program was built with {ours}; install the same one, or \
         name it with {}",
        shown(path),
        belljar_spec::env::EXE
    )]
    OtherBuild { path: Option<PathBuf>, ours: String, theirs: String },
    #[error("lost the connection to the sandbox's supervisor: {why}")]
    Lost { why: String },
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error(transparent)]
    File(#[from] FileError),
    /// The run is not in this home.
    #[error(transparent)]
    Find(#[from] FindError),
    /// The run's changes were not listed, applied or discarded.
    #[error(transparent)]
    Changes(#[from] ChangesError),
    /// The run's record cannot be read.
    #[error(transparent)]
    Record(#[from] ReadError),
    /// The run cannot be resumed or forked.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    #[error(transparent)]
    RecordKey(#[from] KeyError),
    #[error(transparent)]
    RecordedOutput(#[from] OutputError),
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

    /// `backend` is the one that the caller named, if any.
    pub(crate) fn of_refusal(refusal: LaunchRefusal, backend: Option<BackendName>) -> Self {
        let LaunchRefusal { kind, causes, missing, fix } = refusal;
        match kind {
            RefusalKind::Unavailable => Self::Unavailable {
                backend,
                why: chain(&causes),
                fix: fix.unwrap_or_else(|| "see belljar doctor".to_owned()),
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
    path.unwrap_or_else(|| "the supervisor".to_owned())
}

//! Reports a run that was not started: the error, the object of `--json` and `--result`, and the exit code.

use std::error::Error;

use belljar::run::LaunchError;
use belljar::spec::{EXIT_NOT_STARTED, EXIT_USAGE, Hint, RunId};

use super::result::{RunResult, write_result};
use crate::cli::RunArgs;
use crate::report;

/// Why nothing was started, or not to its end.
pub(super) enum NotStarted {
    /// An error from before the launch, and the exit code.
    Error(Box<dyn Error>, i32),
    /// What a supervisor process answered.
    Supervisor(Box<dyn Error>),
    Refused(LaunchError),
    NotReady(NotReady),
}

/// An agent whose work would be in vain, and each reason.
#[derive(Debug, thiserror::Error)]
#[error("the agent is not started: {}", .0.join("; "))]
pub(super) struct NotReady(pub(super) Vec<String>);

impl From<LaunchError> for NotStarted {
    fn from(error: LaunchError) -> Self {
        Self::Refused(error)
    }
}

impl NotStarted {
    pub(super) fn error(error: impl Error + 'static) -> Self {
        Self::Error(Box::new(error), EXIT_NOT_STARTED)
    }

    pub(super) fn usage(error: impl Error + 'static) -> Self {
        Self::Error(Box::new(error), EXIT_USAGE)
    }

    /// Prints the error. The exit code.
    pub(super) fn report(&self, args: &RunArgs) -> i32 {
        let (result, code) = match self {
            Self::Error(error, code) => (RunResult::failed(error.as_ref(), *code), *code),
            Self::Supervisor(error) => {
                (RunResult::failed(error.as_ref(), EXIT_NOT_STARTED), EXIT_NOT_STARTED)
            }
            Self::NotReady(error) => (RunResult::failed(error, EXIT_NOT_STARTED), EXIT_NOT_STARTED),
            Self::Refused(error) => {
                let is_usage = matches!(error, LaunchError::NoCommand);
                (RunResult::refused(error), if is_usage { EXIT_USAGE } else { EXIT_NOT_STARTED })
            }
        };
        if args.json {
            let _ = report::json(&result);
        }
        if let Some(path) = &args.result {
            let _ = write_result(path, &result); // the exit code reports the failure too
        }
        let inside = inside_run().filter(|_| code != EXIT_USAGE);
        match self {
            Self::Error(error, _) => report::error(error.as_ref(), None),
            Self::NotReady(error) => {
                error.0.iter().for_each(|why| report::error_line(why));
                report::hint(Hint::StartAnyway);
            }
            // In a run no fix of the host helps.
            Self::Supervisor(error) if inside.is_some() => report::error(error.as_ref(), None),
            Self::Supervisor(error) => report::failure(error.as_ref()),
            Self::Refused(error) => {
                refused(error);
                if inside.is_none()
                    && let Some(hint) = error.fix()
                {
                    report::hint(hint);
                }
            }
        }
        if let Some(run) = inside {
            report::hint(Hint::InsideRun { run });
        }
        code
    }
}

/// The run that this process is in: every command inside has its id in the environment.
fn inside_run() -> Option<String> {
    let run = std::env::var(belljar::spec::env::RUN_ID_INSIDE).ok()?;
    run.parse::<RunId>().ok().map(|run| run.to_string())
}

fn refused(error: &LaunchError) {
    report::error(error, None);
    match error {
        LaunchError::NotGuaranteed { missing, .. } => report::unmet(missing),
        LaunchError::NoneLeft { tried, .. } => tried.iter().for_each(report::cause),
        LaunchError::NotAsPlanned { differences } => {
            for difference in differences {
                report::eprintln(&format!("  {difference}"));
            }
        }
        _ => {}
    }
}

//! Reports a run that was not started: the error, the object of `--json` and `--result`, and the exit code.

use std::error::Error;

use belljar::run::LaunchError;
use belljar::spec::{EXIT_NOT_STARTED, EXIT_USAGE};

use super::result::{RunResult, write_result};
use crate::cli::RunArgs;
use crate::report::{self, BOLD};

/// Why nothing was started, or not to its end.
pub(super) enum NotStarted {
    /// An error from before the launch, and the exit code.
    Error(Box<dyn Error>, i32),
    /// What a supervisor process answered.
    Supervisor(Box<dyn Error>),
    Refused(LaunchError),
}

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
        match self {
            Self::Error(error, _) => report::error(error.as_ref(), None),
            Self::Supervisor(error) => report::failure(error.as_ref()),
            Self::Refused(error) => refused(error),
        }
        code
    }
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
    if let Some(hint) = error.fix() {
        report::eprintln(&format!("{BOLD}hint:{BOLD:#}  {hint}"));
    }
}

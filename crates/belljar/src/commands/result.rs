//! The JSON object that `run --json` prints and `--result` writes.

use std::error::Error;
use std::path::Path;

use belljar::record::{Captured, Outcome};
use belljar::run::LaunchError;
use belljar::spec::wire::control::RefusalKind;
use belljar::spec::{
    BackendName, EXIT_NOT_STARTED, ExecFailure, Exit, ExitSource, NewControlFile, OsText, Posture,
    RunId, SkippedBackend, StopReason, Usage, WorkspaceReport,
};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct RunResult<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backend: Option<BackendName>,
    /// Backends that were tried and skipped.
    #[serde(skip_serializing_if = "<[SkippedBackend]>::is_empty")]
    skipped_backends: &'a [SkippedBackend],
    outcome: &'static str,
    reason: StopReason,
    exit: Exit,
    stdout: OsText,
    stderr: OsText,
    #[serde(skip_serializing_if = "is_zero")]
    stdout_lost: u64,
    #[serde(skip_serializing_if = "is_zero")]
    stderr_lost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'a ExecFailure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    posture: Option<&'a Posture>,
    usage: Usage,
    /// The run's changes to its trees.
    #[serde(skip_serializing_if = "Option::is_none")]
    workspace: Option<&'a WorkspaceReport>,
    /// Control files that the run created, by their paths inside.
    new_control_files: Vec<OsText>,
}

/// The paths inside of the control files that the run created.
pub(crate) fn names_inside(report: &WorkspaceReport) -> Vec<OsText> {
    let name =
        |file: &NewControlFile| OsText::from(file.target.as_path().join(file.path.as_path()));
    report.new_control_files.iter().map(name).collect()
}

pub(super) fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl<'a> RunResult<'a> {
    pub(crate) fn of(outcome: &'a Outcome) -> Self {
        let succeeded = outcome.exit.code == Some(0);
        Self {
            id: Some(&outcome.id),
            backend: Some(outcome.backend),
            skipped_backends: &outcome.skipped_backends,
            outcome: if succeeded { "succeeded" } else { "failed" },
            reason: outcome.reason,
            exit: outcome.exit,
            stdout: joined(&outcome.stdout),
            stderr: joined(&outcome.stderr),
            stdout_lost: outcome.stdout.lost,
            stderr_lost: outcome.stderr.lost,
            failure: outcome.failure.as_ref(),
            error: None,
            posture: Some(&outcome.posture),
            usage: outcome.usage,
            workspace: outcome.workspace.as_ref(),
            new_control_files: outcome.workspace.as_ref().map(names_inside).unwrap_or_default(),
        }
    }

    /// The result of a refused launch.
    pub(crate) fn refused(error: &'a LaunchError) -> Self {
        let (reason, source) = match error.refusal().kind {
            RefusalKind::Refused => (StopReason::Refused, ExitSource::Policy),
            _ => (StopReason::Error, ExitSource::Sandbox),
        };
        let mut result = Self::failed(error, EXIT_NOT_STARTED);
        (result.reason, result.exit.source) = (reason, source);
        let chain = result.error.get_or_insert_default();
        if let LaunchError::NotGuaranteed { missing, .. } = error {
            chain.extend(missing.iter().map(|unmet| {
                format!(
                    "{}: {}: {}",
                    unmet.clause,
                    unmet.enforcement.status(),
                    unmet.enforcement.reason()
                )
            }));
        }
        if let LaunchError::NoneLeft { tried, .. } = error {
            chain.extend(tried.iter().map(ToString::to_string));
            result.skipped_backends = tried;
        } else if let LaunchError::NotAsPlanned { differences } = error {
            chain.extend(differences.iter().cloned());
        }
        result
    }

    /// The result of an error from before the launch.
    pub(crate) fn failed(error: &dyn Error, code: i32) -> Self {
        let chain = causes(error);
        Self {
            id: None,
            backend: None,
            skipped_backends: &[],
            outcome: "refused",
            reason: StopReason::Error,
            exit: Exit::of_belljar(code, ExitSource::Policy),
            stdout: OsText::default(),
            stderr: OsText::default(),
            stdout_lost: 0,
            stderr_lost: 0,
            failure: None,
            error: Some(chain),
            posture: None,
            usage: Usage::default(),
            workspace: None,
            new_control_files: Vec::new(),
        }
    }
}

/// An error and its causes, outermost first.
pub(super) fn causes(error: &dyn Error) -> Vec<String> {
    let mut chain = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(inner) = cause {
        chain.push(inner.to_string());
        cause = inner.source();
    }
    chain
}

fn joined(captured: &Captured) -> OsText {
    OsText::from_bytes([captured.head.as_slice(), captured.tail.as_slice()].concat())
}

/// Writes the file atomically.
pub(crate) fn write_result(path: &Path, result: &impl Serialize) -> std::io::Result<()> {
    let mut text = serde_json::to_vec_pretty(result)?;
    text.push(b'\n');
    let new = path.with_added_extension("new");
    std::fs::write(&new, text)?;
    std::fs::rename(&new, path)
}

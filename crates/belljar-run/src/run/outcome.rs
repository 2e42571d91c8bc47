//! Outcomes of runs that were not started, or whose output could not be recorded.

use belljar_record::{Outcome, RecordError};
use belljar_spec::text::error_chain;
use belljar_spec::wire::control::StopReport;
use belljar_spec::{
    BackendName, EXIT_NOT_STARTED, Exit, ExitSource, Posture, RunId, StopReason, Usage,
};

use super::LaunchError;

/// The outcome of a run that was accepted and could not be started.
pub(super) fn not_started(
    id: RunId,
    backend: BackendName,
    posture: Posture,
    error: &LaunchError,
) -> Outcome {
    let (reason, source) = match error {
        LaunchError::NotAsPlanned { .. } | LaunchError::NotGuaranteed { .. } => {
            (StopReason::Refused, ExitSource::Policy)
        }
        _ => (StopReason::Error, ExitSource::Sandbox),
    };
    let report = StopReport {
        run: id,
        reason,
        exit: Exit::of_belljar(EXIT_NOT_STARTED, source),
        detail: Some(error_chain(error)),
        usage: Usage::default(),
        leak: None,
        workspace: None,
        agent: None,
    };
    Outcome::from_report(report, backend, posture)
}

/// Makes the outcome an error, however the run ended: its output may not be on disk.
pub(super) fn mark_output_lost(outcome: &mut Outcome, error: &RecordError) {
    outcome.reason = StopReason::Error;
    outcome.exit = Exit::of_belljar(EXIT_NOT_STARTED, ExitSource::Sandbox);
    outcome.detail.get_or_insert_with(|| error_chain(error));
}

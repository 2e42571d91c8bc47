//! Applies the `[retention]` limits after a run, to the stopped runs of the same name.

use belljar_spec::{Retention, RunId};

use super::resumable::needed;
use super::{RemoveError, UnreviewedChanges, remove};
use belljar_record::home::Home;
use belljar_record::ledger::{Ledger, LedgerError};

/// What was removed and what was not, oldest first.
#[derive(Debug, Default)]
pub struct RetentionReport {
    /// Runs whose sandbox was removed; the record remains.
    pub sandboxes: Vec<RunId>,
    pub runs: Vec<RunId>,
    /// Not removed: their changes were neither applied nor discarded.
    pub unreviewed: Vec<RunId>,
    /// Not removed: runs of an agent that can be resumed, or that such a run was resumed from.
    pub resumable: Vec<RunId>,
    /// Failed; tried again after the next run.
    pub failed: Vec<RemoveError>,
}

/// Of the stopped runs with exactly that name, keeps the newest `runs`, and the sandboxes of the newest `sandboxes`.
/// Checkpoints that an agent's run can resume from are kept. Costs three ledger queries if there is nothing to do.
pub fn apply_retention(
    home: &Home,
    name: &Option<String>,
    retention: Retention,
) -> Result<RetentionReport, LedgerError> {
    let ledger = Ledger::open(home)?;
    let mut report = RetentionReport::default();
    let runs = ledger.stopped_beyond(name, retention.runs)?;
    let sandboxes = ledger.kept_beyond(name, retention.sandboxes)?;
    let needed = needed(home, &[runs.as_slice(), &sandboxes].concat());
    report.resumable.extend(&needed);
    for id in runs.into_iter().filter(|id| !needed.contains(id)) {
        match remove::remove_run(home, &id, UnreviewedChanges::Keep) {
            Ok(()) => report.runs.push(id),
            Err(RemoveError::Unreviewed { .. }) => report.unreviewed.push(id),
            Err(error) => report.failed.push(error),
        }
    }
    // Query again: removed runs have no sandbox any more.
    let sandboxes = ledger.kept_beyond(name, retention.sandboxes)?;
    for id in sandboxes.into_iter().filter(|id| !needed.contains(id)) {
        match remove::remove_sandbox(home, &id) {
            Ok(()) => report.sandboxes.push(id),
            Err(RemoveError::Unreviewed { .. }) if report.unreviewed.contains(&id) => {}
            Err(RemoveError::Unreviewed { .. }) => report.unreviewed.push(id),
            Err(error) => report.failed.push(error),
        }
    }
    Ok(report)
}

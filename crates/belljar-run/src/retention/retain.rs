//! Keeps only so much of finished runs: after every run, for its own name.

use belljar_spec::{Retention, RunId};

use super::resumable::needed;
use super::{RemoveError, Undecided, remove};
use belljar_record::home::Home;
use belljar_record::ledger::{Ledger, LedgerError};

/// What went, oldest first.
#[derive(Debug, Default)]
pub struct Retained {
    /// Runs that only have their record now.
    pub sandboxes: Vec<RunId>,
    pub runs: Vec<RunId>,
    /// They have changes that were neither applied nor discarded, and stay.
    pub unreviewed: Vec<RunId>,
    /// Runs of an agent that can be gone on with, or that such a run was born from: they stay.
    pub resumable: Vec<RunId>,
    /// What could not be removed, and is tried again after the next run.
    pub failed: Vec<RemoveError>,
}

/// Of the stopped runs with exactly that name: beyond the newest `runs` the whole run goes, beyond
/// the newest `sandboxes` what it left behind. What an agent's run
/// can be gone on from stays. Costs three questions to the ledger where nothing is to do.
pub fn retain(
    home: &Home,
    name: &Option<String>,
    retention: Retention,
) -> Result<Retained, LedgerError> {
    let ledger = Ledger::open(home)?;
    let mut retained = Retained::default();
    let runs = ledger.stopped_beyond(name, retention.runs)?;
    let sandboxes = ledger.kept_beyond(name, retention.sandboxes)?;
    let needed = needed(home, &[runs.as_slice(), &sandboxes].concat());
    retained.resumable.extend(&needed);
    for id in runs.into_iter().filter(|id| !needed.contains(id)) {
        match remove::whole(home, &id, Undecided::Stays) {
            Ok(()) => retained.runs.push(id),
            Err(RemoveError::Unreviewed { .. }) => retained.unreviewed.push(id),
            Err(error) => retained.failed.push(error),
        }
    }
    // Asked again: what went whole has no sandbox any more.
    let sandboxes = ledger.kept_beyond(name, retention.sandboxes)?;
    for id in sandboxes.into_iter().filter(|id| !needed.contains(id)) {
        match remove::sandbox(home, &id) {
            Ok(()) => retained.sandboxes.push(id),
            Err(RemoveError::Unreviewed { .. }) if retained.unreviewed.contains(&id) => {}
            Err(RemoveError::Unreviewed { .. }) => retained.unreviewed.push(id),
            Err(error) => retained.failed.push(error),
        }
    }
    Ok(retained)
}

//! Removes one run, or only its sandbox.

use std::path::PathBuf;

use belljar_spec::RunId;

use crate::run::reconcile::{self, ReconcileError, Unfinished};
use belljar_record::home::Home;
use belljar_record::ledger::LedgerError;
use belljar_record::store::trash::{self, TrashError};
use belljar_record::store::{Life, RunInfo, life};
use belljar_workspace::RecoverError;

#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error("run {id} is live; stop it first with: belljar stop {id}")]
    Live { id: RunId },
    #[error(
        "the supervisor of run {id} is gone, and parts of the run may still exist; clean it up first with: \
         belljar reconcile"
    )]
    Unfinished { id: RunId },
    #[error(
        "run {id} has changes that were neither applied nor discarded; review them with: belljar diff {id}; to \
         remove the run with its changes: belljar rm -f {id}"
    )]
    Unreviewed { id: RunId },
    #[error("run {id} cannot be removed yet")]
    Recover {
        id: RunId,
        #[source]
        error: RecoverError,
    },
    #[error("run {id} cannot be removed yet")]
    Reconcile {
        id: RunId,
        #[source]
        error: Box<ReconcileError>,
    },
    #[error("cannot remove the liveness lock of a run")]
    LivenessLock(#[source] std::io::Error),
    #[error(transparent)]
    Trash(#[from] TrashError),
}

/// What happens to a run with changes that were neither applied nor discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreviewedChanges {
    Keep,
    Remove,
}

impl From<LedgerError> for RemoveError {
    fn from(error: LedgerError) -> Self {
        Self::Trash(error.into())
    }
}

/// Removes a stopped run: its directory and its ledger row. [`trash::empty`] finishes an interrupted removal.
pub fn remove(
    home: &Home,
    run: &RunInfo,
    unreviewed: UnreviewedChanges,
) -> Result<(), RemoveError> {
    remove_run(home, &run.id, unreviewed)
}

pub(super) fn remove_run(
    home: &Home,
    id: &RunId,
    unreviewed: UnreviewedChanges,
) -> Result<(), RemoveError> {
    let unfinished = take_unfinished(home, id)?;
    // Otherwise the leftovers of an interrupted apply would stay in the real tree for good.
    belljar_workspace::settle(home, id).map_err(|error| RemoveError::Recover { id: *id, error })?;
    refuse_unreviewed(home, id, unreviewed)?;
    let moved: Vec<PathBuf> = trash::take_run(home, id)?.into_iter().collect();
    if let Some(unfinished) = unfinished {
        unfinished.forget().map_err(RemoveError::LivenessLock)?; // the record is being removed, so it needs no end
    }
    // After the move: a row without a directory does no harm, a directory without a row comes back.
    Ok(trash::finish(home, &moved, |ledger| ledger.remove(&[*id]))?)
}

/// Removes the files of a stopped run, and keeps its record.
pub(super) fn remove_sandbox(home: &Home, id: &RunId) -> Result<(), RemoveError> {
    refuse_unless_over(home, id)?;
    belljar_workspace::settle(home, id).map_err(|error| RemoveError::Recover { id: *id, error })?;
    refuse_unreviewed(home, id, UnreviewedChanges::Keep)?;
    let mut moved = Vec::new();
    for part in trash::PARTS {
        moved.extend(trash::take_part(home, id, part)?);
    }
    Ok(trash::finish(home, &moved, |ledger| ledger.set_sandbox_gone(id))?)
}

fn refuse_unreviewed(
    home: &Home,
    id: &RunId,
    unreviewed: UnreviewedChanges,
) -> Result<(), RemoveError> {
    match unreviewed {
        UnreviewedChanges::Keep if belljar_workspace::is_unreviewed(home, id) => {
            Err(RemoveError::Unreviewed { id: *id })
        }
        UnreviewedChanges::Keep | UnreviewedChanges::Remove => Ok(()),
    }
}

/// Takes over a run that its supervisor did not finish. The disk may be so full that the end of the record can only be
/// written after the run is removed.
fn take_unfinished(home: &Home, id: &RunId) -> Result<Option<Unfinished>, RemoveError> {
    match life::of(home, id) {
        Life::Over => Ok(None),
        Life::Live(_) => Err(RemoveError::Live { id: *id }),
        Life::Unfinished => {
            let taken = reconcile::take(home, id).map_err(Box::new);
            let taken = taken.map_err(|error| RemoveError::Reconcile { id: *id, error })?;
            taken.map(Some).ok_or(RemoveError::Unfinished { id: *id })
        }
    }
}

/// The liveness lock is the first file of a run and the last one that is removed, and an id is never reused. So a run
/// without one stays over.
fn refuse_unless_over(home: &Home, id: &RunId) -> Result<(), RemoveError> {
    match life::of(home, id) {
        Life::Over => Ok(()),
        Life::Live(_) => Err(RemoveError::Live { id: *id }),
        Life::Unfinished => Err(RemoveError::Unfinished { id: *id }),
    }
}

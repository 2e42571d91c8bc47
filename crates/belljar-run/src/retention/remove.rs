//! Removing one run, or its sandbox alone.

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
        "run {id} was left by a supervisor that is gone, and something of it may still be there; \
         finish it first with: belljar reconcile"
    )]
    Unfinished { id: RunId },
    #[error(
        "run {id} has changes that were neither applied nor discarded; look at them with: belljar diff {id}; to \
         remove it with its changes: belljar rm -f {id}"
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
    #[error("cannot remove the sign of life of a run")]
    Sign(#[source] std::io::Error),
    #[error(transparent)]
    Trash(#[from] TrashError),
}

/// What becomes of a run whose changes nobody has decided about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecided {
    Stays,
    GoesToo,
}

impl From<LedgerError> for RemoveError {
    fn from(error: LedgerError) -> Self {
        Self::Trash(error.into())
    }
}

/// Removes a run that is over: its directory and its row. What was cut short, [`trash::empty`] finishes.
pub fn remove(home: &Home, run: &RunInfo, undecided: Undecided) -> Result<(), RemoveError> {
    whole(home, &run.id, undecided)
}

pub(super) fn whole(home: &Home, id: &RunId, undecided: Undecided) -> Result<(), RemoveError> {
    let unfinished = take_unfinished(home, id)?;
    // What an apply that was cut short has left in a real tree would stay there for good.
    belljar_workspace::settle(home, id).map_err(|error| RemoveError::Recover { id: *id, error })?;
    refuse_unless_decided(home, id, undecided)?;
    let moved: Vec<PathBuf> = trash::take_run(home, id)?.into_iter().collect();
    if let Some(unfinished) = unfinished {
        unfinished.forget().map_err(RemoveError::Sign)?; // its record is on its way out, and needs no end any more
    }
    // After the move: a row without a directory does no harm, a directory without a row comes back.
    Ok(trash::finish(home, &moved, |ledger| ledger.remove(&[*id]))?)
}

/// Removes what a stopped run left behind, and keeps its record.
pub(super) fn sandbox(home: &Home, id: &RunId) -> Result<(), RemoveError> {
    refuse_unless_over(home, id)?;
    belljar_workspace::settle(home, id).map_err(|error| RemoveError::Recover { id: *id, error })?;
    refuse_unless_decided(home, id, Undecided::Stays)?;
    let mut moved = Vec::new();
    for part in trash::PARTS {
        moved.extend(trash::take_part(home, id, part)?);
    }
    Ok(trash::finish(home, &moved, |ledger| ledger.set_sandbox_gone(id))?)
}

fn refuse_unless_decided(home: &Home, id: &RunId, undecided: Undecided) -> Result<(), RemoveError> {
    match undecided {
        Undecided::Stays if belljar_workspace::is_unreviewed(home, id) => {
            Err(RemoveError::Unreviewed { id: *id })
        }
        Undecided::Stays | Undecided::GoesToo => Ok(()),
    }
}

/// A run that its supervisor could not finish, taken over: the disk may be so full that only removing it makes room
/// for the end of its record.
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

/// The sign of life is made before anything else of a run, never again under the same id, and goes
/// last. So a run without one stays over.
fn refuse_unless_over(home: &Home, id: &RunId) -> Result<(), RemoveError> {
    match life::of(home, id) {
        Life::Over => Ok(()),
        Life::Live(_) => Err(RemoveError::Live { id: *id }),
        Life::Unfinished => Err(RemoveError::Unfinished { id: *id }),
    }
}

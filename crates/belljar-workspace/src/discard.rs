//! Discards what a run changed.

use std::io;
use std::path::PathBuf;

use belljar_spec::RunId;

use super::apply::{ApplyLock, RecoverError, recover};
use super::baseline::BASE;
use super::open::read_layers;
use super::reviewed::{Reviewed, mark_reviewed};
use belljar_record::home::Home;
use belljar_record::store::trash::{self, TrashError};
use belljar_record::store::{Life, life};
use belljar_tree::remove_all;

#[derive(Debug, thiserror::Error)]
pub enum DiscardError {
    #[error(
        "run {run} is live and still works on its changes; stop it first with: belljar stop {run}, or use: \
         belljar discard --force {run}"
    )]
    Live { run: RunId },
    #[error(
        "run {run} was left by a supervisor that is gone, and something of it may still be there; finish it first \
         with: belljar reconcile"
    )]
    Unfinished { run: RunId },
    #[error("run {run} has nothing to discard: none of its trees was mounted as overlay")]
    NotLayered { run: RunId },
    #[error("cannot read {}", .path.display())]
    Read {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error(transparent)]
    Recover(#[from] RecoverError),
    #[error(transparent)]
    Trash(#[from] TrashError),
}

/// The changes of a run that is over go; its record stays. Again does no harm.
pub fn discard(home: &Home, run: &RunId) -> Result<(), DiscardError> {
    match life::of(home, run) {
        Life::Over => {}
        Life::Live(_) => return Err(DiscardError::Live { run: *run }),
        Life::Unfinished => return Err(DiscardError::Unfinished { run: *run }),
    }
    let directory = home.run_dir(run);
    let read_failed = |error| DiscardError::Read { path: directory.clone(), error };
    if read_layers(&directory).map_err(read_failed)?.is_empty() {
        return Err(DiscardError::NotLayered { run: *run });
    }
    let lock = ApplyLock::take(home)
        .map_err(|error| DiscardError::Read { path: home.applying(), error })?;
    recover(home, run, &lock)?;
    let mut moved = Vec::new();
    for part in ["upper", BASE] {
        moved.extend(trash::take_part(home, run, part)?);
    }
    for path in moved {
        remove_all(&path).map_err(TrashError::from)?;
    }
    mark_reviewed(&directory, Reviewed::Discarded); // with the room that is free now; the changes are gone anyway
    Ok(())
}

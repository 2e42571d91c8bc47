//! Starts layered trees from a checkpoint, with what another run had changed.
//!
//! In the seed each tree has a directory, by its index among the trees of the run: `data`, a snapshot, and `tree.json`,
//! the other run's metadata of it. A layer is only valid over the tree that it was made over, with the same backing.

use std::path::{Path, PathBuf};

use belljar_spec::{Backing, LayeredTree, Moment};

use super::{BindError, Binder, DATA};
use crate::snapshot;

/// In a tree's directory.
pub const NOTE: &str = "tree.json";

/// Before any stamp that a restored file can have: each is compared by what is in it, since none is as old as the copy
/// that the first run was given.
pub(super) const RESTORED: Moment = Moment { secs: 0, nanos: 0 };

#[derive(Debug)]
pub(super) struct Seed {
    directory: PathBuf,
    pub(super) note: LayeredTree,
}

impl Binder<'_> {
    /// What the next layered tree begins with, if not with nothing.
    pub(super) fn next_seed(&self, backing: Backing) -> Result<Option<Seed>, BindError> {
        let number = self.seeds_used.get();
        self.seeds_used.set(number + 1);
        let Some(all) = &self.place.seed else { return Ok(None) };
        let directory = all.join(number.to_string());
        let path = directory.join(NOTE);
        let unread = |error| BindError::Read { path: path.clone(), error };
        let text = std::fs::read(&path).map_err(unread)?;
        let note: LayeredTree =
            serde_json::from_slice(&text).map_err(|error| unread(error.into()))?;
        let is_alike = match (note.backing, backing) {
            (Backing::Overlay { attributes: one }, Backing::Overlay { attributes: other }) => {
                one == other
            }
            (Backing::Copy { .. }, Backing::Copy { .. }) => true,
            (Backing::Overlay { .. }, Backing::Copy { .. })
            | (Backing::Copy { .. }, Backing::Overlay { .. }) => false,
        };
        match is_alike {
            true => Ok(Some(Seed { directory, note })),
            false => Err(BindError::SeedBacking { path: note.source.as_path().to_owned() }),
        }
    }
}

impl Seed {
    pub(super) fn restore(&self, data: &Path) -> Result<(), BindError> {
        snapshot::restore(&self.directory.join(DATA), data).map(drop).map_err(BindError::Seed)
    }

    /// Refuses a copy that was made without hiding what is hidden now.
    pub(super) fn check_hidden(&self, hidden: &[PathBuf]) -> Result<(), BindError> {
        let was_hidden = |path: &PathBuf| self.note.hidden.iter().any(|it| it.as_path() == path);
        match hidden.iter().find(|path| !was_hidden(path)) {
            None => Ok(()),
            Some(hidden) => Err(BindError::SeedHidden {
                path: self.note.source.as_path().to_owned(),
                hidden: hidden.clone(),
            }),
        }
    }
}

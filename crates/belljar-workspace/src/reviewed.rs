//! Records whether all changes of a run were reviewed. Until then nothing removes them unasked.

use std::path::Path;

use belljar_spec::RunId;
use serde::{Deserialize, Serialize};

use super::apply::journal::Journal;
use super::open::{read_layers, upper_of};
use belljar_record::home::Home;

/// In the run's directory.
const MARK: &str = "reviewed";

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reviewed {
    /// There was nothing to decide.
    NothingChanged,
    Applied,
    Discarded,
}

/// Only of a run that is over. Where it cannot be written down, the run stays undecided.
pub(crate) fn mark_reviewed(directory: &Path, how: Reviewed) {
    if let Ok(text) = serde_json::to_vec(&how) {
        let _ = std::fs::write(directory.join(MARK), text);
    }
}

/// What was decided is not done after all.
pub(crate) fn unmark_reviewed(directory: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(directory.join(MARK)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether the run has changes that were neither applied nor discarded. Cheap: nothing is compared.
pub fn is_unreviewed(home: &Home, run: &RunId) -> bool {
    let directory = home.run_dir(run);
    // An application that was cut short is yet to be undone or finished.
    if Journal::runs(home).map_or(true, |runs| runs.contains(run)) {
        return true;
    }
    if std::fs::symlink_metadata(directory.join(MARK)).is_ok() {
        return false;
    }
    let Ok(layers) = read_layers(&directory) else { return true };
    layers.iter().any(|note| {
        // What cannot be read is not nothing: a run can take the mode from its own tree.
        match std::fs::read_dir(upper_of(&directory, note)) {
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
            Ok(mut entries) => entries.next().is_some(),
        }
    })
}

//! What a run changed in a layered tree: looked at, taken over, or thrown away.
//!
//! Everything that comes from a run is hostile: names, links, modes, sizes, and the moment at which they
//! change. Nothing here follows a link, opens anything but plain files and directories for reading, or runs a
//! program; git above all. Paths are walked by descriptor, name by name.

pub(crate) mod beneath;
mod bounds;
mod change;
mod compare;
mod content;
mod git_config;
mod held;
mod merged;
mod open;
mod recent;
mod renames;
mod report;
mod repositories;
mod side;
#[cfg(test)]
mod tests;
pub mod unified;
mod written;

mod apply;
mod baseline;
mod copying;
mod discard;
mod fingerprint;
mod lookup;
mod merge;
mod quarantine;
mod renamed;
mod reviewed;
mod select;
mod touched;

pub(crate) use apply::recover_all;
pub use apply::{
    Applied, ApplyError, Clashing, Conflict, Draft, LeftStep, OnConflict, RecoverError, Recovery,
    Todo, TreeDraft, apply, is_git_index, note_reviewed, settle,
};
pub(crate) use baseline::{BASE, capture};
pub use baseline::{BaselineError, keep_baseline};
pub use change::{Change, Changes, Facts, Held, HowFar, Kind, LaterMark, What};
pub use discard::{DiscardError, discard};
pub(crate) use lookup::{is_file_in, is_file_in_layers};
pub use merge::Clash;
pub use open::{OpenTree, Review, ReviewError, read_small};
pub(crate) use open::{read_layers, upper_of, write_layers};
pub use quarantine::{QuarantineError, Quarantined, quarantine};
pub(crate) use recent::count_recent;
pub(crate) use report::{AtEnd, report_at_end, report_of_layers};
pub(crate) use reviewed::mark_reviewed;
pub use reviewed::{Reviewed, is_unreviewed};
pub use select::{Selection, below_root};
pub(crate) use touched::capture_live;
pub(crate) use written::WrittenTree;

/// Makes the lock of whoever applies or discards, while there is room for it.
pub(crate) fn make_lock(home: &crate::home::Home) -> std::io::Result<()> {
    apply::ApplyLock::make(home)
}

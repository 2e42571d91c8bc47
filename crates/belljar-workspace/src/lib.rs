//! What a run changed in its workspace: diff, apply, discard, checkpoints.
//!
//! Everything that comes from a run is hostile: names, links, modes, sizes, and the moment at which they
//! change. Nothing here follows a link, opens anything but plain files and directories for reading, or runs a
//! program; git above all. Paths are walked by descriptor, name by name.

mod autorun_scan;
mod bounds;
mod change;
pub mod checkpoint;
mod compare;
pub mod disk_usage;
mod entry_pair;
mod git_config;
mod open;
mod overlay_view;
mod recent_changes;
mod renames;
mod report;
mod repositories;
#[cfg(test)]
mod tests;
pub mod transfer;
pub mod unified;
mod withheld;

mod apply;
mod baseline;
mod changed_paths;
mod dir_renames;
mod discard;
mod fingerprint;
mod lookup;
mod merge;
mod quarantine;
mod reviewed;
mod select;

pub use apply::recover_all;
pub use apply::{
    Applied, ApplyError, Clashing, Conflict, Draft, LeftStep, OnConflict, RecoverError, Recovery,
    Todo, TreeDraft, apply, apply_at_end, note_reviewed, settle,
};
pub use autorun_scan::WrittenTree;
pub(crate) use baseline::{BASE, capture};
pub use baseline::{BaselineError, keep_baseline};
pub use change::{AutorunMark, Change, Changes, Facts, HowFar, Kind, What, Withheld};
pub use changed_paths::capture_live;
pub use discard::{DiscardError, discard};
pub use git_config::{git_has_worktree_config, git_identity_in, git_work_tree_in};
pub use lookup::{FileVersion, find_file, find_file_in_layers};
pub use merge::Clash;
pub use open::{OpenTree, Review, ReviewError, read_small};
pub use open::{read_layers, upper_of, write_layers};
pub use quarantine::{QuarantineError, Quarantined, quarantine};
pub(crate) use recent_changes::count_recent;
pub use report::{AtEnd, report_at_end, report_of_layers};
pub(crate) use reviewed::mark_reviewed;
pub use reviewed::{Reviewed, is_unreviewed};
pub use select::{Selection, below_root};

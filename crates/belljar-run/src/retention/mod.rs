//! Removes runs: a single one, old ones by rules, and those past the configured number.

mod apply_limits;
mod prune;
mod remove;
mod resumable;

pub use apply_limits::{RetentionReport, apply_retention};
pub use prune::{PruneMode, PruneRules, Pruned, Removal, prune};
pub use remove::{RemoveError, UnreviewedChanges, remove};

//! Removes runs: one by name, old ones by rules, those past the configured number.

mod prune;
mod remove;
mod resumable;
mod retain;

pub use prune::{Mode, Pruned, Removal, Rules, prune};
pub use remove::{RemoveError, Undecided, remove};
pub use retain::{Retained, retain};

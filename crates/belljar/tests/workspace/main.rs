//! The workspace: overlay, hidden files, control files, diff and apply.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test that cannot be set up stops, and says why"
)]

mod apply;
mod apply_unseen;
mod control_files;
mod corners;
mod diff;
mod git_worktree;
mod git_worktree_hostile;
mod hide;
mod new_control_files;
mod overlay_property;
mod overlay_tree;

//! Attacks on the tools that collect a run's work: `diff`, `apply`, `discard` and `cp`.
//!
//! Each is tried against belljar's commands, and against a naive program that walks the tree and follows what it finds.

mod files;
mod live;
mod plants;
mod trial;

use crate::case::Case;

pub(super) fn cases() -> Vec<Case> {
    [files::CASES, live::CASES, plants::CASES].concat()
}

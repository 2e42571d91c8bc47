//! Attacks on whoever collects a run's work: `diff`, `apply`, `discard` and `cp`.
//!
//! Each is tried against belljar's own commands, and against what people write in a hurry: a program that walks the
//! tree and follows what it finds.

mod files;
mod live;
mod plants;
mod trial;

use crate::case::Case;

pub(super) fn cases() -> Vec<Case> {
    [files::CASES, live::CASES, plants::CASES].concat()
}

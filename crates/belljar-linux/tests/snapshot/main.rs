//! Snapshots of trees: as they were, whoever takes them and whatever is in them.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod exact;
mod hostile;
mod kernel;
mod random;
mod support;

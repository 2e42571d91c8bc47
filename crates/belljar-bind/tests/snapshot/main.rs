//! Snapshots of trees: restored exactly, for every user and any content.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod exact;
mod hostile;
mod kernel;
mod random;
mod support;

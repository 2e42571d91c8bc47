//! Removing runs, retention, and the lineage of resumed runs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod lineage;
#[path = "../../../belljar-record/tests/record/runs.rs"]
mod runs;
mod store_removal;

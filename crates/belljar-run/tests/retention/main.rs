//! Removing runs, keeping the newest, and the line of runs that resume made.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod lineage;
#[path = "../../../belljar-record/tests/record/runs.rs"]
mod runs;
mod store_removal;

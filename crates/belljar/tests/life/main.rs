//! Lifetime of runs: kills at every system call, many at once, nothing left over.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test that cannot be set up stops, and says why"
)]

mod baseline;
mod cost;
mod many;
mod supervisor;
mod sweep;

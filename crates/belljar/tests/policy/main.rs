//! What is believed before a run, and what its posture claims.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test that cannot be set up stops, and says why"
)]

mod posture;
mod real_programs;
mod trust_detours;
mod trust_files;
mod trust_layers;
mod trust_paths;
mod trust_programs;

//! The library, as a program that embeds it uses it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test that cannot be set up stops, and says why"
)]

mod bench;
mod blocking;
mod checkpoint;
mod copy;
mod examples;
mod exec;
mod files;
mod jail;
mod record;
mod review;
mod start;

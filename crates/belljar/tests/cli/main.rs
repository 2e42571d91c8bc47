//! The command line: verbs, flags, output and exit codes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test that cannot be set up stops, and says why"
)]

mod about;
mod agent_log;
mod choose_backend;
mod copy;
mod exec;
mod image;
mod image_pull;
mod image_support;
mod init;
mod life;
mod logging;
mod new;
mod record;
mod reuse;
mod snapshots;
mod terminal;

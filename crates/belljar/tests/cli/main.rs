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
mod first_minutes;
mod fixes;
mod hints;
mod image;
mod image_own;
mod image_pull;
mod image_support;
mod init;
mod life;
mod logging;
mod messages;
mod new;
mod not_found;
mod programs;
mod record;
mod reuse;
mod setup;
mod snapshots;
mod terminal;

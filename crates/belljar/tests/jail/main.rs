//! The built-in jail. This suite also runs in the guest kernel of `cargo xtask test`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test that cannot be set up stops, and says why"
)]

mod attacks;
mod commands;
mod counters;
mod exit;
mod files;
mod images;
mod images_hostile;
mod input;
mod life;
mod limits;
mod reach;
mod root;
mod setup;
mod sources;
mod streams;
mod terminal;
mod traced;
mod trees;

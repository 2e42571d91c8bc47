//! The record: events, output, secrets, ledger rows, verification.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test that cannot be set up stops, and says why"
)]

mod event_budget;
mod honest;
mod late_index;
mod ledger_rows;
mod output;
mod secrets;

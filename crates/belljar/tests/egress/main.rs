//! Network access: the allow-list, real clients, protocols.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test that cannot be set up stops, and says why"
)]

mod clients;
mod live_list;
mod model_service;
mod network_access;
mod protocols;

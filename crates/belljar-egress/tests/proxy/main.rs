//! Tests of the egress proxy over real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod budget;
mod half_close;
mod intercepted;
mod lifecycle;
mod list_change;
mod setup_phase;
mod socks;
mod support;
mod tunnel_connect;
mod tunnel_ends;
mod tunnel_many;
mod tunnel_tls;

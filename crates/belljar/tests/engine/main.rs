//! Docker, Podman and gVisor: local, remote, restarted, attacked.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test that cannot be set up stops, and says why"
)]

mod attacks;
mod container;
mod daemon;
mod elsewhere;
mod images;
mod no_jail;
mod remote;
mod smoke;
mod traced;

//! Injected faults: failing system calls, full disks, hung processes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test that cannot be set up stops, and says why"
)]

mod disk;
mod full_disk;
mod home_gone;
mod hostile;
mod hung_exec;
mod life;
mod many;
mod system_calls;

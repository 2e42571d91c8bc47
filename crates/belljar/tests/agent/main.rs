//! Agents, their loop, resume, and rules on the commands they issue.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test that cannot be set up stops, and says why"
)]

mod end_to_end;
mod ends;
mod exec_rules;
mod inside;
mod iterations;
mod login;
mod on_terminal;
mod resume;
mod stand_in;
mod verdicts;

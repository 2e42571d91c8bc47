//! The kernel side of Belljar: the built-in jail, and `belljar __init`, PID 1 of every sandbox.
//!
//! Few dependencies, no threads, no policy: what is to be done arrives as a plan. All `unsafe` code
//! of the project is in [`sys`].
#![cfg(target_os = "linux")]

#[macro_use]
mod macros;

pub mod filter;
pub mod init;
pub mod jail;
mod mountinfo;
pub mod sys;

/// An error and all its causes, on one line: for a process that can only send text.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

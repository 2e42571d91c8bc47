//! The kernel side of Belljar: the built-in jail, and `belljar __init`, PID 1 of every sandbox.
//!
//! Few dependencies, no threads, no policy: the work arrives as a plan. Its `unsafe` code is in [`sys`].
#![cfg(target_os = "linux")]

#[macro_use]
mod macros;

pub mod filter;
pub mod init;
pub mod jail;
pub mod loopback;
pub mod staging;
pub mod sys;
mod user_limits;

//! Trees as somebody hostile makes them: what is in them is reached, and nothing else ever.
#![allow(clippy::print_stderr, clippy::unwrap_used, clippy::panic, reason = "a test")]

mod attack;
mod beneath;
mod copy;
mod mounts;
mod names;
mod queue;
mod race;
mod random;
mod remove;
mod support;
mod walk;

//! Tests of the image store with real file systems: hostile layers, merged trees, several processes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod archives;
mod children;
mod hostile;
mod kernel;
mod load;
mod lookup;
mod merge;
mod pull;
mod registry;
mod store;
mod tools;

//! Settings: layers, agents, trust, what `init` writes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod agent;
mod layers;
mod scaffold;
mod store_settings;
mod support;
mod trust;

//! Plans, snapshots of them, how engines are found, image policy.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod engine_find;
mod engine_plan;
mod fake_engine;
mod image_policy;
mod jail_plan;
mod network_plan;
mod support;

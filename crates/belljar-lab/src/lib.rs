//! Runs: their settings, their launch, their supervision and their record. Prints nothing.

pub mod agent;
mod ballast;
mod block_on;
mod checkpoint;
pub mod commands;
pub mod config;
pub mod doctor;
pub mod home;
pub mod image;
pub mod ledger;
pub mod lineage;
mod looping;
pub mod network;
pub mod record;
pub mod reuse;
pub mod run;
pub mod start;
pub mod store;
mod supervise;
pub mod tree;
pub mod workspace;

pub use block_on::block_on;

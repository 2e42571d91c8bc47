//! Everything about one run: its settings, launch, supervision, agent and clean-up. Prints nothing.

pub mod agent;
pub mod config;
pub mod debug_log;
pub mod doctor;
pub mod exec_rules;
pub mod image;
pub mod lineage;
mod loop_policy;
pub mod network;
pub mod retention;
pub mod reuse;
pub mod run;
pub mod scaffold;
mod supervise;

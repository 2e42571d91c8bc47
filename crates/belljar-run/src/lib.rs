//! Everything about one run: its settings, launch, supervision, agent and clean-up. Prints nothing.

pub mod agent;
pub mod config;
mod container;
pub mod debug_log;
pub mod denied_calls;
mod detach;
pub mod doctor;
pub mod exec_rules;
pub mod image;
pub mod lineage;
pub mod login;
mod loop_policy;
pub mod network;
pub mod own_images;
pub mod raw_terminal;
pub mod retention;
pub mod reuse;
pub mod run;
pub mod scaffold;
pub mod setup;
pub mod socket_path;
mod supervise;

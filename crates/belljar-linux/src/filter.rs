//! The system call filter, as it was compiled from `filters/`.

use rustix::io::Errno;

use crate::sys::seccomp::{Program, install};

/// What every command runs under, on every backend.
pub const COMMAND: &str = "command";

const COMMAND_PROGRAM: Program = Program(include_bytes!(concat!(env!("OUT_DIR"), "/command.bpf")));

/// The wider list for a container engine, as its API takes it. Each command's own filter comes on top.
pub const ENGINE_PROFILE: &str = include_str!(concat!(env!("OUT_DIR"), "/engine.json"));

/// How many programs the kernel must report for a process under a named filter.
pub const PROGRAMS: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    #[error("there is no system call filter called \"{0}\"")]
    Unknown(String),
    #[error("the kernel did not take the system call filter")]
    Install(#[source] Errno),
}

/// Puts a filter in force. It forbids most of what a set-up does, so it comes last.
pub fn load(name: &str) -> Result<(), FilterError> {
    match name {
        COMMAND => install(COMMAND_PROGRAM).map_err(FilterError::Install),
        other => Err(FilterError::Unknown(other.to_owned())),
    }
}

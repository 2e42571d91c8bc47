//! Loads the system call filters that the build compiled from `filters/`.

use rustix::io::Errno;

use crate::sys::seccomp::{Program, install};

/// What every command runs under, on every backend.
pub const COMMAND: &str = "command";

const COMMAND_PROGRAM: Program = Program(include_bytes!(concat!(env!("OUT_DIR"), "/command.bpf")));

/// How many programs the kernel must report for a process under a named filter.
pub const PROGRAMS: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    #[error("there is no system call filter \"{0}\"")]
    Unknown(String),
    #[error("the kernel refused the system call filter")]
    Install(#[source] Errno),
}

/// Installs a filter. It forbids most of what a set-up does, so it comes last.
pub fn load(name: &str) -> Result<(), FilterError> {
    match name {
        COMMAND => install(COMMAND_PROGRAM).map_err(FilterError::Install),
        other => Err(FilterError::Unknown(other.to_owned())),
    }
}

//! Loads the system call filters that the build compiled from `filters/`.

mod call_names;
mod traced;
mod verdict;

use std::os::fd::OwnedFd;

use rustix::io::Errno;

pub use belljar_spec::denied_call::{COMMAND_FILTER as COMMAND, TRACED_FILTER as TRACED};

pub(crate) use call_names::call_name;
pub(crate) use verdict::refusal_errno;

use crate::sys::seccomp::{Program, install, install_with_listener};

const COMMAND_PROGRAM: Program = Program(include_bytes!(concat!(env!("OUT_DIR"), "/command.bpf")));

/// How many programs the kernel must report for a process under a named filter.
pub const PROGRAMS: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    #[error("there is no system call filter \"{0}\"")]
    Unknown(String),
    #[error("the kernel refused the system call filter")]
    Install(#[source] Errno),
    #[error(
        "this kernel cannot report refused calls (seccomp user notification, Linux 5.9); \
         run without --trace-denied and sandbox.trace_denied"
    )]
    NoListener(#[source] Errno),
    #[error(
        "whatever started belljar listens to system calls itself, and the kernel allows one listener; \
         run without --trace-denied and sandbox.trace_denied"
    )]
    OtherListener,
}

/// What a loaded filter needs.
#[derive(Debug)]
pub enum Loaded {
    /// Nothing: the kernel answers refused calls.
    Plain,
    /// Someone who answers refused calls, with this descriptor.
    Traced(OwnedFd),
}

/// Installs a filter. It forbids most of what a set-up does, so it comes last.
pub fn load(name: &str) -> Result<Loaded, FilterError> {
    let program = COMMAND_PROGRAM.instructions();
    match name {
        COMMAND => install(&program).map(|()| Loaded::Plain).map_err(FilterError::Install),
        TRACED => {
            install_with_listener(&traced::traced(&program)).map(Loaded::Traced).map_err(|error| {
                match error {
                    Errno::BUSY => FilterError::OtherListener,
                    Errno::INVAL | Errno::NOSYS => FilterError::NoListener(error),
                    other => FilterError::Install(other),
                }
            })
        }
        other => Err(FilterError::Unknown(other.to_owned())),
    }
}

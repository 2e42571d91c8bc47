//! An error that names the step of a set-up whose system call failed.

use rustix::io::Errno;

#[derive(Debug, thiserror::Error)]
#[error("{name}")]
pub struct StepError {
    name: &'static str,
    #[source]
    error: Errno,
}

impl StepError {
    pub fn new(name: &'static str, error: Errno) -> Self {
        Self { name, error }
    }
}

pub fn step<T>(name: &'static str, result: Result<T, Errno>) -> Result<T, StepError> {
    result.map_err(|error| StepError::new(name, error))
}

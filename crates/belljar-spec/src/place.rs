//! Where a run lives on the host. Not part of the record: it names directories of one machine.

use std::path::PathBuf;

/// Where a run lives on the host, and what it must never be given.
#[derive(Clone, Debug)]
pub struct Place {
    pub run: String,
    /// `home/` in the run's directory.
    pub home: PathBuf,
    /// Belljar's own directories.
    pub own: Vec<PathBuf>,
    /// The running executable: it and its directory are visible in a workspace at most read-only.
    pub executable: Option<PathBuf>,
    /// Trees that a run could write, now or earlier.
    pub run_writable: Vec<PathBuf>,
    /// Directories that people live in.
    pub homes: Vec<PathBuf>,
}

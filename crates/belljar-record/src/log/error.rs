//! Why the log could not be written, or gone on with.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::chain::MAX_LINE;

/// What was being done when the log failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStep {
    Open,
    Read,
    Reserve,
    Write,
    Cut,
    Sync,
}

impl std::fmt::Display for LogStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Reserve => "keep room on the disk for",
            Self::Write => "write to",
            Self::Cut => "cut what is torn from",
            Self::Sync => "bring to the disk",
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("cannot {step} the log {path}: {error}", path = .path.display())]
    Io {
        path: PathBuf,
        step: LogStep,
        #[source]
        error: io::Error,
    },
    #[error("an event has data that cannot be written to {path}: {error}", path = .path.display())]
    Data {
        path: PathBuf,
        #[source]
        error: serde_json::Error,
    },
    #[error("an event for {path} has {length} bytes, and a line has at most {MAX_LINE}; give it less data", path = .path.display())]
    TooLong { path: PathBuf, length: usize },
    #[error("an event for {path} holds the integer {digits}, and integers stay below 2^53; write it as text", path = .path.display())]
    NumberTooLarge { path: PathBuf, digits: String },
    #[error("{path} has events, and this home's key did not write them; it is left as it is", path = .path.display())]
    NotOurs { path: PathBuf },
    #[error("the last event of {path} was written already", path = .path.display())]
    AfterTheLast { path: PathBuf },
}

impl LogError {
    /// The disk, or the user's share of it, is full.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::Io { error, .. }
            if error.raw_os_error().is_some_and(|raw| no_space(Errno::from_raw_os_error(raw))))
    }
}

pub(super) fn no_space(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT)
}

//! Moves trees of files through a channel: packs one of the host, unpacks one that a sandbox sent, and merges
//! what came back of a tree that was sent into the copy that was sent.
//!
//! Data from a sandbox is hostile: [`Receiver`] writes it into a new directory next to the target, with
//! descriptors only, and moves it into place when it is complete. [`Sender`] reads the host's side without
//! following links.

mod merge_received;
mod receive;
mod send;
mod target;
#[cfg(test)]
mod tests;

use belljar_spec::OsText;
use belljar_spec::wire::archive::ArchiveError;

pub use merge_received::{MergeError, ReceivedMerge, merge_received};
pub use receive::{LinkTargets, Receiver};
pub use send::Sender;
pub use target::{CopyTarget, MissingParents};

/// How many skipped entries are named.
pub const MAX_LISTED: usize = 1000;

/// The limits of a copy, checked against the announced sizes before anything is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyLimits {
    pub bytes: u64,
    pub entries: u64,
}

impl Default for CopyLimits {
    fn default() -> Self {
        Self { bytes: 10 << 30, entries: 200_000 }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    pub files: u64,
    pub bytes: u64,
    /// The first thousand entries that were skipped, and why.
    pub skipped: Vec<(OsText, String)>,
    /// How many more were skipped.
    pub unlisted: u64,
}

impl CopyReport {
    fn skip(&mut self, path: &[u8], why: String) {
        if self.skipped.len() < MAX_LISTED {
            self.skipped.push((OsText::from_bytes(path.to_vec()), why));
        } else {
            self.unlisted += 1;
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("the sandbox sent an invalid archive: {0}")]
    Archive(#[from] ArchiveError),
    #[error("the sandbox sent an invalid archive: {path}: {why}")]
    Entry { path: OsText, why: &'static str },
    #[error("the copy is incomplete: it ended too early")]
    Unfinished,
    #[error("the copy would be larger than {limit} bytes; copy less, or raise CopyLimits")]
    TooLarge { limit: u64 },
    #[error("the copy has more than {limit} entries; copy less, or raise CopyLimits")]
    TooMany { limit: u64 },
    #[error("{path} exists and is a directory; name another target, or remove it")]
    DirectoryInTheWay { path: OsText },
    #[error("{path} is read-only, and was not replaced; use --force")]
    ReadOnly { path: OsText },
    #[error(transparent)]
    Target(Box<belljar_bind::resolve::ResolveError>),
    #[error("{path} has no file name; add one to the target")]
    NoName { path: OsText },
    #[error("nothing was copied: {why}")]
    Nothing { why: String },
    #[error("{path} changed while it was copied; try again")]
    Changed { path: OsText },
    #[error("the sandbox could not copy {path}: {why}")]
    Inside { path: OsText, why: String },
    #[error("cannot {what} {path}: {error}")]
    Io {
        what: &'static str,
        path: OsText,
        #[source]
        error: std::io::Error,
    },
}

//! The limits of a walk (depth, entries, time), and how it ended.

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The budget of one walk. Every one of them ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How many names a path may have: with 1, no directory of the root is entered.
    pub depth: usize,
    /// Names, over all directories.
    pub entries: u64,
    /// What the entries take on disk. With [`u64::MAX`], no entry has to be looked at for it.
    pub bytes: u64,
    /// Memory for names that are yet to be visited.
    pub memory: usize,
    pub time: TimeBound,
}

/// How long a walk may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeBound {
    Unlimited,
    Until(Instant),
}

impl TimeBound {
    /// From now on.
    pub fn within(time: Duration) -> Self {
        Instant::now().checked_add(time).map_or(Self::Unlimited, Self::Until)
    }

    pub(super) fn is_over(self) -> bool {
        match self {
            Self::Unlimited => false,
            Self::Until(end) => Instant::now() >= end,
        }
    }
}

/// For a tree of any size that memory allows.
impl Default for Bounds {
    fn default() -> Self {
        Self {
            depth: usize::MAX,
            entries: u64::MAX,
            bytes: u64::MAX,
            memory: 128 << 20,
            time: TimeBound::Unlimited,
        }
    }
}

/// One of the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    Depth,
    Entries,
    Bytes,
    Memory,
    Time,
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Depth => "depth",
            Self::Entries => "number of entries",
            Self::Bytes => "bytes on disk",
            Self::Memory => "memory for names",
            Self::Time => "time",
        })
    }
}

/// How a walk ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WalkEnd {
    /// Everything that could be reached was visited.
    Complete,
    /// The visitor asked for it.
    Stopped,
    /// One of the bounds was reached there.
    Bound { bound: Bound, path: PathBuf },
}

/// What a walk came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalkReport {
    pub end: WalkEnd,
    /// Names that were listed.
    pub entries: u64,
    /// On disk, where bytes were bounded.
    pub bytes: u64,
    /// Directories that could not be opened, listed or found again.
    pub problems: u64,
}

impl WalkReport {
    /// Nothing was left out, for whatever reason.
    pub fn is_complete(&self) -> bool {
        self.end == WalkEnd::Complete && self.problems == 0
    }
}

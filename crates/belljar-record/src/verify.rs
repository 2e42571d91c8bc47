//! Verifies a run's record: signatures, order, completeness, and what else has a copy of it.
//!
//! Reads only. The key signs each line, the lines name each other, the ledger's anchor has how many
//! there were, and the lines hold the hashes of the output.

mod ledger_row;
mod outputs;
mod run_json;
mod verdict;
mod walk;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use belljar_spec::RunId;

use super::chain::{LineReader, NO_HASH};
use super::key::{HomeKey, KeyError};
use super::log::Head;
use super::{EVENTS, file};
use crate::home::Home;
use crate::ledger::{AnchorRow, LedgerRow};
use crate::store;
use walk::Walk;

pub use verdict::Verdict;

/// What the ledger keeps of a log: how far it was known to reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    pub seq: u64,
    pub hash: String,
    /// Of the log's file.
    pub inode: u64,
    /// Earlier places up to which the log was on the disk: `seq` and hash.
    pub durable: Vec<(u64, String)>,
}

/// Whether the run may still write to its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogState {
    Live,
    Over,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub verdict: Verdict,
    /// That hold together, from the first on.
    pub events: u64,
    /// The last of them.
    pub head: Head,
    /// That were compared with their hashes.
    pub output_bytes: u64,
}

impl Report {
    fn nothing(verdict: Verdict) -> Self {
        let head = Head { seq: 0, hash: NO_HASH.to_owned() };
        Self { verdict, events: 0, head, output_bytes: 0 }
    }

    /// Where the home's key could not be had, nothing can be said of any run.
    pub fn without_key(error: &KeyError) -> Self {
        Self::nothing(match error {
            KeyError::Missing { .. } => Verdict::KeyMissing,
            other => Verdict::KeyUnusable { why: other.to_string() },
        })
    }
}

/// Checks one run's directory, and the row that the ledger has of it.
pub fn verify_recorded(
    home: &Home,
    id: &RunId,
    key: &HomeKey,
    row: Option<&LedgerRow>,
    life: LogState,
) -> Report {
    let anchor = row.and_then(|row| row.anchor.clone());
    let anchor =
        anchor.map(|AnchorRow { seq, hash, inode, durable }| Anchor { seq, hash, inode, durable });
    let check_row = |walk: &Walk<'_>| {
        let row = row.filter(|_| life == LogState::Over)?;
        // A removal that was cut short is finished by reconcile.
        let is_tidy = home.trash_is_empty();
        ledger_row::check(row, id, walk, is_tidy.then(|| store::kept(home, id)))
    };
    verify_with(&home.run_dir(id), id, key, anchor.as_ref(), life, check_row)
}

/// Checks one run's directory alone.
pub fn verify_run(
    directory: &Path,
    id: &RunId,
    key: &HomeKey,
    anchor: Option<&Anchor>,
    life: LogState,
) -> Report {
    verify_with(directory, id, key, anchor, life, |_| None)
}

fn verify_with(
    directory: &Path,
    id: &RunId,
    key: &HomeKey,
    anchor: Option<&Anchor>,
    life: LogState,
    check_row: impl FnOnce(&Walk<'_>) -> Option<Verdict>,
) -> Report {
    let log = match file::open(&directory.join(EVENTS)) {
        Ok(log) => log,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let old = run_json::is_format_1(directory);
            return Report::nothing(if old { Verdict::OldFormat } else { Verdict::LogMissing });
        }
        Err(error) => return Report::nothing(Verdict::unreadable(EVENTS, &error)),
    };
    let inode = match log.metadata() {
        Ok(found) => found.ino(),
        Err(error) => return Report::nothing(Verdict::unreadable(EVENTS, &error)),
    };
    let key = key.for_run(id);
    let mut walk = Walk::new(&key, anchor, life, inode);
    let mut output_bytes = 0;
    let verdict = walk
        .whole_log(LineReader::new(log, 0))
        .or_else(|| outputs::check(directory, &walk, &mut output_bytes))
        .or_else(|| run_json::check(directory, &walk))
        .or_else(|| check_row(&walk))
        .unwrap_or(match (anchor, life) {
            (None, LogState::Over) => Verdict::NotAnchored,
            _ => Verdict::Sound,
        });
    Report { verdict, events: walk.seq, head: walk.head(), output_bytes }
}

//! The verdicts about a record, and their texts.

use std::fmt;
use std::io;

use belljar_spec::OutputStream;

/// One for each way in which a record is not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is wrong; of a live run: nothing so far.
    Sound,
    /// The end is missing after event `at`.
    Cut {
        at: u64,
    },
    /// An older copy was put in place; it ends with event `at`.
    Restored {
        at: u64,
    },
    /// A record in the middle is missing.
    Dropped {
        seq: u64,
    },
    /// A record stands later than it should.
    Reordered {
        seq: u64,
    },
    /// A record of this run stands there a second time.
    Replayed {
        seq: u64,
    },
    /// A line that this run did not write, where record `seq` should be.
    Changed {
        line: u64,
        seq: u64,
    },
    /// Bytes after the end that this run did not write.
    Appended {
        line: u64,
    },
    /// The last line is not whole, and the ledger does not know how long the log was.
    Torn {
        line: u64,
    },
    OutputChanged {
        exec: u32,
        stream: OutputStream,
        offset: u64,
    },
    OutputMissing {
        exec: u32,
        stream: OutputStream,
    },
    /// `run.json` differs from the log.
    RecordChanged {
        what: String,
    },
    /// The ledger's row, which listings show, differs from the log.
    LedgerChanged {
        what: String,
    },
    /// Whole, but the ledger does not know how long it was: a cut between two records would not show.
    NotAnchored,
    NoStart,
    NoStop,
    TwoStarts {
        seq: u64,
    },
    TwoStops {
        seq: u64,
    },
    LogMissing,
    KeyMissing,
    KeyUnusable {
        why: String,
    },
    /// Of a belljar that wrote no log.
    OldFormat,
    /// A file is there and could not be read, or is something else than a file.
    Unreadable {
        what: String,
        why: String,
    },
}

impl Verdict {
    pub fn is_sound(&self) -> bool {
        *self == Self::Sound
    }

    pub(super) fn unreadable(what: &str, error: &io::Error) -> Self {
        Self::Unreadable { what: what.to_owned(), why: error.to_string() }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sound => f.write_str("sound"),
            Self::Cut { at } => write!(f, "cut: the events after number {at} are missing"),
            Self::Restored { at } => {
                write!(f, "restored: an older copy, which ends with event {at}, was put in place")
            }
            Self::Dropped { seq } => write!(f, "dropped: event {seq} is missing"),
            Self::Reordered { seq } => write!(f, "reordered: event {seq} is not in its place"),
            Self::Replayed { seq } => write!(f, "replayed: event {seq} stands there twice"),
            Self::Changed { line, seq } => {
                write!(f, "changed: line {line} is not event {seq} as it was written")
            }
            Self::Appended { line } => {
                write!(f, "appended: from line {line} on the run did not write it")
            }
            Self::Torn { line } => write!(f, "torn: line {line}, the last one, is not whole"),
            Self::OutputChanged { exec, stream, offset } => {
                let (name, of) = (stream.name(), of_exec(*exec));
                write!(f, "output changed: {name}{of} differs near byte {offset}")
            }
            Self::OutputMissing { exec, stream } => {
                write!(f, "output missing: the file of {}{} is gone", stream.name(), of_exec(*exec))
            }
            Self::RecordChanged { what } => {
                write!(f, "record changed: run.json differs from the log: {what}")
            }
            Self::LedgerChanged { what } => {
                write!(f, "ledger changed: its row differs from the log: {what}")
            }
            Self::NotAnchored => {
                f.write_str("not anchored: whole, but the ledger does not know where it ended")
            }
            Self::NoStart => f.write_str("no start: the log does not begin with run.start"),
            Self::NoStop => f.write_str("no stop: the run is over and the log has no run.stop"),
            Self::TwoStarts { seq } => write!(f, "two starts: event {seq} is another run.start"),
            Self::TwoStops { seq } => write!(f, "two stops: event {seq} is another run.stop"),
            Self::LogMissing => f.write_str("log missing: there is no events.jsonl"),
            Self::KeyMissing => {
                f.write_str("key missing: without the home's key no record can be checked")
            }
            Self::KeyUnusable { why } => write!(f, "key unusable: {why}"),
            Self::OldFormat => {
                f.write_str("old format: an earlier belljar made this run and kept no log")
            }
            Self::Unreadable { what, why } => write!(f, "unreadable: {what}: {why}"),
        }
    }
}

fn of_exec(exec: u32) -> String {
    if exec == 0 { String::new() } else { format!(" of command {exec}") }
}

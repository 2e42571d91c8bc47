//! The record of a run that can be trusted afterwards: a chained log, the bytes of the output, and
//! the check of both.
//!
//! Written outside the sandbox only. Whoever owns the home can rewrite it all: the key lies there.

mod chain;
mod file;
mod key;
mod log;
mod mask;
mod output;
mod output_reader;
mod read;
mod recorder;
mod verify;

pub use key::{HomeKey, KeyError, RunKey};
pub use log::{EventLog, Head, LogError, LogStep, Recovered};
pub use mask::{Masker, Secrets, looks_secret};
pub use output::{Finished, OutputError, OutputEvent, OutputFile, TailHash};
pub use output_reader::{OutputReader, Piece};
pub use read::{EventReader, Interleaved, OutputPiece, ReadError, interleaved};
pub use recorder::{Importance, Kept, RecordError, Recorder, Stopped};
pub use verify::{Anchor, Life, Report, Verdict, verify_recorded, verify_run};

/// The log's name in a run directory.
pub const EVENTS: &str = "events.jsonl";

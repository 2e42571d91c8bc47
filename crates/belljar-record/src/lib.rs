//! The evidence of runs: the home directory, the chained event log and the output, `run.json`, the ledger, and the
//! verification of all of them.
//!
//! Written outside the sandbox only. Whoever owns the home can rewrite it all: the key lies there.

pub mod ballast;
mod chain;
mod file;
pub mod home;
mod index;
mod key;
pub mod ledger;
mod log;
mod mask;
mod outcome;
mod output;
mod output_reader;
mod read;
mod recorder;
pub mod redact;
pub mod run_json;
pub mod store;
mod upgrade;
mod verify;
pub mod writable_trees;

pub use home::{Home, HomeError};
pub use index::{IndexError, RunIndex};
pub use key::{HomeKey, KeyError, RunKey};
pub use log::{EventLog, Head, LogError, LogStep, Recovered};
pub use mask::{Masker, Secrets, looks_secret};
pub use outcome::{Captured, Outcome};
pub use output::{Finished, OutputError, OutputEvent, OutputFile, TailHash};
pub use output_reader::{OutputReader, Piece};
pub use read::{EventReader, Interleaved, OutputPiece, ReadError, interleaved};
pub use recorder::{Importance, Kept, RecordError, Recorder, Stopped};
pub use run_json::RunRecord;
pub use verify::{Anchor, LogState, Report, Verdict, verify_recorded, verify_run};

/// The log's name in a run directory.
pub const EVENTS: &str = "events.jsonl";

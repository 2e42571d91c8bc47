//! Continues the log of a supervisor that died.

use std::fs::File;
use std::io::{self, Seek};
use std::path::Path;

use belljar_spec::{Event, EventKind};
use serde_json::Value;

use super::{EventLog, Link, LogError, LogStep, TOO_LARGE};
use crate::chain::{self, LineReader, NO_HASH, Next};
use crate::{EVENTS, RunKey, file};

/// More tails of one log than this are a sign of something else.
const MAX_SET_ASIDE: u32 = 100;

/// What was found in a log that was opened again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recovered {
    /// Events that are kept.
    pub events: u64,
    /// Bytes behind them that are no events of this run, and are no longer in the log. What is not just a
    /// torn line is beside it, in `events.jsonl.cut`.
    pub cut_bytes: u64,
    pub has_start: bool,
    pub has_stop: bool,
    pub last_mono_ns: u64,
    /// Empty if there is no event.
    pub last_time: String,
    pub start_data: Option<Value>,
    pub stop_data: Option<Value>,
    /// Milliseconds since 1970.
    pub stop_ms: Option<u64>,
    /// What was read back at the gate.
    pub attestation: Option<Value>,
    /// What the run changed, in full; `run.stop` has it in brief.
    pub workspace: Option<Value>,
}

impl EventLog {
    /// The longest part from the beginning that holds together is kept, the rest is cut off. New
    /// events follow the last one that is kept.
    pub fn reopen(directory: &Path, key: RunKey) -> Result<(Self, Recovered), LogError> {
        Self::open_again(directory, key, Behind::Cut)
    }

    /// The same for a log that ended: nothing may stand behind its last event, and nothing is changed.
    pub(crate) fn reopen_ended(
        directory: &Path,
        key: RunKey,
    ) -> Result<(Self, Recovered), LogError> {
        Self::open_again(directory, key, Behind::Refused)
    }

    fn open_again(
        directory: &Path,
        key: RunKey,
        behind: Behind,
    ) -> Result<(Self, Recovered), LogError> {
        let path = directory.join(EVENTS);
        let io = |step| {
            let path = path.clone();
            move |error| LogError::Io { path, step, error }
        };
        let file = file::open_writable(&path).map_err(io(LogStep::Open))?;
        let reading = file.try_clone().map_err(io(LogStep::Open))?;
        let mut lines = LineReader::new(reading, 0);
        let mut recovered = Recovered::default();
        let mut head = Link { seq: 0, hash: None };
        let mut end = 0;
        let tail = loop {
            let line = match lines.next().map_err(io(LogStep::Read))? {
                Next::Line(line) => line,
                Next::End | Next::Partial => break Tail::Torn,
                Next::TooLong => break Tail::Foreign,
            };
            let Some(event) = chain::check(line, &key) else {
                // Pages reach the disk in any order: a power cut can leave a hole before whole lines.
                break if line.contains(&0) { Tail::Hole } else { Tail::Foreign };
            };
            let Some(hash) = follows(&event, head) else { break Tail::Foreign };
            head = Link { seq: event.seq, hash: Some(hash) };
            end = lines.offset();
            recovered.note(event);
        };
        // Else a crash leaves no whole line that does not hold: it was changed, and it is evidence.
        let is_changed = match tail {
            Tail::Torn => false,
            Tail::Hole => recovered.events == 0,
            Tail::Foreign => {
                recovered.events == 0 || goes_on(&mut lines, &key).map_err(io(LogStep::Read))?
            }
        };
        if is_changed {
            return Err(LogError::NotOurs { path });
        }
        let length = file.metadata().map_err(io(LogStep::Read))?.len();
        if behind == Behind::Refused && (tail != Tail::Torn || length != end) {
            return Err(LogError::NotOurs { path });
        }
        if tail != Tail::Torn {
            set_aside(&file, end, directory).map_err(io(LogStep::Cut))?;
        }
        recovered.cut_bytes = length.saturating_sub(end);
        if recovered.cut_bytes > 0 {
            rustix::fs::ftruncate(&file, end).map_err(|e| io(LogStep::Cut)(e.into()))?;
        }
        let mut log = Self::over(path.clone(), file, key, head, end);
        log.clock_base -= recovered.elapsed();
        if behind == Behind::Cut {
            // On a full disk it fails with the next write, which leaves the way of the last event open.
            let _ = log.reserve.extend(&log.file, end);
        }
        Ok((log, recovered))
    }
}

/// What becomes of bytes behind the last event that holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    Cut,
    Refused,
}

/// What stands behind the last event that holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tail {
    /// Nothing, or the beginning of a line.
    Torn,
    /// A line with zeros in it.
    Hole,
    /// A whole line that this run did not write there.
    Foreign,
}

/// Whether this run wrote something behind a line that it did not write.
fn goes_on(lines: &mut LineReader, key: &RunKey) -> io::Result<bool> {
    loop {
        match lines.next()? {
            Next::Line(line) if chain::check(line, key).is_some() => return Ok(true),
            Next::Line(_) => {}
            Next::End | Next::Partial | Next::TooLong => return Ok(false),
        }
    }
}

/// Keeps what will be cut off, in a file of its own.
fn set_aside(log: &File, from: u64, directory: &Path) -> io::Result<()> {
    let mut rest = log.try_clone()?;
    rest.seek(io::SeekFrom::Start(from))?;
    for number in 0..MAX_SET_ASIDE {
        let suffix = if number == 0 { String::new() } else { format!(".{number}") };
        match file::create(&directory.join(format!("{EVENTS}.cut{suffix}"))) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return io::copy(&mut rest, &mut made?).map(drop),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// The event's hash, if it is the next one.
fn follows(event: &Event, head: Link) -> Option<blake3::Hash> {
    let next = event.seq == head.seq + 1;
    let chained = match head.hash {
        Some(hash) => event.prev == hash.to_hex().as_str(),
        None => event.prev == NO_HASH,
    };
    blake3::Hash::from_hex(&event.hash).ok().filter(|_| next && chained)
}

impl Recovered {
    fn note(&mut self, event: Event) {
        self.events += 1;
        self.last_mono_ns = event.mono_ns;
        let written_ms = chain::unix_millis(&event);
        self.last_time = event.time;
        match event.kind {
            EventKind::RunStart => {
                self.has_start = true;
                self.start_data = Some(event.data);
            }
            EventKind::SandboxAttested => {
                self.attestation = event.data.get("attestation").cloned();
            }
            EventKind::WorkspaceChanged => self.workspace = Some(event.data),
            EventKind::RunStop => {
                self.has_stop = true;
                self.stop_ms = written_ms;
                self.stop_data = Some(event.data);
            }
            _ => {}
        }
    }

    /// Nanoseconds from the first event until now. The host may have been started anew since, so the
    /// time since the last event is the wall clock's; it never goes back.
    fn elapsed(&self) -> i64 {
        let since = self.last_time.parse::<jiff::Timestamp>().ok().map(|last| {
            let past = jiff::Timestamp::now().duration_since(last).as_nanos();
            u64::try_from(past).unwrap_or(0)
        });
        let elapsed = self.last_mono_ns.saturating_add(since.unwrap_or(0)).min(TOO_LARGE - 1);
        i64::try_from(elapsed).unwrap_or_default()
    }
}

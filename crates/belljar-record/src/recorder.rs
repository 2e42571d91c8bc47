//! Writes the record of a run for its supervisor: the log and the output files, and when each is synced next.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_spec::{EventKind, OsText, OutputStream};
use serde::Serialize;
use serde_json::{Value, json};

use super::log::{EventLog, Head, LogError};
use super::mask::Secrets;
use super::output::{OutputError, OutputFile};
use super::verify::Anchor;
use super::{Finished, RunKey};

/// From the first byte to the event that covers it: what comes within shares the event.
const SOON: Duration = Duration::from_millis(50);
/// The same once the log is long: a command that trickles for days must not fill the disk with events.
const LATER: Duration = Duration::from_secs(1);
const LONG_LOG: u64 = 20_000;
/// Files of commands that are over, kept open until the next barrier.
const MAX_UNSYNCED: usize = 32;
/// How many times the limit of one stream all later commands of a run may keep together: a loop of an agent decides how
/// many commands there are.
const LATER_SHARE: u64 = 4;
/// Events whose number the run decides (what its agent prints, what it requests from the network) may take as many bytes as an
/// output stream, and no fewer than these: one budget for the whole run, however many iterations and connections it has.
const MIN_EVENT_BUDGET: u64 = 1 << 20;
/// Beyond it, for what a later run needs to go on: sessions, costs, results.
const EVENT_RESERVE: u64 = 16 << 20;
/// In the data of `run.stop`: stored output may reach further than its events.
pub(super) const INCOMPLETE: &str = "output_incomplete";

/// Why something could not be recorded. The run must not go on.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl RecordError {
    /// The disk, or the user's share of it, is full.
    pub fn is_no_space(&self) -> bool {
        match self {
            Self::Log(error) => error.is_no_space(),
            Self::Output(
                OutputError::Create { error, .. }
                | OutputError::Write { error, .. }
                | OutputError::Sync { error, .. }
                | OutputError::Read { error, .. },
            ) => matches!(
                error.kind(),
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
            ),
        }
    }
}

/// What an event of the run's own making is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Importance {
    Ordinary,
    /// Resuming the run depends on it.
    NeededToResume,
}

/// What became of such an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Yes,
    /// The run has used its budget up.
    Dropped,
}

/// How much of the record is there when `run.stop` is.
#[derive(Debug)]
pub enum Stopped {
    Whole,
    /// Events or output are missing before it; `run.stop` states it too.
    Incomplete {
        why: RecordError,
    },
}

/// An output file that is written.
#[derive(Debug)]
struct Stream {
    file: OutputFile,
    limit: u64,
    /// When what is stored gets its event.
    due: Option<Instant>,
}

#[derive(Debug)]
pub struct Recorder {
    directory: PathBuf,
    log: EventLog,
    secrets: Secrets,
    output_limit: u64,
    /// What later commands can still keep. An open stream has its limit of it, and gives back what it did not need.
    later_room: u64,
    streams: BTreeMap<(u32, OutputStream), Stream>,
    unsynced: Vec<OutputFile>,
    /// Bytes of events whose number the run decides.
    run_events: u64,
    event_budget: u64,
    dropped_events: u64,
    /// When the log's lines go into its file.
    log_due: Option<Instant>,
    /// Where the log stood when the command was let go.
    first_barrier: Option<Head>,
    /// The error that was returned to the caller, who may have continued to the end.
    failed: Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failed {
    Never,
    Once,
}

impl Recorder {
    pub fn create(
        directory: &Path,
        key: RunKey,
        secrets: Secrets,
        output_limit: u64,
    ) -> Result<Self, RecordError> {
        Ok(Self {
            directory: directory.to_owned(),
            log: EventLog::create(directory, key)?,
            secrets,
            output_limit,
            later_room: output_limit.saturating_mul(LATER_SHARE),
            streams: BTreeMap::new(),
            unsynced: Vec::new(),
            run_events: 0,
            event_budget: output_limit.max(MIN_EVENT_BUDGET),
            dropped_events: 0,
            log_due: None,
            first_barrier: None,
            failed: Failed::Never,
        })
    }

    /// In the log's file with the next [`Recorder::tick`], on disk with the next [`Recorder::barrier`].
    pub fn event(&mut self, kind: EventKind, data: &impl Serialize) -> Result<(), RecordError> {
        self.log_due.get_or_insert_with(Instant::now);
        let appended = match self.log.append(kind, data) {
            // An inode of some file systems, for instance.
            Err(LogError::NumberTooLarge { .. }) => self.log.append(kind, &large_as_text(data)),
            appended => appended,
        };
        self.noted(appended)
    }

    /// An event whose number the run decides: past the budget it is dropped and counted.
    pub fn run_event(
        &mut self,
        kind: EventKind,
        data: &Value,
        importance: Importance,
    ) -> Result<Kept, RecordError> {
        let budget = self.event_budget;
        let most = match importance {
            Importance::Ordinary => budget,
            Importance::NeededToResume => budget + EVENT_RESERVE.min(budget),
        };
        let length = data.to_string().len() as u64;
        if self.run_events.saturating_add(length) > most {
            self.dropped_events += 1;
            if self.dropped_events == 1 {
                let data = json!({ "limit": "events", "budget": budget });
                self.event(EventKind::LimitHit, &data)?;
            }
            return Ok(Kept::Dropped);
        }
        self.run_events += length;
        self.event(kind, data)?;
        Ok(Kept::Yes)
    }

    /// Stores bytes that a command put out.
    pub fn output(
        &mut self,
        exec: u32,
        stream: OutputStream,
        bytes: &[u8],
        now: Instant,
    ) -> Result<(), RecordError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let soon = if self.log.count() < LONG_LOG { SOON } else { LATER };
        let open = self.streams.entry((exec, stream)).or_insert_with(|| {
            let limit = match exec {
                0 => self.output_limit,
                _ => self.output_limit.min(self.later_room),
            };
            if exec != 0 {
                self.later_room -= limit;
            }
            let secrets = self.secrets.clone();
            let file = OutputFile::new(&self.directory, exec, stream, secrets, limit);
            Stream { file, limit, due: None }
        });
        let written = open.file.write(bytes);
        let mut appended = Ok(());
        while let Some(event) = open.file.take_full_event() {
            open.due = None; // the next byte begins a new event
            self.log_due.get_or_insert(now);
            appended = appended.and(self.log.append(EventKind::Output, &event));
        }
        if open.file.has_uncovered() {
            open.due.get_or_insert(now + soon);
        }
        self.noted(written)?;
        self.noted(appended)
    }

    /// Events so far are with the system when this returns: a decision before its effect.
    pub fn flush(&mut self) -> Result<(), RecordError> {
        self.log_due = None;
        let flushed = self.log.flush();
        self.noted(flushed)
    }

    /// More values that must not be recorded, from now on.
    pub fn add_secrets(&mut self, values: impl IntoIterator<Item = Vec<u8>>) {
        let before = self.secrets.count();
        self.secrets = self.secrets.and(values);
        if self.secrets.count() > before {
            for stream in self.streams.values_mut() {
                stream.file.cover_too(self.secrets.clone());
            }
        }
    }

    /// Words as they may be recorded.
    pub fn masked(&self, words: &[OsText]) -> Vec<OsText> {
        words.iter().map(|word| self.secrets.mask_word(word)).collect()
    }

    /// What must not be recorded.
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Nothing that had to be recorded is missing.
    pub fn is_sound(&self) -> bool {
        self.failed == Failed::Never
    }

    /// When [`Recorder::tick`] has something to do.
    pub fn next_flush(&self) -> Option<Instant> {
        self.streams.values().filter_map(|stream| stream.due).chain(self.log_due).min()
    }

    /// Events that are due get into the log, and the log into its file.
    pub fn tick(&mut self, now: Instant) -> Result<(), RecordError> {
        let mut appended = Ok(());
        for stream in self.streams.values_mut().filter(|s| s.due.is_some_and(|due| due <= now)) {
            appended = appended.and(cover(&mut self.log, stream));
            self.log_due.get_or_insert(now);
        }
        self.noted(appended)?;
        if self.log_due.is_some_and(|due| due <= now) {
            self.log_due = None;
            let flushed = self.log.flush();
            self.noted(flushed)?;
        }
        Ok(())
    }

    /// A command is over and its streams are read to their ends. Its `exec.exit` comes after this.
    pub fn end_exec(&mut self, exec: u32) -> Result<(), RecordError> {
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let Some(open) = self.streams.remove(&(exec, stream)) else { continue };
            let ended = self.end_stream(exec, stream, open);
            self.noted(ended)?;
        }
        Ok(())
    }

    fn end_stream(
        &mut self,
        exec: u32,
        stream: OutputStream,
        mut open: Stream,
    ) -> Result<(), RecordError> {
        let finished = open.file.finish();
        cover(&mut self.log, &mut open)?;
        let Finished { total, lost, masked, tail } = finished?;
        self.log_due.get_or_insert_with(Instant::now);
        if exec != 0 {
            self.later_room += open.limit.saturating_sub(total - lost);
        }
        if lost > 0 {
            let data = json!({
                "limit": "output", "exec": exec, "stream": stream, "total": total,
                "kept": total - lost, "lost": lost, "tail": tail,
            });
            self.log.append(EventKind::LimitHit, &data)?;
        }
        if masked > 0 {
            let data = json!({ "exec": exec, "stream": stream, "count": masked });
            self.log.append(EventKind::SecretMasked, &data)?;
        }
        self.unsynced.push(open.file);
        if self.unsynced.len() > MAX_UNSYNCED {
            self.unsynced.remove(0).sync()?;
        }
        Ok(())
    }

    /// Everything so far is on the disk: output first, so that no event speaks of bytes that are not.
    pub fn barrier(&mut self) -> Result<(), RecordError> {
        let done = self.bring_to_disk();
        self.noted(done)?;
        self.first_barrier.get_or_insert_with(|| self.log.head());
        Ok(())
    }

    /// The output so far is on the disk, and the events are with the system. Asked before the end is
    /// written, which must not report a success whose record may be lost.
    pub fn settle(&mut self) -> Result<(), RecordError> {
        let done = self.bring_output_to_disk();
        self.noted(done)?;
        self.flush()
    }

    fn bring_to_disk(&mut self) -> Result<(), RecordError> {
        self.bring_output_to_disk()?;
        self.log_due = None;
        Ok(self.log.sync()?)
    }

    fn bring_output_to_disk(&mut self) -> Result<(), RecordError> {
        for stream in self.streams.values_mut() {
            cover(&mut self.log, stream)?;
            stream.file.sync()?;
        }
        for file in &mut self.unsynced {
            file.sync()?;
        }
        self.unsynced.clear();
        Ok(())
    }

    /// Ends what is still open and writes `run.stop`, which is on the disk when this returns. Where
    /// the disk is full, the room that was kept for it is used. If something before it is missing,
    /// `run.stop` gets `"output_incomplete": true`.
    pub fn stop(&mut self, data: &impl Serialize) -> Result<Stopped, RecordError> {
        // Whatever number is in it: a run has to have an end.
        let mut data = large_as_text(data);
        let failed_before = self.failed == Failed::Once;
        let mut first = None;
        let execs: Vec<u32> = self.streams.keys().map(|(exec, _)| *exec).collect();
        for exec in execs {
            // Both streams, even if the first fails: the call takes them out one after the other.
            while self.streams.keys().any(|(open, _)| *open == exec) {
                first = first.or(self.end_exec(exec).err());
            }
        }
        if self.dropped_events > 0 && first.is_none() {
            let data = json!({ "limit": "events", "dropped": self.dropped_events });
            first = self.event(EventKind::LimitHit, &data).err();
        }
        // The events are written before the end is, since a full disk changes what the end says. One sync, the
        // one after the end, brings both to the disk.
        let events = self.bring_output_to_disk().and_then(|()| Ok(self.log.flush()?));
        self.log_due = None;
        let first = first.or(events.err());
        if (first.is_some() || failed_before)
            && let Value::Object(fields) = &mut data
        {
            fields.insert(INCOMPLETE.to_owned(), Value::Bool(true));
        }
        let written = match &first {
            Some(RecordError::Log(_)) => self.log.append_last(EventKind::RunStop, &data),
            _ => self.log.append(EventKind::RunStop, &data).and_then(|()| self.log.sync()).or_else(
                |error| match error.is_no_space() {
                    true => self.log.append_last(EventKind::RunStop, &data),
                    false => Err(error),
                },
            ),
        };
        match (written, first) {
            (Ok(()), None) => Ok(Stopped::Whole),
            (Ok(()), Some(why)) => Ok(Stopped::Incomplete { why }),
            (Err(error), _) => Err(error.into()),
        }
    }

    /// When the last event was written: milliseconds since 1970.
    pub fn last_ms(&self) -> u64 {
        self.log.last_ms()
    }

    /// For the ledger: how far the log reaches, and where it was known to be on disk before. `None` if the
    /// log's file cannot be looked at.
    pub fn anchor(&self) -> Option<Anchor> {
        let Head { seq, hash } = self.log.head();
        let durable = self.first_barrier.iter().map(|head| (head.seq, head.hash.clone())).collect();
        Some(Anchor { seq, hash, inode: self.log.inode().ok()?, durable })
    }

    /// For the ledger. Covers events that are not on the disk yet: ask after a barrier.
    pub fn head(&self) -> Head {
        self.log.head()
    }

    /// Of the log's file, for the ledger.
    pub fn inode(&self) -> Result<u64, RecordError> {
        Ok(self.log.inode()?)
    }

    fn noted<E: Into<RecordError>>(&mut self, done: Result<(), E>) -> Result<(), RecordError> {
        done.map_err(|error| {
            self.failed = Failed::Once;
            error.into()
        })
    }
}

/// Integers that not every reader of JSON can hold, as text.
pub(super) fn large_as_text(data: &impl Serialize) -> Value {
    fn convert(value: &mut Value) {
        match value {
            Value::Number(number) if !number.is_f64() => {
                let small = number.as_i64().is_some_and(|n| n.unsigned_abs() < 1 << 53);
                if !small {
                    *value = Value::String(number.to_string());
                }
            }
            Value::Array(items) => items.iter_mut().for_each(convert),
            Value::Object(fields) => fields.values_mut().for_each(convert),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(data).unwrap_or_default();
    convert(&mut value);
    value
}

/// Events for everything that is stored.
fn cover(log: &mut EventLog, stream: &mut Stream) -> Result<(), LogError> {
    stream.due = None;
    while let Some(event) = stream.file.take_event() {
        log.append(EventKind::Output, &event)?;
    }
    Ok(())
}

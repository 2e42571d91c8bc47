//! `events.jsonl`: a chain of signed lines, with room kept for the last one.
//!
//! A write or a sync that failed is not tried again: what the disk then holds is unknown, and a second
//! success would hide it. One line may still follow when the disk was full: `run.stop`.

mod error;
mod number;
mod recover;
mod reserve;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use belljar_spec::EventKind;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::chain::{self, MAX_LINE, NO_HASH};
use super::{EVENTS, RunKey, file};
use error::no_space;
use number::{TOO_LARGE, too_large_integer};
use reserve::Reserve;

pub use error::{LogError, LogStep};
pub use recover::Recovered;

/// Held in memory at most, but for one line.
const BUFFER: usize = 64 << 10;

/// The end of the chain. The first event has `seq` 1; before it, `seq` is 0 and the hash all zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub seq: u64,
    pub hash: String,
}

/// The first failure: every later one repeats it.
#[derive(Clone, Copy, Debug)]
struct LogFault {
    step: LogStep,
    errno: Errno,
}

/// A line that waits in memory.
#[derive(Debug)]
struct Waiting {
    /// In the buffer.
    end: usize,
    kind: EventKind,
    hash: blake3::Hash,
}

/// The place in the chain.
#[derive(Clone, Copy, Debug)]
struct Link {
    seq: u64,
    hash: Option<blake3::Hash>,
}

impl Link {
    fn text(self) -> String {
        self.hash.map_or_else(|| NO_HASH.to_owned(), |hash| hash.to_hex().to_string())
    }
}

/// The writer. There is one for each run.
#[derive(Debug)]
pub struct EventLog {
    path: PathBuf,
    file: File,
    key: RunKey,
    /// Lines that are not in the file yet.
    buffer: Vec<u8>,
    waiting: Vec<Waiting>,
    /// Of everything that was appended.
    head: Link,
    /// Of what is in the file.
    written: Link,
    /// The file's length, as whole lines.
    end: u64,
    reserve: Reserve,
    fault: Option<LogFault>,
    closed: bool,
    dropped: u64,
    /// When the last event was appended: milliseconds since 1970, as its line has it.
    last_ms: u64,
    /// What the monotonic clock showed when the log began: a host may be up for longer than 2^53 ns.
    /// Negative if that was before the host was started anew.
    clock_base: i64,
}

impl EventLog {
    /// A new log. Its name is on disk with the first [`EventLog::sync`]: Linux file systems bring a new
    /// file's name along with its content.
    pub fn create(directory: &Path, key: RunKey) -> Result<Self, LogError> {
        let path = directory.join(EVENTS);
        let file = file::create(&path).map_err(|error| LogError::Io {
            path: path.clone(),
            step: LogStep::Open,
            error,
        })?;
        let start = Link { seq: 0, hash: None };
        let mut log = Self::over(path, file, key, start, 0);
        log.reserve.extend(&log.file, 0).map_err(|errno| log.io(LogStep::Reserve, errno))?;
        Ok(log)
    }

    fn over(path: PathBuf, file: File, key: RunKey, head: Link, end: u64) -> Self {
        Self {
            path,
            file,
            key,
            buffer: Vec::new(),
            waiting: Vec::new(),
            head,
            written: head,
            end,
            reserve: Reserve::new(),
            fault: None,
            closed: false,
            dropped: 0,
            last_ms: 0,
            clock_base: monotonic(),
        }
    }

    /// Into memory; written when enough has come together.
    pub fn append(&mut self, kind: EventKind, data: &impl Serialize) -> Result<(), LogError> {
        self.usable()?;
        self.push(kind, data)?;
        if self.buffer.len() > BUFFER { self.flush() } else { Ok(()) }
    }

    /// Everything appended is in the file: others can read it.
    pub fn flush(&mut self) -> Result<(), LogError> {
        self.usable()?;
        if self.buffer.is_empty() {
            return Ok(());
        }
        let end = self.end + self.buffer.len() as u64;
        if let Err(errno) = self.reserve.extend(&self.file, end) {
            return Err(self.fail(LogStep::Reserve, errno));
        }
        self.write_out()
    }

    /// Everything appended is on the disk.
    pub fn sync(&mut self) -> Result<(), LogError> {
        self.flush()?;
        self.sync_data()
    }

    /// The end of the run, after the log failed because the disk is full. Uses the room that was kept;
    /// what had not been written is written too as far as it fits, oldest first. Once only, and never
    /// after a failed sync: what the disk holds is then not known.
    pub fn append_last(&mut self, kind: EventKind, data: &impl Serialize) -> Result<(), LogError> {
        if self.closed {
            return Err(LogError::AfterTheLast { path: self.path.clone() });
        }
        if let Some(fault) = self.fault
            && !(no_space(fault.errno) && matches!(fault.step, LogStep::Reserve | LogStep::Write))
        {
            return Err(self.io(fault.step, fault.errno));
        }
        self.closed = true;
        // A `run.stop` that was tried in vain is not written besides this one.
        let tried = self.waiting.iter().position(|line| line.kind == EventKind::RunStop);
        self.keep_waiting(tried.unwrap_or(self.waiting.len()));
        self.push(kind, data)?;
        let room = self.reserve.room(self.end);
        if self.buffer.len() as u64 > room {
            let earlier = &self.waiting[..self.waiting.len() - 1];
            let last = self.buffer.len() - earlier.last().map_or(0, |line| line.end);
            // Written anew, its clock may have a digit more.
            let fits = |line: &&Waiting| (line.end + last + 16) as u64 <= room;
            let fit = earlier.iter().take_while(fits).count();
            self.dropped += (earlier.len() - fit) as u64;
            self.keep_waiting(fit);
            self.push(kind, data)?;
        }
        self.fault = None;
        // Over a torn line, not after cutting it: a cut gives the kept room back to a full disk.
        self.write_out()?;
        let length = self.file.metadata().map_or(u64::MAX, |found| found.len());
        if length > self.end
            && let Err(errno) = rustix::fs::ftruncate(&self.file, self.end)
        {
            return Err(self.fail(LogStep::Cut, errno));
        }
        self.sync_data()
    }

    /// Of everything that was appended, written or not.
    pub fn head(&self) -> Head {
        Head { seq: self.head.seq, hash: self.head.text() }
    }

    /// When the last event was appended: milliseconds since 1970, exactly as its line has it.
    pub fn last_ms(&self) -> u64 {
        self.last_ms
    }

    /// How many events were appended.
    pub fn count(&self) -> u64 {
        self.head.seq
    }

    /// How many events a full disk took.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Of the file: the ledger keeps it, so that a file put in its place is found.
    pub fn inode(&self) -> Result<u64, LogError> {
        let stat = rustix::fs::fstat(&self.file).map_err(|errno| self.io(LogStep::Read, errno))?;
        Ok(stat.st_ino)
    }

    fn usable(&self) -> Result<(), LogError> {
        if let Some(fault) = self.fault {
            return Err(self.io(fault.step, fault.errno));
        }
        if self.closed {
            return Err(LogError::AfterTheLast { path: self.path.clone() });
        }
        Ok(())
    }

    fn push(&mut self, kind: EventKind, data: &impl Serialize) -> Result<(), LogError> {
        let from = self.buffer.len();
        match self.push_line(kind, data) {
            Ok(hash) => {
                self.head = Link { seq: self.head.seq + 1, hash: Some(hash) };
                self.waiting.push(Waiting { end: self.buffer.len(), kind, hash });
                Ok(())
            }
            Err(error) => {
                self.buffer.truncate(from);
                Err(error)
            }
        }
    }

    fn push_line(
        &mut self,
        kind: EventKind,
        data: &impl Serialize,
    ) -> Result<blake3::Hash, LogError> {
        let bad = |error| LogError::Data { path: self.path.clone(), error };
        let (from, seq, prev) = (self.buffer.len(), self.head.seq + 1, self.head.text());
        let now = jiff::Timestamp::now().as_millisecond();
        let time = jiff::Timestamp::from_millisecond(now).unwrap_or_default();
        let time = format!("{time:.3}");
        self.last_ms = u64::try_from(now).unwrap_or_default();
        let mono = u64::try_from(monotonic() - self.clock_base).unwrap_or(0).min(TOO_LARGE - 1);
        let start = format!(r#"{{"seq":{seq},"time":"{time}","mono_ns":{mono},"kind":"#);
        self.buffer.extend_from_slice(start.as_bytes());
        serde_json::to_writer(&mut self.buffer, &kind).map_err(bad)?;
        self.buffer.extend_from_slice(br#","data":"#);
        let data_from = self.buffer.len();
        serde_json::to_writer(&mut self.buffer, data).map_err(bad)?;
        if let Some(digits) = too_large_integer(&self.buffer[data_from..]) {
            return Err(LogError::NumberTooLarge { path: self.path.clone(), digits });
        }
        self.buffer.extend_from_slice(br#","prev":""#);
        self.buffer.extend_from_slice(prev.as_bytes());
        self.buffer.push(b'"');
        let hash = chain::seal(&mut self.buffer, from, &self.key);
        let length = self.buffer.len() - from;
        if length > MAX_LINE {
            return Err(LogError::TooLong { path: self.path.clone(), length });
        }
        Ok(hash)
    }

    /// Takes back what was appended after the first `count` of the waiting lines.
    fn keep_waiting(&mut self, count: usize) {
        self.waiting.truncate(count);
        self.buffer.truncate(self.waiting.last().map_or(0, |line| line.end));
        self.head = Link {
            seq: self.written.seq + count as u64,
            hash: self.waiting.last().map_or(self.written.hash, |line| Some(line.hash)),
        };
    }

    fn write_out(&mut self) -> Result<(), LogError> {
        let mut written = 0;
        let failed = loop {
            if written == self.buffer.len() {
                break None;
            }
            match self.file.write_at(&self.buffer[written..], self.end + written as u64) {
                Ok(0) => break Some(Errno::IO),
                Ok(length) => written += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Some(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            }
        };
        let whole = self.waiting.partition_point(|line| line.end <= written);
        if let Some(last) = whole.checked_sub(1).and_then(|last| self.waiting.get(last)) {
            let (end, hash) = (last.end, last.hash);
            self.written = Link { seq: self.written.seq + whole as u64, hash: Some(hash) };
            self.end += end as u64;
            self.buffer.drain(..end);
            self.waiting.drain(..whole);
            for line in &mut self.waiting {
                line.end -= end;
            }
        }
        failed.map_or(Ok(()), |errno| Err(self.fail(LogStep::Write, errno)))
    }

    fn sync_data(&mut self) -> Result<(), LogError> {
        rustix::fs::fdatasync(&self.file).map_err(|errno| self.fail(LogStep::Sync, errno))
    }

    fn fail(&mut self, step: LogStep, errno: Errno) -> LogError {
        self.fault = Some(LogFault { step, errno });
        self.io(step, errno)
    }

    fn io(&self, step: LogStep, errno: Errno) -> LogError {
        LogError::Io { path: self.path.clone(), step, error: errno.into() }
    }
}

fn monotonic() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

#[cfg(test)]
mod tests;

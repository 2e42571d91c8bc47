//! Reads the log line by line, until something is wrong.

use std::collections::BTreeMap;

use belljar_spec::{Event, EventKind, OutputStream};
use serde::Deserialize;
use serde_json::Value;

use super::{Anchor, LogState, Verdict};
use crate::chain::{self, LineReader, NO_HASH, Next};
use crate::log::Head;
use crate::output::{OutputEvent, TailHash};
use crate::recorder::INCOMPLETE;
use crate::{EVENTS, RunKey};

/// Enough of a hash to distinguish a copy from another record.
type Mark = [u8; 16];

/// How the file ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Whole,
    Torn,
}

/// One stream, as it is in the log.
#[derive(Debug, Default)]
pub(super) struct LoggedStream {
    pub(super) limit: u64,
    pub(super) total: u64,
    pub(super) tail: Option<TailHash>,
}

/// Whether every stored byte must have its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coverage {
    Whole,
    /// Output is stored before its event is written: the run is live, or its supervisor died, or its
    /// disk was full.
    Behind,
}

pub(super) struct Walk<'a> {
    pub(super) key: &'a RunKey,
    anchor: Option<&'a Anchor>,
    pub(super) life: LogState,
    inode: u64,
    seen: Vec<Mark>,
    /// Of the last event that fits.
    pub(super) seq: u64,
    hash: String,
    /// The end of that event's line.
    pub(super) end: u64,
    pub(super) start: Option<Value>,
    pub(super) stop: Option<Value>,
    /// When `run.stop` was written: milliseconds since 1970.
    pub(super) stop_ms: Option<u64>,
    /// What was said of the run's trees before its end.
    pub(super) workspace: Option<Value>,
    /// What was read back at the gate.
    pub(super) attestation: Option<Value>,
    pub(super) streams: BTreeMap<(u32, OutputStream), LoggedStream>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        key: &'a RunKey,
        anchor: Option<&'a Anchor>,
        life: LogState,
        inode: u64,
    ) -> Self {
        Self {
            key,
            anchor,
            life,
            inode,
            seen: Vec::new(),
            seq: 0,
            hash: NO_HASH.to_owned(),
            end: 0,
            start: None,
            stop: None,
            stop_ms: None,
            workspace: None,
            attestation: None,
            streams: BTreeMap::new(),
        }
    }

    pub(super) fn head(&self) -> Head {
        Head { seq: self.seq, hash: self.hash.clone() }
    }

    pub(super) fn coverage(&self) -> Coverage {
        let Some(stop) = &self.stop else { return Coverage::Behind };
        let lost = |data: &Value| data.get("reason").is_some_and(|reason| reason == "lost");
        let behind = stop.get(INCOMPLETE).is_some_and(|flag| flag == true)
            || lost(stop)
            || stop.get("outcome").is_some_and(lost);
        if behind || self.life == LogState::Live { Coverage::Behind } else { Coverage::Whole }
    }

    /// What is wrong with the log, if something is.
    pub(super) fn whole_log(&mut self, mut lines: LineReader) -> Option<Verdict> {
        let ending = loop {
            let line = self.seq + 1;
            match lines.next() {
                Err(error) => return Some(Verdict::unreadable(EVENTS, &error)),
                Ok(Next::End) => break Ending::Whole,
                Ok(Next::Partial) => break Ending::Torn,
                Ok(Next::TooLong) => return Some(self.foreign(line)),
                Ok(Next::Line(bytes)) => match chain::check(bytes, self.key) {
                    None => return Some(self.foreign(line)),
                    Some(event) if event.seq == line && event.prev == self.hash => {
                        self.end = lines.offset();
                        if let Some(verdict) = self.accept(event) {
                            return Some(verdict);
                        }
                    }
                    Some(event) => return Some(self.misplaced(&event, lines)),
                },
            }
        };
        self.too_short(ending).or_else(|| self.bad_ending(ending)).or_else(|| self.no_ends())
    }

    fn accept(&mut self, event: Event) -> Option<Verdict> {
        let seq = event.seq;
        let known = self.anchor.into_iter().flat_map(|anchor| {
            let last = (anchor.seq, &anchor.hash);
            anchor.durable.iter().map(|(seq, hash)| (*seq, hash)).chain([last])
        });
        // Signed, and yet not what the ledger saw here: it was rewritten with the key.
        if known.into_iter().any(|(at, hash)| at == seq && *hash != event.hash) {
            return Some(Verdict::Changed { line: seq, seq });
        }
        match (event.kind, seq) {
            (EventKind::RunStart, 1) => self.start = Some(event.data),
            (EventKind::RunStart, _) => return Some(Verdict::TwoStarts { seq }),
            (_, 1) => return Some(Verdict::NoStart),
            (EventKind::RunStop, _) if self.stop.is_some() => {
                return Some(Verdict::TwoStops { seq });
            }
            (EventKind::RunStop, _) => {
                self.stop_ms = chain::unix_millis(&event);
                self.stop = Some(event.data);
            }
            (EventKind::WorkspaceChanged, _) => self.workspace = Some(event.data),
            (EventKind::SandboxAttested, _) => {
                self.attestation = event.data.get("attestation").cloned();
            }
            (EventKind::Output, _) => {
                if let Some(verdict) = self.note_output(event.data) {
                    return Some(verdict);
                }
            }
            (EventKind::LimitHit, _) => self.note_loss(event.data),
            _ => {}
        }
        self.seen.push(mark(&event.hash));
        self.seq = seq;
        self.hash = event.hash;
        None
    }

    fn note_output(&mut self, data: Value) -> Option<Verdict> {
        // Signed data of another shape would be a newer belljar's.
        let output: OutputEvent = serde_json::from_value(data).ok()?;
        let (exec, stream, offset) = (output.exec, output.stream, output.offset);
        let logged = self.streams.entry((exec, stream)).or_default();
        if logged.total != offset {
            return Some(Verdict::OutputChanged { exec, stream, offset: logged.total });
        }
        logged.limit = output.limit;
        logged.total = offset.saturating_add(output.length);
        None
    }

    fn note_loss(&mut self, data: Value) {
        #[derive(Deserialize)]
        struct Loss {
            exec: u32,
            stream: OutputStream,
            tail: Option<TailHash>,
        }
        // Other limits have no stream.
        if let Ok(loss) = serde_json::from_value::<Loss>(data) {
            self.streams.entry((loss.exec, loss.stream)).or_default().tail = loss.tail;
        }
    }

    /// A line that the key did not sign.
    fn foreign(&self, line: u64) -> Verdict {
        let over = match self.anchor {
            Some(anchor) => self.seq >= anchor.seq,
            None => self.stop.is_some(),
        };
        if over { Verdict::Appended { line } } else { Verdict::Changed { line, seq: line } }
    }

    /// A line of this run where another one of it belongs.
    fn misplaced(&self, event: &Event, mut rest: LineReader) -> Verdict {
        let expected = self.seq + 1;
        if event.seq <= self.seq {
            let at = event.seq.checked_sub(1).and_then(|at| usize::try_from(at).ok());
            let seen = at.and_then(|at| self.seen.get(at));
            return match seen {
                Some(seen) if *seen == mark(&event.hash) => Verdict::Replayed { seq: event.seq },
                _ => Verdict::Changed { line: expected, seq: expected },
            };
        }
        if event.seq == expected {
            return Verdict::Changed { line: expected, seq: expected };
        }
        // Does the one that belongs here come later?
        while let Ok(Next::Line(bytes)) = rest.next() {
            if chain::check(bytes, self.key).is_some_and(|later| later.seq == expected) {
                return Verdict::Reordered { seq: expected };
            }
        }
        Verdict::Dropped { seq: expected }
    }

    fn too_short(&self, ending: Ending) -> Option<Verdict> {
        let anchor = self.anchor.filter(|anchor| self.seq < anchor.seq)?;
        let at = self.seq;
        let as_it_was = ending == Ending::Whole
            && anchor.durable.iter().any(|(seq, hash)| *seq == at && *hash == self.hash);
        let restored = self.inode != anchor.inode || as_it_was;
        Some(if restored { Verdict::Restored { at } } else { Verdict::Cut { at } })
    }

    fn bad_ending(&self, ending: Ending) -> Option<Verdict> {
        if ending == Ending::Whole || self.life == LogState::Live {
            return None;
        }
        let line = self.seq + 1;
        let ended = self.anchor.is_some() || self.stop.is_some();
        Some(if ended { Verdict::Appended { line } } else { Verdict::Torn { line } })
    }

    fn no_ends(&self) -> Option<Verdict> {
        match self.life {
            LogState::Live => None,
            LogState::Over if self.seq == 0 => Some(Verdict::NoStart),
            LogState::Over if self.stop.is_none() => Some(Verdict::NoStop),
            LogState::Over => None,
        }
    }
}

fn mark(hash: &str) -> Mark {
    let mut mark = Mark::default();
    let hash = blake3::Hash::from_hex(hash).unwrap_or(blake3::Hash::from_bytes([0; 32]));
    mark.copy_from_slice(&hash.as_bytes()[..16]);
    mark
}

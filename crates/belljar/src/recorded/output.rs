//! Reads recorded output back, piece by piece, in the order in which it was recorded.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use belljar_record::{
    EventReader, OutputError, OutputEvent, OutputPiece, OutputReader, Piece, ReadError,
};
use belljar_spec::{EventKind, OutputStream};

/// Files that are open at once: commands run one after the other, so a few are enough.
const MAX_OPEN: usize = 8;
const READ_BUFFER: usize = 64 << 10;

/// A stream of a command.
pub type Key = (u32, OutputStream);

/// Whether the bytes that `cp` transfers are shown, which are not a command's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    LeftOut,
    Shown,
}

/// Pieces of all streams, in the order of the record.
#[derive(Debug)]
pub struct Pieces {
    events: EventReader,
    copies: Copies,
    /// Copies that are running.
    copying: BTreeSet<u64>,
}

impl Pieces {
    pub fn open(directory: &Path, copies: Copies) -> Result<Self, ReadError> {
        Ok(Self { events: EventReader::open(directory)?, copies, copying: BTreeSet::new() })
    }

    /// `None` if there is no more so far.
    #[allow(clippy::should_implement_trait, reason = "the record may grow after the end")]
    pub fn next(&mut self) -> Result<Option<OutputPiece>, ReadError> {
        while let Some(event) = self.events.next()? {
            let exec = event.data.get("exec").and_then(serde_json::Value::as_u64);
            let is_copy =
                ["copy_out", "copy_in", "list"].iter().any(|key| event.data.get(key).is_some());
            match (event.kind, exec) {
                (EventKind::ExecStart, Some(exec)) if is_copy && self.copies == Copies::LeftOut => {
                    self.copying.insert(exec);
                }
                (EventKind::ExecExit, Some(exec)) => drop(self.copying.remove(&exec)),
                (EventKind::Output, Some(exec)) if !self.copying.contains(&exec) => {
                    // An invalid event is skipped here; `verify` reports it.
                    let Ok(output) = serde_json::from_value::<OutputEvent>(event.data) else {
                        continue;
                    };
                    let OutputEvent { exec, stream, offset, length, limit, .. } = output;
                    let time = event.time;
                    return Ok(Some(OutputPiece { time, exec, stream, offset, length, limit }));
                }
                _ => {}
            }
        }
        Ok(None)
    }
}

/// The content of a piece.
#[derive(Debug)]
pub enum Content<'a> {
    Bytes(&'a [u8]),
    /// This many bytes were not recorded.
    Lost(u64),
}

/// Whether to continue reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Continue,
    Stop,
}

/// Reads the bytes of pieces.
#[derive(Debug)]
pub struct Outputs {
    directory: PathBuf,
    /// The length of each stream, as far as the log is known.
    totals: HashMap<Key, u64>,
    open: Vec<(Key, OutputReader)>,
    buffer: Vec<u8>,
}

impl Outputs {
    pub fn new(directory: PathBuf) -> Self {
        let buffer = vec![0; READ_BUFFER];
        Self { directory, totals: HashMap::new(), open: Vec::new(), buffer }
    }

    /// Notes a piece before anything is read: which bytes of a stream are kept depends on its length.
    pub fn learn(&mut self, piece: &OutputPiece) {
        let total = self.totals.entry((piece.exec, piece.stream)).or_default();
        *total = (*total).max(piece.offset.saturating_add(piece.length));
    }

    pub fn read(
        &mut self,
        piece: &OutputPiece,
        take: &mut dyn FnMut(Content<'_>) -> Flow,
    ) -> Result<Flow, OutputError> {
        self.learn(piece);
        let key = (piece.exec, piece.stream);
        let at = self.reader(key, piece.limit)?;
        let reader = &self.open[at].1;
        let end = piece.offset.saturating_add(piece.length);
        let mut offset = piece.offset;
        while offset < end {
            let most = usize::try_from(end - offset).unwrap_or(usize::MAX).min(READ_BUFFER);
            let flow = match reader.read_at(offset, &mut self.buffer[..most])? {
                Piece::Bytes(count) => {
                    offset += count as u64;
                    take(Content::Bytes(&self.buffer[..count]))
                }
                Piece::Lost { until } => {
                    let until = until.min(end);
                    let lost = until.saturating_sub(offset);
                    offset = until.max(offset + 1);
                    take(Content::Lost(lost))
                }
                Piece::End => break,
            };
            if flow == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
        Ok(Flow::Continue)
    }

    /// The index of an open reader that knows the stream's length.
    fn reader(&mut self, key: Key, limit: u64) -> Result<usize, OutputError> {
        let total = self.totals.get(&key).copied().unwrap_or_default();
        if let Some(at) = self.open.iter().position(|(open, _)| *open == key) {
            self.open[at].1.grow(total)?;
            return Ok(at);
        }
        let reader = OutputReader::open(&self.directory, key.0, key.1, total, limit)?;
        if self.open.len() == MAX_OPEN {
            self.open.remove(0);
        }
        self.open.push((key, reader));
        Ok(self.open.len() - 1)
    }
}

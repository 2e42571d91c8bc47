//! Compares the bytes of the output with the hashes in the log.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;

use belljar_spec::{EventKind, OutputStream};

use super::Verdict;
use super::walk::{Coverage, LoggedStream, Walk};
use crate::chain::{self, LineReader, Next};
use crate::output::{self, Layout, OutputEvent, TailHash, hash_range};
use crate::{EVENTS, file};

/// Output files that are open at once.
const MAX_OPEN: usize = 32;

/// One stream's file.
struct StoredOutput {
    file: File,
    layout: Layout,
    /// Where chunks behind the head are known to lie: from here on, and below `half`.
    ring_from: u64,
}

struct Check<'a> {
    directory: &'a Path,
    walk: &'a Walk<'a>,
    coverage: Coverage,
    open: HashMap<(u32, OutputStream), StoredOutput>,
}

/// Compares everything that is kept. The log is read once more, up to where it was found good: how
/// long a stream became, and so what of it is left, is known only at its end.
pub(super) fn check(directory: &Path, walk: &Walk<'_>, bytes: &mut u64) -> Option<Verdict> {
    let coverage = walk.coverage();
    let mut check = Check { directory, walk, coverage, open: HashMap::new() };
    check.all(bytes).err()
}

impl Check<'_> {
    fn all(&mut self, bytes: &mut u64) -> Result<(), Verdict> {
        let walk = self.walk;
        for ((exec, stream), logged) in &walk.streams {
            let length = self.length(*exec, *stream, logged)?;
            self.tail(*exec, *stream, logged, length, bytes)?;
        }
        if self.coverage == Coverage::Whole {
            self.strangers()?;
        }
        if !walk.streams.is_empty() {
            self.chunks(bytes)?;
        }
        Ok(())
    }

    fn chunks(&mut self, bytes: &mut u64) -> Result<(), Verdict> {
        let log = file::open(&self.directory.join(EVENTS));
        let mut lines = LineReader::new(log.map_err(|e| Verdict::unreadable(EVENTS, &e))?, 0);
        let mut line = 0;
        while lines.offset() < self.walk.end {
            line += 1;
            let next = lines.next().map_err(|e| Verdict::unreadable(EVENTS, &e))?;
            let event = match next {
                Next::Line(bytes) => chain::check(bytes, self.walk.key),
                _ => None,
            };
            // It was good a moment ago.
            let event = event.ok_or(Verdict::Changed { line, seq: line })?;
            if event.kind == EventKind::Output
                && let Ok(output) = serde_json::from_value::<OutputEvent>(event.data)
            {
                self.chunk(&output, bytes)?;
            }
        }
        Ok(())
    }

    fn chunk(&mut self, event: &OutputEvent, bytes: &mut u64) -> Result<(), Verdict> {
        let (exec, stream) = (event.exec, event.stream);
        let Some(stored) = self.stored(exec, stream)? else { return Ok(()) };
        let in_head = event.offset < stored.layout.half;
        if !in_head && event.offset < stored.ring_from {
            return Ok(()); // not all of it is left
        }
        let part =
            TailHash { offset: event.offset, length: event.length, hash: event.hash.clone() };
        compare(stored, exec, stream, &part, bytes)
    }

    fn tail(
        &mut self,
        exec: u32,
        stream: OutputStream,
        logged: &LoggedStream,
        length: u64,
        bytes: &mut u64,
    ) -> Result<(), Verdict> {
        let layout = Layout::new(logged.limit);
        if self.coverage == Coverage::Behind || layout.lost(logged.total) == 0 || length == 0 {
            return Ok(());
        }
        let offset = layout.tail_from(logged.total);
        let part = logged.tail.as_ref().filter(|tail| tail.offset == offset);
        let part = part.ok_or(Verdict::OutputChanged { exec, stream, offset })?;
        match self.stored(exec, stream)? {
            Some(stored) => compare(stored, exec, stream, part, bytes),
            None => Ok(()),
        }
    }

    /// The file has the length that it must have. Gives that length.
    fn length(
        &mut self,
        exec: u32,
        stream: OutputStream,
        logged: &LoggedStream,
    ) -> Result<u64, Verdict> {
        let expected = Layout::new(logged.limit).file_length(logged.total);
        let Some(stored) = self.stored(exec, stream)? else { return Ok(0) };
        let found = stored.file.metadata();
        let found = found.map_err(|e| Verdict::unreadable(&output::name(exec, stream), &e))?.len();
        let offset = found.min(expected);
        if found < expected || (found > expected && self.coverage == Coverage::Whole) {
            return Err(Verdict::OutputChanged { exec, stream, offset });
        }
        Ok(found)
    }

    /// Nothing if the stream keeps no byte, and so has no file.
    fn stored(
        &mut self,
        exec: u32,
        stream: OutputStream,
    ) -> Result<Option<&StoredOutput>, Verdict> {
        let Some(logged) = self.walk.streams.get(&(exec, stream)) else { return Ok(None) };
        let layout = Layout::new(logged.limit);
        if layout.file_length(logged.total) == 0 {
            return Ok(None);
        }
        if !self.open.contains_key(&(exec, stream)) {
            if self.open.len() >= MAX_OPEN {
                self.open.clear();
            }
            let name = output::name(exec, stream);
            let file = match file::open(&self.directory.join(&name)) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(Verdict::OutputMissing { exec, stream });
                }
                Err(error) => return Err(Verdict::unreadable(&name, &error)),
            };
            let length = file.metadata().map_err(|e| Verdict::unreadable(&name, &e))?.len();
            let ring_from = match self.coverage {
                Coverage::Whole => layout.tail_from(logged.total),
                // The ring may have gone on: nothing in it can be placed.
                Coverage::Behind if length >= 2 * layout.half => u64::MAX,
                Coverage::Behind => layout.half,
            };
            self.open.insert((exec, stream), StoredOutput { file, layout, ring_from });
        }
        Ok(self.open.get(&(exec, stream)))
    }

    /// Output files without an event.
    fn strangers(&self) -> Result<(), Verdict> {
        let unreadable = |error| Verdict::unreadable("the run directory", &error);
        for entry in std::fs::read_dir(self.directory).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name();
            let Some((exec, stream)) = name.to_str().and_then(parse_name) else { continue };
            if !self.walk.streams.contains_key(&(exec, stream)) {
                return Err(Verdict::OutputChanged { exec, stream, offset: 0 });
            }
        }
        Ok(())
    }
}

fn compare(
    stored: &StoredOutput,
    exec: u32,
    stream: OutputStream,
    part: &TailHash,
    bytes: &mut u64,
) -> Result<(), Verdict> {
    let changed = Verdict::OutputChanged { exec, stream, offset: part.offset };
    match hash_range(&stored.file, stored.layout, part.offset, part.length) {
        Ok(hash) if hash.to_hex().as_str() == part.hash => {
            *bytes += part.length;
            Ok(())
        }
        Ok(_) => Err(changed),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(changed),
        Err(error) => Err(Verdict::unreadable(&output::name(exec, stream), &error)),
    }
}

fn parse_name(name: &str) -> Option<(u32, OutputStream)> {
    let name = name.strip_suffix(".bin")?;
    let (exec, stream) = match name.strip_prefix("exec-") {
        None => (0, name),
        Some(rest) => {
            let (exec, stream) = rest.split_once('.')?;
            (exec.parse().ok()?, stream)
        }
    };
    [OutputStream::Stdout, OutputStream::Stderr]
        .into_iter()
        .find(|known| known.name() == stream)
        .map(|stream| (exec, stream))
}

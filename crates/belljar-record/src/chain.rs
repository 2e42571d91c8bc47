//! Lines of the log: their bytes, what signs them, and how they are read.

use std::fs::File;
use std::io;

use belljar_spec::Event;

use super::file::read_full_at;
use super::key::RunKey;

/// No line is longer: what reads a log needs no more memory than this.
pub(super) const MAX_LINE: usize = 32 << 20;
/// Stands where the first line names the one before it.
pub(super) const NO_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";

const HASH_MARK: &[u8] = br#","hash":""#;
const LINE_END: &[u8] = br#""}"#;
const HEX: usize = 64;
const READ_AT_ONCE: usize = 64 << 10;

/// Completes a line: what was signed, its signature, the end.
pub(super) fn seal(line: &mut Vec<u8>, from: usize, key: &RunKey) -> blake3::Hash {
    let hash = key.sign(&line[from..]);
    line.extend_from_slice(HASH_MARK);
    line.extend_from_slice(hash.to_hex().as_bytes());
    line.extend_from_slice(LINE_END);
    line.push(b'\n');
    hash
}

/// The event of a line (without its newline) that the holder of the key wrote.
pub(super) fn check(line: &[u8], key: &RunKey) -> Option<Event> {
    let rest = line.strip_suffix(LINE_END)?;
    let (rest, hex) = rest.split_at_checked(rest.len().checked_sub(HEX)?)?;
    let signed = rest.strip_suffix(HASH_MARK)?;
    // Upper case would be the same number in other bytes.
    if hex.iter().any(u8::is_ascii_uppercase) {
        return None;
    }
    if key.sign(signed) != blake3::Hash::from_hex(hex).ok()? {
        return None;
    }
    serde_json::from_slice(line).ok()
}

/// When it was written: milliseconds since 1970.
pub(super) fn unix_millis(event: &Event) -> Option<u64> {
    let time: jiff::Timestamp = event.time.parse().ok()?;
    u64::try_from(time.as_millisecond()).ok()
}

/// What a reader found at its place.
#[derive(Debug)]
pub(super) enum Next<'a> {
    /// Without its newline.
    Line(&'a [u8]),
    /// Bytes without a newline at the end of the file, for now.
    Partial,
    /// A line that is longer than any that was ever written.
    TooLong,
    End,
}

/// Reads whole lines, also from a file that grows.
#[derive(Debug)]
pub(super) struct LineReader {
    file: File,
    /// Of the next line's first byte.
    offset: u64,
    buffer: Vec<u8>,
    /// Where in the buffer the next line begins.
    start: usize,
}

impl LineReader {
    pub(super) fn new(file: File, offset: u64) -> Self {
        Self { file, offset, buffer: Vec::new(), start: 0 }
    }

    /// Of the first byte that was not given out.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn next(&mut self) -> io::Result<Next<'_>> {
        let mut searched = 0;
        let length = loop {
            let waiting = &self.buffer[self.start..];
            if let Some(at) = memchr::memchr(b'\n', &waiting[searched..]) {
                break searched + at;
            }
            searched = waiting.len();
            if searched > MAX_LINE {
                return Ok(Next::TooLong);
            }
            if self.read_more()? == 0 {
                // A torn line may be cut and written anew: it is read again next time.
                self.buffer.clear();
                self.start = 0;
                return Ok(if searched == 0 { Next::End } else { Next::Partial });
            }
        };
        if length > MAX_LINE {
            return Ok(Next::TooLong);
        }
        let from = self.start;
        self.start += length + 1;
        self.offset += length as u64 + 1;
        Ok(Next::Line(&self.buffer[from..from + length]))
    }

    fn read_more(&mut self) -> io::Result<usize> {
        self.buffer.drain(..self.start);
        self.start = 0;
        let held = self.buffer.len();
        self.buffer.resize(held + READ_AT_ONCE, 0);
        let read = read_full_at(&self.file, &mut self.buffer[held..], self.offset + held as u64);
        self.buffer.truncate(held + read.as_ref().copied().unwrap_or(0));
        read
    }
}

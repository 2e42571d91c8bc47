//! Parses one line and stores only its start.
//!
//! hyper stores all of it, and a second copy would double the cost of a head that never ends.

use memchr::{memchr, memchr2_iter};

/// Longer than any line that determines the length of a body.
pub(super) const LINE_PREFIX: usize = 1024;

pub(super) const BARE_LF: &str = "a line ends without CR";
const BARE_CR: &str = "a CR stands alone";

#[derive(Debug, Default)]
pub(super) struct Line {
    prefix: Vec<u8>,
    length: usize,
    last: u8,
}

/// A complete line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LineRead {
    /// Without its line end.
    Whole(Vec<u8>),
    /// The start of a line that is longer than what is stored.
    Prefix(Vec<u8>),
}

impl Line {
    /// How many of the bytes belong to the line, and the line if they include its end. Every line must end with CR
    /// LF, and no other CR or LF is accepted, so that every reader sees the same lines.
    pub(super) fn read(
        &mut self,
        bytes: &[u8],
        longest: usize,
    ) -> Result<(usize, Option<LineRead>), &'static str> {
        let end = memchr(b'\n', bytes).map(|at| at + 1);
        let used = end.unwrap_or(bytes.len());
        let piece = &bytes[..used];
        if self.length + used > longest {
            return Err("a line is too long");
        }
        self.check_ends(piece)?;
        let room = LINE_PREFIX - self.prefix.len();
        self.prefix.extend_from_slice(&piece[..used.min(room)]);
        self.length += used;
        self.last = piece.last().copied().unwrap_or(self.last);
        if end.is_none() {
            return Ok((used, None));
        }
        let Self { prefix: mut line, length, .. } = std::mem::take(self);
        if length > line.len() {
            return Ok((used, Some(LineRead::Prefix(line))));
        }
        line.truncate(length.saturating_sub(2));
        Ok((used, Some(LineRead::Whole(line))))
    }

    fn check_ends(&self, piece: &[u8]) -> Result<(), &'static str> {
        if self.last == b'\r' && piece.first().is_some_and(|byte| *byte != b'\n') {
            return Err(BARE_CR);
        }
        for at in memchr2_iter(b'\r', b'\n', piece) {
            let before = at.checked_sub(1).map_or(self.last, |before| piece[before]);
            match (piece[at], piece.get(at + 1)) {
                (b'\n', _) if before != b'\r' => return Err(BARE_LF),
                (b'\r', Some(after)) if *after != b'\n' => return Err(BARE_CR),
                _ => {}
            }
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn buffered(&self) -> usize {
        self.prefix.capacity()
    }
}

/// Hexadecimal digits, and an optional extension, which is ignored.
pub(super) fn chunk_size(line: &[u8]) -> Result<u64, &'static str> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, rest) = line.split_at(digits);
    if !matches!(rest.first(), None | Some(b';')) {
        return Err("a chunk's size is malformed");
    }
    let digits = std::str::from_utf8(digits).map_err(|_| "a chunk's size is malformed")?;
    u64::from_str_radix(digits, 16).map_err(|_| "a chunk's size is malformed")
}

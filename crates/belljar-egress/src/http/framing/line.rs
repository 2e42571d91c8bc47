//! One line, of which only the beginning is kept: hyper holds all of it, and a second copy would double what a
//! head that never ends costs.

use memchr::{memchr, memchr2_iter};

/// Longer than anything that says where a request ends.
pub(super) const LINE_PREFIX: usize = 1024;

pub(super) const BARE_LF: &str = "a line ends without CR";
const BARE_CR: &str = "a CR stands alone";

#[derive(Debug, Default)]
pub(super) struct Line {
    prefix: Vec<u8>,
    length: usize,
    last: u8,
}

/// A line that was read to its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LineRead {
    /// Without its end.
    Whole(Vec<u8>),
    /// The beginning of one that is longer than what is kept.
    Prefix(Vec<u8>),
}

impl Line {
    /// How many of the bytes belong to it, and what it is if that includes its end. Every line ends with CR LF, and
    /// nothing else is a CR or an LF, so that nobody sees lines elsewhere.
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

/// Hexadecimal digits, then perhaps an extension, of which nobody knows any.
pub(super) fn chunk_size(line: &[u8]) -> Result<u64, &'static str> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, rest) = line.split_at(digits);
    if !matches!(rest.first(), None | Some(b';')) {
        return Err("a chunk's size is malformed");
    }
    let digits = std::str::from_utf8(digits).map_err(|_| "a chunk's size is malformed")?;
    u64::from_str_radix(digits, 16).map_err(|_| "a chunk's size is malformed")
}

//! Parses the head of a request line by line.
//!
//! It stores only what determines the length of the body, and checks the rest.

use super::line::{Line, LineRead};
use super::monitor::ParseState;
use crate::http::request_target::fault_in_line;
use crate::limits::{MAX_HEAD_BYTES, MAX_HEADERS};

const MALFORMED: &str = "the head is malformed";

#[derive(Debug, Default)]
pub(super) struct Head {
    line: Line,
    length: usize,
    lines: usize,
    is_connect: bool,
    lengths: SingleHeader,
    codings: SingleHeader,
}

/// The values of a header that must not be repeated.
#[derive(Debug, Default)]
struct SingleHeader {
    first: Option<Vec<u8>>,
    several: bool,
}

impl SingleHeader {
    fn add(&mut self, value: &[u8]) {
        match self.first {
            None => self.first = Some(value.to_vec()),
            Some(_) => self.several = true,
        }
    }
}

impl Head {
    pub(super) fn is_new(&self) -> bool {
        self.length == 0
    }

    /// How many of the bytes belong to the head, and what follows it once it is complete.
    pub(super) fn read(
        &mut self,
        bytes: &[u8],
    ) -> Result<(usize, Option<ParseState>), &'static str> {
        let (used, line) = self.line.read(bytes, MAX_HEAD_BYTES)?;
        if self.lines == 0 {
            // The line parser checks line ends.
            let piece = bytes[..used].split(|byte| matches!(byte, b'\r' | b'\n'));
            if let Some(fault) = piece.into_iter().find_map(fault_in_line) {
                return Err(fault);
            }
        }
        self.length += used;
        if self.length > MAX_HEAD_BYTES {
            return Err("the head is too long");
        }
        match line {
            None => return Ok((used, None)),
            Some(LineRead::Whole(line)) if line.is_empty() => {
                return Ok((used, Some(self.body()?)));
            }
            Some(line) if self.lines == 0 => self.first_line(line)?,
            Some(line) => self.header(line)?,
        }
        self.lines += 1;
        Ok((used, None))
    }

    /// hyper checks the rest of a long line.
    fn first_line(&mut self, line: LineRead) -> Result<(), &'static str> {
        let (LineRead::Whole(text) | LineRead::Prefix(text)) = &line;
        let space = memchr::memchr(b' ', text).ok_or(MALFORMED)?;
        self.is_connect = &text[..space] == b"CONNECT";
        let LineRead::Whole(mut text) = line else { return Ok(()) };
        text.extend_from_slice(b"\r\n\r\n");
        match httparse::Request::new(&mut []).parse(&text) {
            Ok(httparse::Status::Complete(_)) => Ok(()),
            _ => Err(MALFORMED),
        }
    }

    fn header(&mut self, line: LineRead) -> Result<(), &'static str> {
        if self.lines > MAX_HEADERS {
            return Err(MALFORMED);
        }
        let (mut text, whole) = match line {
            LineRead::Whole(line) => (line, true),
            LineRead::Prefix(line) => {
                let colon = memchr::memchr(b':', &line).ok_or(MALFORMED)?;
                (line[..=colon].to_vec(), false)
            }
        };
        text.extend_from_slice(b"\r\n\r\n");
        let mut one = [httparse::EMPTY_HEADER; 1];
        let header = match httparse::parse_headers(&text, &mut one) {
            Ok(httparse::Status::Complete((_, [header]))) => *header,
            _ => return Err(MALFORMED),
        };
        let values = match header.name {
            name if name.eq_ignore_ascii_case("content-length") => &mut self.lengths,
            name if name.eq_ignore_ascii_case("transfer-encoding") => &mut self.codings,
            _ => return Ok(()),
        };
        if !whole {
            return Err("a length is too long");
        }
        values.add(header.value);
        Ok(())
    }

    fn body(&self) -> Result<ParseState, &'static str> {
        if self.lines == 0 {
            return Err(MALFORMED);
        }
        let Self { lengths, codings, .. } = self;
        match (lengths.first.as_deref(), codings.first.as_deref()) {
            _ if lengths.several => Err("Content-Length is there more than once"),
            _ if codings.several => Err("Transfer-Encoding is there more than once"),
            (Some(_), Some(_)) => Err("both Content-Length and Transfer-Encoding are there"),
            (None | Some(b"0"), None) => Ok(ParseState::Head),
            _ if self.is_connect => Err("CONNECT has a body"),
            (Some(length), None) => match decimal(length) {
                Some(0) => Ok(ParseState::Head),
                Some(length) => Ok(ParseState::Body(length)),
                None => Err("Content-Length is no number"),
            },
            (None, Some(coding)) if coding.eq_ignore_ascii_case(b"chunked") => {
                Ok(ParseState::ChunkSize)
            }
            (None, Some(_)) => Err("Transfer-Encoding is not just chunked"),
        }
    }

    #[cfg(test)]
    pub(super) fn buffered(&self) -> usize {
        let capacity = |values: &SingleHeader| values.first.as_ref().map_or(0, Vec::capacity);
        self.line.buffered() + capacity(&self.lengths) + capacity(&self.codings)
    }
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| plain)?.parse().ok()
}

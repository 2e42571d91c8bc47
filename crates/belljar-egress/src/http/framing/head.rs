//! The head of a request, line by line. Of it is kept what says where the request ends; the rest is only judged.

use super::line::{Line, Read};
use super::monitor::Place;
use crate::http::request_target::fault_in_line;
use crate::limits::{LONGEST_HEAD, MOST_HEADERS};

const MALFORMED: &str = "the head is malformed";

#[derive(Debug, Default)]
pub(super) struct Head {
    line: Line,
    length: usize,
    lines: usize,
    is_connect: bool,
    lengths: Values,
    codings: Values,
}

/// Of a header that should be there once.
#[derive(Debug, Default)]
struct Values {
    first: Option<Vec<u8>>,
    several: bool,
}

impl Values {
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

    /// How many of the bytes belong to it, and where those after it belong, if that is known.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<(usize, Option<Place>), &'static str> {
        let (used, line) = self.line.read(bytes, LONGEST_HEAD)?;
        if self.lines == 0 {
            // Its end was judged by the line.
            let piece = bytes[..used].split(|byte| matches!(byte, b'\r' | b'\n'));
            if let Some(fault) = piece.into_iter().find_map(fault_in_line) {
                return Err(fault);
            }
        }
        self.length += used;
        if self.length > LONGEST_HEAD {
            return Err("the head is too long");
        }
        match line {
            None => return Ok((used, None)),
            Some(Read::Whole(line)) if line.is_empty() => return Ok((used, Some(self.body()?))),
            Some(line) if self.lines == 0 => self.first_line(line)?,
            Some(line) => self.header(line)?,
        }
        self.lines += 1;
        Ok((used, None))
    }

    /// Of a long one hyper judges the rest.
    fn first_line(&mut self, line: Read) -> Result<(), &'static str> {
        let (Read::Whole(text) | Read::Beginning(text)) = &line;
        let space = memchr::memchr(b' ', text).ok_or(MALFORMED)?;
        self.is_connect = &text[..space] == b"CONNECT";
        let Read::Whole(mut text) = line else { return Ok(()) };
        text.extend_from_slice(b"\r\n\r\n");
        match httparse::Request::new(&mut []).parse(&text) {
            Ok(httparse::Status::Complete(_)) => Ok(()),
            _ => Err(MALFORMED),
        }
    }

    fn header(&mut self, line: Read) -> Result<(), &'static str> {
        if self.lines > MOST_HEADERS {
            return Err(MALFORMED);
        }
        let (mut text, whole) = match line {
            Read::Whole(line) => (line, true),
            Read::Beginning(line) => {
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

    fn body(&self) -> Result<Place, &'static str> {
        if self.lines == 0 {
            return Err(MALFORMED);
        }
        let Self { lengths, codings, .. } = self;
        match (lengths.first.as_deref(), codings.first.as_deref()) {
            _ if lengths.several => Err("Content-Length is there more than once"),
            _ if codings.several => Err("Transfer-Encoding is there more than once"),
            (Some(_), Some(_)) => Err("both Content-Length and Transfer-Encoding are there"),
            (None | Some(b"0"), None) => Ok(Place::Head),
            _ if self.is_connect => Err("CONNECT has a body"),
            (Some(length), None) => match decimal(length) {
                Some(0) => Ok(Place::Head),
                Some(length) => Ok(Place::Body(length)),
                None => Err("Content-Length is no number"),
            },
            (None, Some(coding)) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Place::ChunkSize),
            (None, Some(_)) => Err("Transfer-Encoding is not just chunked"),
        }
    }

    #[cfg(test)]
    pub(super) fn holds(&self) -> usize {
        let kept = |values: &Values| values.first.as_ref().map_or(0, Vec::capacity);
        self.line.holds() + kept(&self.lengths) + kept(&self.codings)
    }
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| plain)?.parse().ok()
}

//! Follows requests through the bytes of a connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::head::Head;
use super::line::{KEPT, Line, Read, chunk_size};
use super::{Fault, Framing};
use crate::limits::LONGEST_HEAD;

pub(super) struct Eye {
    place: Place,
    /// As far as it was read.
    head: Head,
    /// Of chunks or trailers, as far as it was read.
    line: Line,
    /// How many heads were read to their end.
    heads: u64,
    framing: Arc<Framing>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Head,
    Body(u64),
    ChunkSize,
    Chunk(u64),
    ChunkCr,
    ChunkLf,
    /// How many bytes of them there were.
    Trailers(usize),
    Lost,
}

impl Eye {
    pub(super) fn new(framing: Arc<Framing>) -> Self {
        Self { place: Place::Head, head: Head::default(), line: Line::default(), heads: 0, framing }
    }

    pub(super) fn see(&mut self, mut bytes: &[u8]) {
        if self.place != Place::Lost && self.framing.over.load(Ordering::Relaxed) {
            self.lose();
        }
        while !bytes.is_empty() && self.place != Place::Lost {
            match self.step(bytes) {
                Ok(used) => bytes = &bytes[used..],
                Err(what) => {
                    let request = match self.place {
                        Place::Head => self.heads,
                        _ => self.heads.saturating_sub(1), // in what belongs to the last head
                    };
                    let _ = self.framing.fault.set(Fault { request, what });
                    self.lose();
                }
            }
        }
    }

    fn lose(&mut self) {
        self.place = Place::Lost;
        self.head = Head::default();
        self.line = Line::default();
    }

    /// How many of the bytes were understood; at least one.
    fn step(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        match self.place {
            Place::Head => self.head(bytes),
            Place::Body(left) => {
                let used = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let left = left - used as u64;
                self.place = if left == 0 { Place::Head } else { Place::Body(left) };
                Ok(used)
            }
            Place::Chunk(left) => {
                let used = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let left = left - used as u64;
                self.place = if left == 0 { Place::ChunkCr } else { Place::Chunk(left) };
                Ok(used)
            }
            Place::ChunkCr if bytes[0] == b'\r' => self.go(Place::ChunkLf),
            Place::ChunkLf if bytes[0] == b'\n' => self.go(Place::ChunkSize),
            Place::ChunkCr | Place::ChunkLf => Err("a chunk is longer than it says"),
            Place::ChunkSize => {
                let (used, line) = self.line.read(bytes, KEPT)?;
                if let Some(Read::Whole(line) | Read::Beginning(line)) = line {
                    let size = chunk_size(&line)?;
                    self.place = if size == 0 { Place::Trailers(0) } else { Place::Chunk(size) };
                }
                Ok(used)
            }
            Place::Trailers(before) => {
                let (used, line) = self.line.read(bytes, LONGEST_HEAD)?;
                let so_far = before + used;
                if so_far > LONGEST_HEAD {
                    return Err("the trailers are too long");
                }
                let end = line.is_some_and(|line| line == Read::Whole(Vec::new()));
                self.place = if end { Place::Head } else { Place::Trailers(so_far) };
                Ok(used)
            }
            Place::Lost => Ok(bytes.len()),
        }
    }

    fn go(&mut self, place: Place) -> Result<usize, &'static str> {
        self.place = place;
        Ok(1)
    }

    fn head(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        // Empty lines in front of a request mean nothing to anybody.
        if self.head.is_new() && matches!(bytes[0], b'\r' | b'\n') {
            return Ok(1);
        }
        let (used, after) = self.head.read(bytes)?;
        if let Some(place) = after {
            self.place = place;
            self.heads += 1;
            self.head = Head::default();
        }
        Ok(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eye() -> (Eye, Arc<Framing>) {
        let framing = Arc::new(Framing::default());
        (Eye::new(framing.clone()), framing)
    }

    /// What is noted about these bytes, read in pieces of every size.
    fn fault(bytes: &str) -> Option<&'static str> {
        let whole = fault_in_pieces(bytes.as_bytes(), bytes.len());
        for size in 1..bytes.len() {
            assert_eq!(fault_in_pieces(bytes.as_bytes(), size), whole, "{bytes:?} by {size}");
        }
        whole
    }

    fn fault_in_pieces(bytes: &[u8], size: usize) -> Option<&'static str> {
        let (mut eye, framing) = eye();
        for piece in bytes.chunks(size.max(1)) {
            eye.see(piece);
        }
        framing.fault()
    }

    #[test]
    fn what_has_one_reading_passes_and_the_next_head_is_found() {
        let bad = "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n";
        for good in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n\n\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\n\n\n\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nA;x=1\r\n0123456789\r\n0\r\nT: 1\r\n\r\n",
            "CONNECT a:1 HTTP/1.1\r\n\r\n",
            "CONNECT a:1 HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        ] {
            assert_eq!(fault(good), None, "{good:?}");
            assert_eq!(fault(&format!("{good}{good}")), None, "{good:?}");
            assert!(fault(&format!("{good}{bad}")).is_some(), "{good:?}");
        }
    }

    #[test]
    fn what_has_two_readings_is_noted() {
        let post = "POST / HTTP/1.1\r\n";
        let chunked = "Transfer-Encoding: chunked\r\n";
        for bad in [
            format!("{post}Content-Length: 5\r\n{chunked}\r\n"),
            format!("{post}{chunked}Content-Length: 5\r\n\r\n"),
            format!("{post}Content-Length: 5\r\nContent-Length: 5\r\n\r\n"),
            format!("{post}Content-Length: 5, 5\r\n\r\n"),
            format!("{post}Content-Length: +5\r\n\r\n"),
            format!("{post}Content-Length:\r\n\r\n"),
            format!("{post}Content-Length : 5\r\n\r\n"),
            format!("{post}{chunked}{chunked}\r\n"),
            format!("{post}Transfer-Encoding: gzip, chunked\r\n\r\n"),
            format!("{post}Transfer-Encoding: identity\r\n\r\n"),
            format!("{post}Transfer-Encoding:\x0bchunked\r\n\r\n"),
            format!("{post}A: b\r\n folded\r\n\r\n"),
            format!("{post}A: b\nC: d\r\n\r\n"),
            format!("{post}A: b\n\n"),
            format!("{post}{chunked}\r\n5 \r\n"),
            format!("{post}{chunked}\r\n0x5\r\n"),
            format!("{post}{chunked}\r\n\r\n"),
            format!("{post}{chunked}\r\n-1\r\n"),
            format!("{post}{chunked}\r\n10000000000000000\r\n"),
            format!("{post}{chunked}\r\n1\nx"),
            format!("{post}{chunked}\r\n1\r\nxy"),
            format!("{post}{chunked}\r\n1\r\nx\n"),
            format!("{post}{chunked}\r\n0\r\nA: b\n"),
            "CONNECT a:1 HTTP/1.1\r\nContent-Length: 1\r\n\r\n".to_owned(),
            "GET  / HTTP/1.1\r\n\r\n".to_owned(),
            "GET http://a#x HTTP/1.1\r\n\r\n".to_owned(),
            "GET /a#b HTTP/1.1\r\n\r\n".to_owned(),
            "GET /a\\b HTTP/1.1\r\n\r\n".to_owned(),
            "CONNECT a#b:1 HTTP/1.1\r\n\r\n".to_owned(),
            "GET / HTTP/3\r\n\r\n".to_owned(),
        ] {
            assert!(fault(&bad).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn what_has_no_end_is_not_kept() {
        let (mut eye, framing) = eye();
        eye.see(b"GET / HTTP/1.1\r\nA: ");
        for _ in 0..LONGEST_HEAD {
            eye.see(b"aaaa");
        }
        assert!(framing.fault().is_some());
        assert_eq!(eye.head.holds(), 0);
    }

    #[test]
    fn what_is_not_ended_yet_is_not_kept_twice() {
        let long = "a".repeat(LONGEST_HEAD - 100);
        let lines = "A: 0123456789012345678901234567890123456789\r\n".repeat(90);
        for bytes in [
            format!("GET / HTTP/1.1\r\nA: {long}"),
            format!("GET /{long}"),
            format!("GET / HTTP/1.1\r\n{lines}"),
            format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: {long}"),
        ] {
            let (mut eye, framing) = eye();
            bytes.as_bytes().chunks(1000).for_each(|piece| eye.see(piece));
            assert_eq!(framing.fault(), None);
            let held = eye.head.holds() + eye.line.holds();
            assert!(held <= 2 * KEPT, "{held}");
        }
    }

    #[test]
    fn long_lines_are_judged_by_their_beginning() {
        let long = "a".repeat(5000);
        let post = "POST / HTTP/1.1\r\n";
        for good in [
            format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"),
            format!("{post}Cookie: {long}\r\nContent-Length: 3\r\n\r\nabc"),
        ] {
            for size in [1, 7, 1024, 4096, good.len()] {
                assert_eq!(fault_in_pieces(good.as_bytes(), size), None);
                let then_bad = format!("{good}{post}Content-Length: x\r\n\r\n");
                assert!(fault_in_pieces(then_bad.as_bytes(), size).is_some());
            }
        }
        for bad in [
            format!("{post}Content-Length: {}5\r\n\r\n", "0".repeat(5000)),
            format!("{post}Transfer-Encoding: {}chunked\r\n\r\n", " ".repeat(5000)),
            format!("{post}A : {long}\r\n\r\n"),
            format!("{post} A: {long}\r\n\r\n"),
            format!("{post}{long}: b\r\n\r\n"),
            format!("{post}A: {long}\rB: c\r\n\r\n"),
            format!("{post}A: {long}\nB: c\r\n\r\n"),
            format!("{post}{}\r\n", "A: b\r\n".repeat(101)),
            format!("{long}\r\n\r\n"),
            format!("GET /{long}#x HTTP/1.1\r\n\r\n"),
        ] {
            for size in [1, 7, 1024, 4096, bad.len()] {
                assert!(fault_in_pieces(bad.as_bytes(), size).is_some(), "{}", &bad[..40]);
            }
        }
    }

    #[test]
    fn a_fault_belongs_to_its_request() {
        let connect = "CONNECT a:1 HTTP/1.1\r\n\r\n";
        let post = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        for (bytes, request) in [
            (format!("{connect}early\n"), 1),
            (format!("{connect}{}", "x".repeat(LONGEST_HEAD + 1)), 1),
            ("CONNECT a:1 HTTP/1.1\r\nContent-Length: 1\r\n\r\n".to_owned(), 0),
            (format!("{connect}{post}zz\r\n"), 1),
            (format!("{post}0\r\n\r\nx\n"), 1),
            (format!("{post}0\r\nx\n"), 0),
        ] {
            let (mut eye, framing) = eye();
            eye.see(bytes.as_bytes());
            assert!(framing.fault_until(request).is_some(), "{bytes:?}");
            if let Some(before) = request.checked_sub(1) {
                assert_eq!(framing.fault_until(before), None, "{bytes:?}");
            }
        }
    }

    #[test]
    fn a_tunnel_is_not_looked_into() {
        let (mut eye, framing) = eye();
        eye.see(b"CONNECT a:1 HTTP/1.1\r\n\r\n");
        framing.over();
        eye.see(b"\n\n\n{\n");
        assert_eq!(framing.fault(), None);
    }
}

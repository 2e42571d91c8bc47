//! Tracks where each request starts and ends in the bytes of a connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::head::Head;
use super::line::{LINE_PREFIX, Line, LineRead, chunk_size};
use super::{Fault, Framing};
use crate::limits::MAX_HEAD_BYTES;

pub(super) struct FramingMonitor {
    state: ParseState,
    /// The current head, as far as it was read.
    head: Head,
    /// The current chunk-size or trailer line, as far as it was read.
    line: Line,
    /// Complete heads so far.
    heads: u64,
    framing: Arc<Framing>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParseState {
    Head,
    Body(u64),
    ChunkSize,
    Chunk(u64),
    ChunkCr,
    ChunkLf,
    /// Bytes of trailers so far.
    Trailers(usize),
    Stopped,
}

impl FramingMonitor {
    pub(super) fn new(framing: Arc<Framing>) -> Self {
        Self {
            state: ParseState::Head,
            head: Head::default(),
            line: Line::default(),
            heads: 0,
            framing,
        }
    }

    pub(super) fn observe(&mut self, mut bytes: &[u8]) {
        if self.state != ParseState::Stopped && self.framing.stopped.load(Ordering::Relaxed) {
            self.stop();
        }
        while !bytes.is_empty() && self.state != ParseState::Stopped {
            match self.step(bytes) {
                Ok(used) => bytes = &bytes[used..],
                Err(what) => {
                    let request = match self.state {
                        ParseState::Head => self.heads,
                        _ => self.heads.saturating_sub(1), // in the body of the last head
                    };
                    let _ = self.framing.fault.set(Fault { request, what });
                    self.stop();
                }
            }
        }
    }

    fn stop(&mut self) {
        self.state = ParseState::Stopped;
        self.head = Head::default();
        self.line = Line::default();
    }

    /// How many of the bytes were consumed; at least one.
    fn step(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        match self.state {
            ParseState::Head => self.head(bytes),
            ParseState::Body(left) => {
                let used = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let left = left - used as u64;
                self.state = if left == 0 { ParseState::Head } else { ParseState::Body(left) };
                Ok(used)
            }
            ParseState::Chunk(left) => {
                let used = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let left = left - used as u64;
                self.state = if left == 0 { ParseState::ChunkCr } else { ParseState::Chunk(left) };
                Ok(used)
            }
            ParseState::ChunkCr if bytes[0] == b'\r' => self.advance(ParseState::ChunkLf),
            ParseState::ChunkLf if bytes[0] == b'\n' => self.advance(ParseState::ChunkSize),
            ParseState::ChunkCr | ParseState::ChunkLf => {
                Err("a chunk is longer than its stated size")
            }
            ParseState::ChunkSize => {
                let (used, line) = self.line.read(bytes, LINE_PREFIX)?;
                if let Some(LineRead::Whole(line) | LineRead::Prefix(line)) = line {
                    let size = chunk_size(&line)?;
                    self.state =
                        if size == 0 { ParseState::Trailers(0) } else { ParseState::Chunk(size) };
                }
                Ok(used)
            }
            ParseState::Trailers(before) => {
                let (used, line) = self.line.read(bytes, MAX_HEAD_BYTES)?;
                let so_far = before + used;
                if so_far > MAX_HEAD_BYTES {
                    return Err("the trailers are too long");
                }
                let end = line.is_some_and(|line| line == LineRead::Whole(Vec::new()));
                self.state = if end { ParseState::Head } else { ParseState::Trailers(so_far) };
                Ok(used)
            }
            ParseState::Stopped => Ok(bytes.len()),
        }
    }

    fn advance(&mut self, state: ParseState) -> Result<usize, &'static str> {
        self.state = state;
        Ok(1)
    }

    fn head(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        // Empty lines before a request are ignored by everybody.
        if self.head.is_new() && matches!(bytes[0], b'\r' | b'\n') {
            return Ok(1);
        }
        let (used, after) = self.head.read(bytes)?;
        if let Some(state) = after {
            self.state = state;
            self.heads += 1;
            self.head = Head::default();
        }
        Ok(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn monitor() -> (FramingMonitor, Arc<Framing>) {
        let framing = Arc::new(Framing::default());
        (FramingMonitor::new(framing.clone()), framing)
    }

    /// The fault that is noted for these bytes, read in pieces of every size.
    fn fault(bytes: &str) -> Option<&'static str> {
        let whole = fault_in_pieces(bytes.as_bytes(), bytes.len());
        for size in 1..bytes.len() {
            assert_eq!(fault_in_pieces(bytes.as_bytes(), size), whole, "{bytes:?} by {size}");
        }
        whole
    }

    fn fault_in_pieces(bytes: &[u8], size: usize) -> Option<&'static str> {
        let (mut monitor, framing) = monitor();
        for piece in bytes.chunks(size.max(1)) {
            monitor.observe(piece);
        }
        framing.fault()
    }

    #[test]
    fn unambiguous_requests_pass_and_the_next_head_is_found() {
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
    fn ambiguous_requests_are_noted() {
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
    fn an_endless_head_is_not_stored() {
        let (mut monitor, framing) = monitor();
        monitor.observe(b"GET / HTTP/1.1\r\nA: ");
        for _ in 0..MAX_HEAD_BYTES {
            monitor.observe(b"aaaa");
        }
        assert!(framing.fault().is_some());
        assert_eq!(monitor.head.buffered(), 0);
    }

    #[test]
    fn unfinished_input_is_not_stored_twice() {
        let long = "a".repeat(MAX_HEAD_BYTES - 100);
        let lines = "A: 0123456789012345678901234567890123456789\r\n".repeat(90);
        for bytes in [
            format!("GET / HTTP/1.1\r\nA: {long}"),
            format!("GET /{long}"),
            format!("GET / HTTP/1.1\r\n{lines}"),
            format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: {long}"),
        ] {
            let (mut monitor, framing) = monitor();
            bytes.as_bytes().chunks(1000).for_each(|piece| monitor.observe(piece));
            assert_eq!(framing.fault(), None);
            let held = monitor.head.buffered() + monitor.line.buffered();
            assert!(held <= 2 * LINE_PREFIX, "{held}");
        }
    }

    #[test]
    fn long_lines_are_judged_by_their_start() {
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
            (format!("{connect}{}", "x".repeat(MAX_HEAD_BYTES + 1)), 1),
            ("CONNECT a:1 HTTP/1.1\r\nContent-Length: 1\r\n\r\n".to_owned(), 0),
            (format!("{connect}{post}zz\r\n"), 1),
            (format!("{post}0\r\n\r\nx\n"), 1),
            (format!("{post}0\r\nx\n"), 0),
        ] {
            let (mut monitor, framing) = monitor();
            monitor.observe(bytes.as_bytes());
            assert!(framing.fault_up_to(request).is_some(), "{bytes:?}");
            if let Some(before) = request.checked_sub(1) {
                assert_eq!(framing.fault_up_to(before), None, "{bytes:?}");
            }
        }
    }

    #[test]
    fn a_tunnel_is_not_monitored() {
        let (mut monitor, framing) = monitor();
        monitor.observe(b"CONNECT a:1 HTTP/1.1\r\n\r\n");
        framing.stop();
        monitor.observe(b"\n\n\n{\n");
        assert_eq!(framing.fault(), None);
    }
}

//! Collects a command's output in bounded memory: the head and the tail of a long stream.

use std::collections::VecDeque;
use std::fmt;

use belljar_spec::{Exit, ExitSource};

/// Bytes kept of each stream unless [`super::Exec::limit_output`] is set.
pub const DEFAULT_OUTPUT_LIMIT: usize = 1 << 20;

/// The output and the exit of a command that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// If it is longer than the limit: the head, directly followed by the tail.
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub exit: Exit,
    /// Where the exit code comes from: 124 to 127 can be the program's.
    pub source: ExitSource,
    /// Something was left out of `stdout` or `stderr`; the run's record has more.
    pub truncated: bool,
    pub omitted: Omitted,
}

/// Bytes that were left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Omitted {
    pub stdout: u64,
    pub stderr: u64,
}

impl Output {
    pub fn success(&self) -> bool {
        self.exit.code == Some(0)
    }

    /// As text: invalid UTF-8 is replaced, and a line marks where bytes are left out.
    pub fn stdout_text(&self) -> String {
        text(&self.stdout, self.omitted.stdout)
    }

    pub fn stderr_text(&self) -> String {
        text(&self.stderr, self.omitted.stderr)
    }
}

fn text(bytes: &[u8], omitted: u64) -> String {
    if omitted == 0 {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let (head, tail) = bytes.split_at(bytes.len() / 2);
    let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(tail));
    format!("{head}\n[{omitted} bytes are left out here]\n{tail}")
}

/// Collects one stream: its head and its tail.
pub struct Collected {
    limit: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    omitted: u64,
}

impl Collected {
    /// Keeps at most this many bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, head: Vec::new(), tail: VecDeque::new(), omitted: 0 }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        let head_limit = self.limit / 2;
        let (first, rest) = bytes.split_at(bytes.len().min(head_limit - self.head.len()));
        self.head.extend_from_slice(first);
        let tail_limit = self.limit - head_limit;
        let skip = rest.len().saturating_sub(tail_limit);
        let leave = (self.tail.len() + rest.len() - skip).saturating_sub(tail_limit);
        self.tail.drain(..leave);
        self.tail.extend(&rest[skip..]);
        self.omitted += (skip + leave) as u64;
    }

    /// What was kept, and how many bytes were left out between its halves.
    pub fn finish(mut self) -> (Vec<u8>, u64) {
        self.head.extend(self.tail);
        (self.head, self.omitted)
    }
}

impl fmt::Debug for Collected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Collected({} bytes, {} left out)",
            self.head.len() + self.tail.len(),
            self.omitted
        )
    }
}

pub(crate) fn output(stdout: Collected, stderr: Collected, exit: Exit) -> Output {
    let (stdout, stdout_omitted) = stdout.finish();
    let (stderr, stderr_omitted) = stderr.finish();
    Output {
        stdout,
        stderr,
        exit,
        source: exit.source,
        truncated: stdout_omitted + stderr_omitted > 0,
        omitted: Omitted { stdout: stdout_omitted, stderr: stderr_omitted },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(limit: usize, pieces: &[&[u8]]) -> (Vec<u8>, u64) {
        let mut collected = Collected::new(limit);
        pieces.iter().for_each(|piece| collected.push(piece));
        collected.finish()
    }

    #[test]
    fn head_and_tail_are_kept_and_the_rest_is_counted() {
        assert_eq!(collect(8, &[b"abcd", b"efgh"]), (b"abcdefgh".to_vec(), 0));
        assert_eq!(collect(8, &[b"abcdefghi"]), (b"abcdfghi".to_vec(), 1));
        assert_eq!(collect(8, &[b"abcd", b"efgh", b"ij"]), (b"abcdghij".to_vec(), 2));
        assert_eq!(collect(0, &[b"abc"]), (Vec::new(), 3));
        assert_eq!(collect(1, &[b"abc", b"d"]), (b"d".to_vec(), 3));
    }

    #[test]
    fn the_text_says_where_something_is_missing() {
        let mut stdout = Collected::new(4);
        stdout.push(b"ab\xff-cd");
        let exit = Exit::of_belljar(0, ExitSource::Command);
        let output = output(stdout, Collected::new(4), exit);
        assert!(output.truncated);
        assert_eq!(output.stdout_text(), "ab\n[2 bytes are left out here]\ncd");
        assert_eq!(output.stderr_text(), "");
    }
}

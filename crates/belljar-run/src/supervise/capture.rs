//! Captures the beginning and the end of an output, in bounded memory.

use std::collections::VecDeque;

use belljar_record::Captured;

#[derive(Debug)]
pub(super) struct HeadAndTail {
    half: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    lost: u64,
}

impl HeadAndTail {
    pub(super) fn new(most: u64) -> Self {
        let half = usize::try_from(most / 2).unwrap_or(usize::MAX);
        Self { half, head: Vec::new(), tail: VecDeque::new(), lost: 0 }
    }

    pub(super) fn keep(&mut self, bytes: &[u8]) {
        let to_head = bytes.len().min(self.half - self.head.len());
        let (head, rest) = bytes.split_at(to_head);
        self.head.extend_from_slice(head);
        self.tail.extend(rest);
        let too_many = self.tail.len().saturating_sub(self.half);
        self.tail.drain(..too_many);
        self.lost += too_many as u64;
    }

    pub(super) fn captured(self) -> Captured {
        Captured { head: self.head, tail: self.tail.into(), lost: self.lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_all_that_fits_and_both_ends_of_what_does_not() {
        let mut small = HeadAndTail::new(8);
        small.keep(b"abc");
        small.keep(b"defgh");
        let kept = small.captured();
        assert_eq!(
            (kept.head.as_slice(), kept.tail.as_slice(), kept.lost),
            (&b"abcd"[..], &b"efgh"[..], 0)
        );

        let mut large = HeadAndTail::new(8);
        for chunk in [&b"ab"[..], b"cdefghij", b"klmnopqrstuvwxyz"] {
            large.keep(chunk);
        }
        let kept = large.captured();
        assert_eq!(
            (kept.head.as_slice(), kept.tail.as_slice(), kept.lost),
            (&b"abcd"[..], &b"wxyz"[..], 18)
        );
    }
}

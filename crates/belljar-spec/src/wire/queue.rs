//! Bytes that wait to be passed on: appended at the end, taken from the front in pieces of any size.
//!
//! What is left is not moved for every piece, so a wide window costs no more than a narrow one.

/// Smaller remains are moved to the front at once.
const KEEP_IN_PLACE: usize = 4 * 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByteQueue {
    bytes: Vec<u8>,
    taken: usize,
}

impl ByteQueue {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    pub fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first `count` bytes were passed on.
    pub fn take(&mut self, count: usize) {
        self.taken = self.bytes.len().min(self.taken.saturating_add(count));
        let left = self.len();
        // Moved when more was taken than is left, so that a byte is moved once on average.
        if left <= KEEP_IN_PLACE || left <= self.taken {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_was_pushed_in_order_and_keeps_no_more_than_twice_of_it() {
        let bytes: Vec<u8> = (0..200_000_u32).map(|number| (number % 251) as u8).collect();
        for (pushed, taken) in [(1, 1), (7, 3), (100_000, 1), (65_536, 16_384), (200_000, 4096)] {
            let (mut queue, mut read) = (ByteQueue::default(), Vec::new());
            for piece in bytes.chunks(pushed).take(3000) {
                queue.push(piece);
                let now = taken.min(queue.len());
                read.extend_from_slice(&queue.as_slice()[..now]);
                queue.take(now);
                assert!(queue.bytes.len() <= 2 * queue.len() + KEEP_IN_PLACE + pushed);
            }
            read.extend_from_slice(queue.as_slice());
            queue.take(usize::MAX);
            assert!(queue.is_empty() && queue.bytes.is_empty());
            assert_eq!(read, bytes[..read.len()], "{pushed} pushed, {taken} taken");
        }
    }
}

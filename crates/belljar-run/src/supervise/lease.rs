//! Keeps PID 1 from taking silence for the launcher's death.

use std::time::{Duration, Instant};

/// A word is said this many times in the time of a lease.
const WORDS: u32 = 4;

#[derive(Debug)]
pub(super) struct Lease {
    every: Duration,
    said: Instant,
}

impl Lease {
    pub(super) fn new(lease: Duration) -> Self {
        Self { every: lease / WORDS, said: Instant::now() }
    }

    pub(super) fn next_word(&self) -> Instant {
        self.said + self.every
    }

    /// `true`: now is the time, and the next one is counted from here.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let due = now >= self.next_word();
        if due {
            self.said = now;
        }
        due
    }
}

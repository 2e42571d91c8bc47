//! Keeps the lease of a channel: PID 1 ends everything if no message comes for that long.

use std::time::{Duration, Instant};

/// Messages in the time of a lease.
const KEEPALIVES: u32 = 4;

#[derive(Debug)]
pub(super) struct Lease {
    every: Duration,
    sent: Instant,
}

impl Lease {
    pub(super) fn new(lease: Duration) -> Self {
        Self { every: lease / KEEPALIVES, sent: Instant::now() }
    }

    pub(super) fn next_keepalive(&self) -> Instant {
        self.sent + self.every
    }

    /// `true`: now is the time, and the next one is counted from here.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let due = now >= self.next_keepalive();
        if due {
            self.sent = now;
        }
        due
    }
}

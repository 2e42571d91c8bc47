//! Limits how many events are sent one by one: a burst, then a steady rate.

use std::time::{Duration, Instant};

/// Events of one kind (opened, or any other) that are sent one by one after a quiet time.
pub(crate) const BURST: u32 = 200;
/// Events of one kind per second that are sent one by one in the long run. A run may last for weeks, and its record
/// should not grow by gigabytes.
pub(crate) const PER_SECOND: u32 = 10;

/// How many events may still be sent one by one.
#[derive(Debug)]
pub(crate) struct RateLimit {
    left: u32,
    since: Option<Instant>,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self { left: BURST, since: None }
    }
}

impl RateLimit {
    pub(crate) fn take(&mut self, now: Instant) -> Option<()> {
        let since = *self.since.get_or_insert(now);
        let seconds = now.saturating_duration_since(since).as_secs();
        if seconds > 0 {
            self.since = Some(since + Duration::from_secs(seconds));
            let more = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(PER_SECOND);
            self.left = self.left.saturating_add(more).min(BURST);
        }
        self.left = self.left.checked_sub(1)?;
        Some(())
    }
}

//! How often something may happen: much at once, and little in the long run.

use std::time::{Duration, Instant};

/// That go out one by one after a time in which little happened: of what is opened, and of all else.
pub(crate) const BURST: u32 = 200;
/// That go out one by one in the long run, in a second, of each of the two. A run may last for weeks, and its
/// record should not be gigabytes of news.
pub(crate) const PER_SECOND: u32 = 10;

/// How many may still go out one by one.
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

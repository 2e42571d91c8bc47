//! Detects the end of a sandbox that the channel does not report: an engine that hangs can hold the channel open after
//! PID 1 is gone.

use std::time::{Duration, Instant};

/// For the last messages of PID 1 to come through an engine.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// A sandbox that was killed and does not end is no longer waited for.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct ExitWatch {
    killed: Option<Instant>,
    gone: Option<Instant>,
}

impl ExitWatch {
    pub(super) fn was_killed(&mut self, now: Instant) {
        self.killed.get_or_insert(now);
    }

    /// The host reports that PID 1 is gone.
    pub(super) fn found_gone(&mut self, now: Instant) {
        self.gone.get_or_insert(now);
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.is_some()
    }

    /// When the wait for its end is over.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let gone = self.gone.map(|at| at + DRAIN_TIMEOUT);
        let killed = self.killed.map(|at| at + KILL_TIMEOUT);
        gone.into_iter().chain(killed).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_killed_is_waited_for_longer_than_what_is_gone() {
        let now = Instant::now();
        let mut watch = ExitWatch::default();
        assert_eq!(watch.deadline(), None);
        watch.was_killed(now);
        watch.was_killed(now + KILL_TIMEOUT);
        assert_eq!(watch.deadline(), Some(now + KILL_TIMEOUT));
        watch.found_gone(now);
        assert_eq!(watch.deadline(), Some(now + DRAIN_TIMEOUT));
    }
}

//! An end that the channel does not tell of: an engine that hangs holds the channel open, and PID 1 is gone.

use std::time::{Duration, Instant};

/// For what PID 1 said last to come through an engine.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// A sandbox that was killed and does not end is no longer waited for.
const DIES_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Absence {
    killed: Option<Instant>,
    gone: Option<Instant>,
}

impl Absence {
    pub(super) fn was_killed(&mut self, now: Instant) {
        self.killed.get_or_insert(now);
    }

    /// The host says that PID 1 is gone.
    pub(super) fn is_gone(&mut self, now: Instant) {
        self.gone.get_or_insert(now);
    }

    pub(super) fn is_known(&self) -> bool {
        self.gone.is_some()
    }

    /// When there is nothing more to wait for.
    pub(super) fn until(&self) -> Option<Instant> {
        let gone = self.gone.map(|at| at + LAST_WORDS);
        let killed = self.killed.map(|at| at + DIES_WITHIN);
        gone.into_iter().chain(killed).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_killed_is_waited_for_longer_than_what_is_gone() {
        let now = Instant::now();
        let mut absence = Absence::default();
        assert_eq!(absence.until(), None);
        absence.was_killed(now);
        absence.was_killed(now + DIES_WITHIN);
        assert_eq!(absence.until(), Some(now + DIES_WITHIN));
        absence.is_gone(now);
        assert_eq!(absence.until(), Some(now + LAST_WORDS));
    }
}

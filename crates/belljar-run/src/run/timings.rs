//! Measures where the time of a launch goes, for `run --timings`.
//!
//! A launch happens on one thread, and the marks are that thread's. Without [`start`] a mark is a look at a flag.

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// A part of a launch, in the order of their happening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Settings,
    Plan,
    Bind,
    Record,
    Boundary,
    Attestation,
    Command,
    Close,
}

impl Phase {
    pub const ALL: [Self; 8] = [
        Self::Settings,
        Self::Plan,
        Self::Bind,
        Self::Record,
        Self::Boundary,
        Self::Attestation,
        Self::Command,
        Self::Close,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Settings => "settings",
            Self::Plan => "plan",
            Self::Bind => "bind",
            Self::Record => "record",
            Self::Boundary => "boundary",
            Self::Attestation => "attestation",
            Self::Command => "command",
            Self::Close => "close",
        }
    }

    pub fn describe(self) -> &'static str {
        match self {
            Self::Settings => "layers of settings read and merged, secrets fetched",
            Self::Plan => "backend selected and asked, plan made",
            Self::Bind => "sources opened and pinned, proxy started",
            Self::Record => "record begun",
            Self::Boundary => "sandbox made, until its first process answers",
            Self::Attestation => "read back and compared, record on disk",
            Self::Command => "from the start of the command to its end",
            Self::Close => "sandbox removed, record closed",
        }
    }
}

/// How long each phase took; the sum, where several backends were tried.
#[derive(Clone, Debug)]
pub struct Timings {
    last: Instant,
    spent: [Duration; Phase::ALL.len()],
}

impl Timings {
    fn new(since: Instant) -> Self {
        Self { last: since, spent: Default::default() }
    }

    fn mark(&mut self, phase: Phase, now: Instant) {
        self.spent[phase as usize] += now.saturating_duration_since(self.last);
        self.last = now;
    }

    pub fn of(&self, phase: Phase) -> Duration {
        self.spent[phase as usize]
    }

    pub fn total(&self) -> Duration {
        self.spent.iter().sum()
    }
}

thread_local! {
    static TIMINGS: RefCell<Option<Timings>> = const { RefCell::new(None) };
}

/// Measures from this moment on.
pub fn start(since: Instant) {
    TIMINGS.set(Some(Timings::new(since)));
}

/// The time since the last mark was spent on this.
pub fn mark(phase: Phase) {
    TIMINGS.with_borrow_mut(|timings| {
        if let Some(timings) = timings {
            timings.mark(phase, Instant::now());
        }
    });
}

/// What was measured, and the end of it.
pub fn take() -> Option<Timings> {
    TIMINGS.take()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_add_up_and_nothing_is_measured_before_the_start() {
        mark(Phase::Bind);
        assert!(take().is_none());
        let begun = Instant::now();
        let after = |ms| begun + Duration::from_millis(ms);
        let mut timings = Timings::new(begun);
        let marks = [(Phase::Plan, 3), (Phase::Bind, 5), (Phase::Plan, 9), (Phase::Bind, 10)];
        marks.into_iter().for_each(|(phase, at)| timings.mark(phase, after(at)));
        assert_eq!(timings.of(Phase::Plan), Duration::from_millis(7));
        assert_eq!(timings.of(Phase::Bind), Duration::from_millis(3));
        assert_eq!(timings.total(), Duration::from_millis(10));
    }

    #[test]
    fn every_phase_has_its_own_place() {
        for (at, phase) in Phase::ALL.into_iter().enumerate() {
            assert_eq!(phase as usize, at);
        }
    }
}

//! Counts denials that repeat a reported one, so that a retrying client is reported once and then as a count.
//!
//! The number of remembered denials is bounded.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use belljar_spec::egress::{DenyReason, EgressDenied, Via};

/// Denials that are remembered. Beyond that the oldest is dropped, and reported anew when it recurs.
const MAX_KNOWN: usize = 256;
/// From the first repetition to the report of its count.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// The same for a denial that keeps recurring.
const MAX_PAUSE: Duration = Duration::from_secs(600);

/// All of a denial but its count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct DenialKey {
    host: String,
    port: Option<u16>,
    via: Via,
    reason: DenyReason,
    detail: Option<String>,
    method: Option<String>,
    path: Option<String>,
}

impl From<EgressDenied> for DenialKey {
    fn from(denied: EgressDenied) -> Self {
        let EgressDenied { host, port, via, reason, detail, method, path, count: _ } = denied;
        Self { host, port, via, reason, detail, method, path }
    }
}

impl DenialKey {
    fn counted(self, count: u64) -> EgressDenied {
        let Self { host, port, via, reason, detail, method, path } = self;
        EgressDenied { host, port, via, reason, detail, method, path, count }
    }
}

#[derive(Debug, Default)]
pub(crate) struct DenialRepeats {
    /// Repetitions of each since its last report.
    known: HashMap<DenialKey, u64>,
    oldest_first: VecDeque<DenialKey>,
    /// Since when there are unreported repetitions.
    since: Option<Instant>,
    last_report: Option<Instant>,
    pause: Duration,
}

impl DenialRepeats {
    /// Counts it if an equal one was reported; otherwise returns it.
    pub(crate) fn count(&mut self, denied: EgressDenied, now: Instant) -> Option<EgressDenied> {
        let (count, key) = (denied.count, DenialKey::from(denied));
        let Some(again) = self.known.get_mut(&key) else { return Some(key.counted(count)) };
        *again = again.saturating_add(count);
        if self.since.is_none() {
            self.since = Some(now);
            let is_quiet = self.last_report.is_none_or(|last| now > last + 2 * self.pause);
            if is_quiet {
                self.pause = FIRST_PAUSE;
            }
        }
        None
    }

    /// Remembers one that is reported now. The one that is dropped for it may have unreported repetitions, which are
    /// returned.
    pub(crate) fn remember(&mut self, denied: &EgressDenied) -> Option<EgressDenied> {
        let key = DenialKey::from(denied.clone());
        self.oldest_first.push_back(key.clone());
        self.known.insert(key, 0);
        if self.known.len() <= MAX_KNOWN {
            return None;
        }
        let evicted = self.oldest_first.pop_front()?;
        let count = self.known.remove(&evicted).filter(|count| *count > 0)?;
        Some(evicted.counted(count))
    }

    /// When the counts are to be reported.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + self.pause)
    }

    /// The counts since the last report.
    pub(crate) fn take(&mut self, now: Instant) -> Vec<EgressDenied> {
        self.since = None;
        self.last_report = Some(now);
        self.pause = (2 * self.pause).clamp(FIRST_PAUSE, MAX_PAUSE);
        let again = self.known.iter_mut().filter(|(_, count)| **count > 0);
        again.map(|(key, count)| key.clone().counted(std::mem::take(count))).collect()
    }

    /// The next of each is reported at once again.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(host: &str, path: &str) -> EgressDenied {
        EgressDenied {
            host: host.to_owned(),
            port: Some(443),
            via: Via::Http,
            reason: DenyReason::RequestNotListed,
            detail: None,
            method: Some("GET".to_owned()),
            path: Some(path.to_owned()),
            count: 1,
        }
    }

    #[test]
    fn equal_denials_are_counted_and_others_are_not() {
        let (mut repeats, now) = (DenialRepeats::default(), Instant::now());
        assert!(repeats.count(denied("a", "/x"), now).is_some());
        assert_eq!(repeats.remember(&denied("a", "/x")), None);
        assert_eq!(repeats.due(), None);
        assert_eq!(repeats.count(denied("a", "/x"), now), None);
        assert_eq!(repeats.count(denied("a", "/x"), now), None);
        assert!(repeats.count(denied("a", "/y"), now).is_some());
        assert_eq!(repeats.due(), Some(now + FIRST_PAUSE));
        assert_eq!(repeats.take(now), [EgressDenied { count: 2, ..denied("a", "/x") }]);
        assert_eq!(repeats.take(now), []);
        // It is still remembered.
        assert_eq!(repeats.count(denied("a", "/x"), now), None);
        repeats.reset();
        assert!(repeats.count(denied("a", "/x"), now).is_some());
    }

    #[test]
    fn remembered_denials_are_bounded_and_no_count_is_lost() {
        let (mut repeats, now) = (DenialRepeats::default(), Instant::now());
        let mut counted = 0;
        for number in 0..10 * MAX_KNOWN {
            let one = denied(&format!("h{number}"), "/");
            counted += repeats.count(one.clone(), now).map_or(0, |one| one.count);
            counted += repeats.remember(&one).map_or(0, |one| one.count);
            assert_eq!(repeats.count(one, now), None);
        }
        assert_eq!((repeats.known.len(), repeats.oldest_first.len()), (MAX_KNOWN, MAX_KNOWN));
        counted += repeats.take(now).iter().map(|one| one.count).sum::<u64>();
        assert_eq!(counted, 20 * MAX_KNOWN as u64);
    }

    #[test]
    fn a_recurring_denial_is_reported_less_and_less_often() {
        let mut repeats = DenialRepeats::default();
        let begin = Instant::now();
        repeats.remember(&denied("a", "/"));
        let mut reported = 0;
        for second in 0..86_400 {
            let now = begin + Duration::from_secs(second);
            repeats.count(denied("a", "/"), now);
            if repeats.due().is_some_and(|due| due <= now) {
                reported += repeats.take(now).len();
            }
        }
        assert!((100..200).contains(&reported), "{reported}");
        // After a quiet time the pause is short again.
        let later = begin + Duration::from_secs(100_000);
        repeats.take(begin + Duration::from_secs(86_400));
        repeats.count(denied("a", "/"), later);
        assert_eq!(repeats.due(), Some(later + FIRST_PAUSE));
    }
}

//! Queues events for the supervisor, with bounds on their number and rate.
//!
//! A run that makes very many requests does not fill the record, and a slow supervisor makes nothing grow here.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_spec::egress::EgressEvent;
use belljar_spec::text::escape;
use tokio::sync::Notify;

use crate::report::merge::MergedEvents;
use crate::report::rate_limit::RateLimit;
use crate::report::repeats::DenialRepeats;

/// Events in the queue of a supervisor that does not read.
const MAX_QUEUED: usize = 1024;
/// For how long equal events are merged, at least.
const WINDOW: Duration = Duration::from_secs(1);
/// The same, at most.
const MAX_WINDOW: Duration = Duration::from_secs(60);
/// Merged events per second in the long run: many at once delay the next ones.
const SUMS_PER_SECOND: u32 = 4;
const MAX_TEXT: usize = 255;

/// A handle to the event queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reporter {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<EventQueue>,
    added: Notify,
}

#[derive(Debug, Default)]
struct EventQueue {
    waiting: VecDeque<EgressEvent>,
    merged: MergedEvents,
    merging_since: Option<Instant>,
    /// When the next merged events may be sent.
    next_sums: Option<Instant>,
    /// A limit of its own: a flood of other events must not hide that a host is about to be reached.
    opened: RateLimit,
    others: RateLimit,
    /// Repetitions of reported denials.
    repeats: DenialRepeats,
}

impl Reporter {
    pub(crate) fn send(&self, mut event: EgressEvent) {
        shorten_texts(&mut event);
        self.state().add(event, Instant::now());
        self.inner.added.notify_one();
    }

    /// Waits for the next event. For one consumer.
    pub(crate) async fn next(&self) -> EgressEvent {
        loop {
            let due = match self.state().next(Instant::now()) {
                NextEvent::Event(event) => return *event,
                NextEvent::WaitUntil(due) => Some(due),
                NextEvent::Empty => None,
            };
            let added = self.inner.added.notified();
            match due {
                None => added.await,
                Some(due) => drop(tokio::time::timeout_at(due.into(), added).await),
            }
        }
    }

    /// Everything that is left, at the end of a run or of its set-up. Later events start anew.
    pub(crate) fn take_all(&self) -> Vec<EgressEvent> {
        let (mut state, now) = (self.state(), Instant::now());
        state.flush(now);
        state.flush_repeats(now);
        state.repeats.reset();
        state.waiting.drain(..).collect()
    }

    fn state(&self) -> MutexGuard<'_, EventQueue> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum NextEvent {
    Event(Box<EgressEvent>),
    WaitUntil(Instant),
    Empty,
}

impl EventQueue {
    fn add(&mut self, event: EgressEvent, now: Instant) {
        let event = match event {
            EgressEvent::Denied(denied) => match self.repeats.count(denied, now) {
                Some(denied) => EgressEvent::Denied(denied),
                None => return,
            },
            other => other,
        };
        let limit = match event {
            EgressEvent::Opened(_) => &mut self.opened,
            _ => &mut self.others,
        };
        if self.waiting.len() >= MAX_QUEUED || limit.take(now).is_none() {
            return self.merge(event, now);
        }
        let evicted = match &event {
            EgressEvent::Denied(denied) => self.repeats.remember(denied),
            _ => None,
        };
        self.waiting.push_back(event);
        if let Some(evicted) = evicted {
            self.merge(EgressEvent::Denied(evicted), now);
        }
    }

    fn merge(&mut self, event: EgressEvent, now: Instant) {
        self.merged.add(event);
        self.merging_since.get_or_insert(now);
    }

    fn next(&mut self, now: Instant) -> NextEvent {
        if let Some(event) = self.waiting.pop_front() {
            return NextEvent::Event(Box::new(event));
        }
        let merged = self
            .merging_since
            .map(|since| self.next_sums.map_or(since + WINDOW, |from| from.max(since + WINDOW)));
        let repeats = self.repeats.due();
        if merged.is_some_and(|due| due <= now) {
            self.flush(now);
        }
        if repeats.is_some_and(|due| due <= now) {
            self.flush_repeats(now);
        }
        match self.waiting.pop_front() {
            Some(event) => NextEvent::Event(Box::new(event)),
            None => merged
                .into_iter()
                .chain(repeats)
                .min()
                .map_or(NextEvent::Empty, NextEvent::WaitUntil),
        }
    }

    fn flush_repeats(&mut self, now: Instant) {
        self.waiting.extend(self.repeats.take(now).into_iter().map(EgressEvent::Denied));
    }

    fn flush(&mut self, now: Instant) {
        self.merging_since = None;
        let before = self.waiting.len();
        self.waiting.extend(self.merged.take());
        let sums = u32::try_from(self.waiting.len() - before).unwrap_or(u32::MAX);
        let pause = (Duration::from_secs(1) / SUMS_PER_SECOND).saturating_mul(sums);
        self.next_sums = Some(now + pause.min(MAX_WINDOW));
    }
}

/// Escapes text from the sandbox, and limits its length, so that it can be shown to people.
pub(crate) fn shorten(text: &str) -> String {
    let mut shown = escape(text.as_bytes());
    if shown.len() > MAX_TEXT {
        let mut end = MAX_TEXT - '…'.len_utf8();
        while !shown.is_char_boundary(end) {
            end -= 1;
        }
        shown.truncate(end);
        shown.push('…');
    }
    shown
}

fn shorten_texts(event: &mut EgressEvent) {
    let shorten_one = |text: &mut String| *text = shorten(text);
    let shorten_all = |texts: [&mut Option<String>; 3]| {
        texts.into_iter().flatten().for_each(|text| *text = shorten(text));
    };
    match event {
        EgressEvent::Opened(opened) => shorten_one(&mut opened.host),
        EgressEvent::Allowed(allowed) => {
            shorten_one(&mut allowed.host);
            shorten_all([&mut allowed.method, &mut allowed.path, &mut allowed.error]);
        }
        EgressEvent::Denied(denied) => {
            shorten_one(&mut denied.host);
            shorten_all([&mut denied.method, &mut denied.path, &mut denied.detail]);
        }
        EgressEvent::BudgetHit(_) | EgressEvent::SecretMasked { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use belljar_spec::egress::{DenyReason, EgressDenied, EgressOpened, Via};

    use super::*;
    use crate::report::rate_limit::{BURST, PER_SECOND};
    use crate::report::repeats::FIRST_PAUSE;

    fn denied(host: &str) -> EgressEvent {
        EgressEvent::Denied(EgressDenied {
            host: host.to_owned(),
            port: Some(443),
            via: Via::Connect,
            reason: DenyReason::NotListed,
            detail: None,
            method: None,
            path: None,
            count: 1,
        })
    }

    fn count(event: &[EgressEvent]) -> u64 {
        let one = |event: &EgressEvent| match event {
            EgressEvent::Denied(denied) => denied.count,
            _ => 0,
        };
        event.iter().map(one).sum()
    }

    #[test]
    fn a_flood_of_events_is_merged_and_none_is_lost() {
        let reporter = Reporter::default();
        for number in 0..100_000 {
            reporter.send(denied(&format!("h{}.example", number % 1000)));
        }
        let event = reporter.take_all();
        assert!(event.len() < 700, "{}", event.len());
        assert_eq!(count(&event), 100_000);
        assert!(reporter.take_all().is_empty());
    }

    #[test]
    fn the_queue_is_bounded_when_the_supervisor_does_not_read() {
        let mut state = EventQueue::default();
        let begin = Instant::now();
        for second in 0..100 {
            for number in 0..150 {
                let host = format!("h{number}.{second}.example");
                state.add(denied(&host), begin + Duration::from_secs(100 * second));
            }
        }
        assert_eq!(state.waiting.len(), MAX_QUEUED);
        state.flush(begin);
        let event: Vec<_> = state.waiting.drain(..).collect();
        assert_eq!(count(&event), 15_000);
    }

    #[test]
    fn merged_events_wait_for_their_window() {
        let mut state = EventQueue::default();
        let now = Instant::now();
        (0..=BURST).for_each(|number| state.add(denied(&format!("h{number}.example")), now));
        (0..BURST).for_each(|_| assert!(matches!(state.next(now), NextEvent::Event(_))));
        assert!(matches!(state.next(now), NextEvent::WaitUntil(due) if due == now + WINDOW));
        assert!(matches!(state.next(now + WINDOW), NextEvent::Event(_)));
        assert!(matches!(state.next(now + WINDOW), NextEvent::Empty));
    }

    fn opened(number: u64) -> EgressEvent {
        let (host, rule) = (format!("h{number}.example"), "*".to_owned());
        let (id, port, via, count) = (number, 443, Via::Connect, 1);
        EgressEvent::Opened(EgressOpened { id, host, port, via, rule, count })
    }

    #[test]
    fn a_flood_does_not_hide_opened_events() {
        let mut state = EventQueue::default();
        let now = Instant::now();
        (0..10_000).for_each(|number| state.add(denied(&format!("h{number}.example")), now));
        state.add(opened(7), now);
        let reported =
            |event: &EgressEvent| matches!(event, EgressEvent::Opened(one) if one.id == 7);
        assert!(state.waiting.iter().any(reported));
        // Beyond its own limit it is counted.
        (0..1000).for_each(|number| state.add(opened(number % 3), now));
        state.flush(now);
        let count = |event: &EgressEvent| match event {
            EgressEvent::Opened(opened) => opened.count,
            _ => 0,
        };
        assert_eq!(state.waiting.iter().map(count).sum::<u64>(), 1001);
        assert!(state.waiting.len() < 2 * BURST as usize + 300);
    }

    #[test]
    fn an_endless_flood_has_a_bounded_event_rate() {
        let mut state = EventQueue::default();
        let begin = Instant::now();
        let (long, mut reported, mut counted) = (600, 0, 0);
        for second in 0..long {
            let now = begin + Duration::from_secs(second);
            for number in 0..500 {
                state.add(denied(&format!("h{number}.{second}.example")), now);
                state.add(opened(number), now);
            }
            while let NextEvent::Event(event) = state.next(now) {
                reported += 1;
                counted += count(&[*event]);
            }
        }
        state.flush(begin + Duration::from_secs(long));
        counted += count(state.waiting.make_contiguous());
        assert_eq!(counted, 500 * long);
        let most = u64::from(2 * PER_SECOND + SUMS_PER_SECOND + 1) * long + 1000;
        assert!(reported < most, "{reported} of at most {most}");
        // Afterwards single events are sent at once again.
        let later = begin + Duration::from_secs(2 * long);
        state.waiting.clear();
        state.add(denied("b.example"), later);
        assert!(matches!(state.next(later), NextEvent::Event(_)));
    }

    #[test]
    fn the_first_of_equal_denials_is_reported_at_once_and_the_others_as_a_count() {
        let (mut state, now) = (EventQueue::default(), Instant::now());
        (0..5).for_each(|_| state.add(denied("a.example"), now));
        state.add(denied("b.example"), now);
        let reported: Vec<EgressEvent> = std::iter::from_fn(|| match state.next(now) {
            NextEvent::Event(event) => Some(*event),
            _ => None,
        })
        .collect();
        assert_eq!(reported, [denied("a.example"), denied("b.example")]);
        let due = now + FIRST_PAUSE;
        assert!(matches!(state.next(now), NextEvent::WaitUntil(at) if at == due));
        let NextEvent::Event(sum) = state.next(due) else { panic!() };
        assert!(
            matches!(&*sum, EgressEvent::Denied(sum) if sum.host == "a.example" && sum.count == 4)
        );
        assert!(matches!(state.next(due), NextEvent::Empty));
    }

    #[test]
    fn at_the_end_counts_are_reported_and_later_denials_start_anew() {
        let reporter = Reporter::default();
        (0..3).for_each(|_| reporter.send(denied("a.example")));
        let event = reporter.take_all();
        assert_eq!((event.len(), count(&event)), (2, 3));
        reporter.send(denied("a.example"));
        assert!(matches!(reporter.state().next(Instant::now()), NextEvent::Event(_)));
    }

    #[test]
    fn a_text_is_escaped_and_shortened() {
        assert_eq!(shorten("a\nb\x1b[2J"), "a\\u{a}b\\u{1b}[2J");
        let long = shorten(&"ä".repeat(1000));
        assert!(long.len() <= MAX_TEXT && long.ends_with("ä…"), "{long}");
        assert_eq!(shorten(&shorten("\0")), shorten("\0"));
    }
}

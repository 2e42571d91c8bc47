//! What the proxy tells the supervisor, bounded: a run that asks for very much fills no record, and a
//! supervisor that is slow to listen makes nothing grow here.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_spec::egress::EgressNews;
use belljar_spec::text::escape;
use tokio::sync::Notify;

use crate::report::merge::Merged;
use crate::report::rate_limit::Quota;
use crate::report::repeats::Repeats;

/// That wait for a supervisor that does not listen.
const MOST_WAITING: usize = 1024;
/// For which equal ones are put together, at least.
const WINDOW: Duration = Duration::from_secs(1);
/// The same, at most.
const LONGEST_WINDOW: Duration = Duration::from_secs(60);
/// Sums in a second, in the long run: many at once are paid for with the time until the next.
const SUMS: u32 = 4;
const LONGEST_TEXT: usize = 255;

/// Where news go.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reporter {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    more: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<EgressNews>,
    merged: Merged,
    merging_since: Option<Instant>,
    /// When the next sums may go out.
    sums_from: Option<Instant>,
    /// Apart from the others: no flood of those may hide that something is about to be reached.
    opened: Quota,
    others: Quota,
    /// Of denials that were told.
    repeats: Repeats,
}

impl Reporter {
    pub(crate) fn tell(&self, mut news: EgressNews) {
        cut_texts(&mut news);
        self.state().add(news, Instant::now());
        self.shared.more.notify_one();
    }

    /// The next one for the supervisor. For one listener.
    pub(crate) async fn next(&self) -> EgressNews {
        loop {
            let due = match self.state().next(Instant::now()) {
                Next::News(news) => return *news,
                Next::At(due) => Some(due),
                Next::Nothing => None,
            };
            let more = self.shared.more.notified();
            match due {
                None => more.await,
                Some(due) => drop(tokio::time::timeout_at(due.into(), more).await),
            }
        }
    }

    /// All that is left, at the end of a run or of its set-up. What comes after it stands for itself.
    pub(crate) fn take_all(&self) -> Vec<EgressNews> {
        let (mut state, now) = (self.state(), Instant::now());
        state.flush(now);
        state.flush_repeats(now);
        state.repeats.forget();
        state.waiting.drain(..).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Next {
    News(Box<EgressNews>),
    At(Instant),
    Nothing,
}

impl State {
    fn add(&mut self, news: EgressNews, now: Instant) {
        let news = match news {
            EgressNews::Denied(denied) => match self.repeats.count(denied, now) {
                Some(denied) => EgressNews::Denied(denied),
                None => return,
            },
            other => other,
        };
        let quota = match news {
            EgressNews::Opened(_) => &mut self.opened,
            _ => &mut self.others,
        };
        if self.waiting.len() >= MOST_WAITING || quota.take(now).is_none() {
            return self.merge(news, now);
        }
        let forgotten = match &news {
            EgressNews::Denied(denied) => self.repeats.remember(denied),
            _ => None,
        };
        self.waiting.push_back(news);
        if let Some(forgotten) = forgotten {
            self.merge(EgressNews::Denied(forgotten), now);
        }
    }

    fn merge(&mut self, news: EgressNews, now: Instant) {
        self.merged.add(news);
        self.merging_since.get_or_insert(now);
    }

    fn next(&mut self, now: Instant) -> Next {
        if let Some(news) = self.waiting.pop_front() {
            return Next::News(Box::new(news));
        }
        let merged = self
            .merging_since
            .map(|since| self.sums_from.map_or(since + WINDOW, |from| from.max(since + WINDOW)));
        let repeats = self.repeats.due();
        if merged.is_some_and(|due| due <= now) {
            self.flush(now);
        }
        if repeats.is_some_and(|due| due <= now) {
            self.flush_repeats(now);
        }
        match self.waiting.pop_front() {
            Some(news) => Next::News(Box::new(news)),
            None => merged.into_iter().chain(repeats).min().map_or(Next::Nothing, Next::At),
        }
    }

    fn flush_repeats(&mut self, now: Instant) {
        self.waiting.extend(self.repeats.take(now).into_iter().map(EgressNews::Denied));
    }

    fn flush(&mut self, now: Instant) {
        self.merging_since = None;
        let before = self.waiting.len();
        self.waiting.extend(self.merged.take());
        let sums = u32::try_from(self.waiting.len() - before).unwrap_or(u32::MAX);
        let pause = (Duration::from_secs(1) / SUMS).saturating_mul(sums);
        self.sums_from = Some(now + pause.min(LONGEST_WINDOW));
    }
}

/// Texts from inside are shown to people: escaped, and no longer than a name can be.
pub(crate) fn cut(text: &str) -> String {
    let mut shown = escape(text.as_bytes());
    if shown.len() > LONGEST_TEXT {
        let mut end = LONGEST_TEXT - '…'.len_utf8();
        while !shown.is_char_boundary(end) {
            end -= 1;
        }
        shown.truncate(end);
        shown.push('…');
    }
    shown
}

fn cut_texts(news: &mut EgressNews) {
    let cut_one = |text: &mut String| *text = cut(text);
    let cut_all = |texts: [&mut Option<String>; 3]| {
        texts.into_iter().flatten().for_each(|text| *text = cut(text));
    };
    match news {
        EgressNews::Opened(opened) => cut_one(&mut opened.host),
        EgressNews::Allowed(allowed) => {
            cut_one(&mut allowed.host);
            cut_all([&mut allowed.method, &mut allowed.path, &mut allowed.error]);
        }
        EgressNews::Denied(denied) => {
            cut_one(&mut denied.host);
            cut_all([&mut denied.method, &mut denied.path, &mut denied.detail]);
        }
        EgressNews::BudgetHit(_) | EgressNews::SecretMasked { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use belljar_spec::egress::{DenyReason, EgressDenied, EgressOpened, Via};

    use super::*;
    use crate::report::rate_limit::{LASTING, SINGLY};
    use crate::report::repeats::FIRST_PAUSE;

    fn denied(host: &str) -> EgressNews {
        EgressNews::Denied(EgressDenied {
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

    fn count(news: &[EgressNews]) -> u64 {
        let one = |news: &EgressNews| match news {
            EgressNews::Denied(denied) => denied.count,
            _ => 0,
        };
        news.iter().map(one).sum()
    }

    #[test]
    fn a_flood_is_put_together_and_none_is_lost() {
        let reporter = Reporter::default();
        for number in 0..100_000 {
            reporter.tell(denied(&format!("h{}.example", number % 1000)));
        }
        let news = reporter.take_all();
        assert!(news.len() < 700, "{}", news.len());
        assert_eq!(count(&news), 100_000);
        assert!(reporter.take_all().is_empty());
    }

    #[test]
    fn a_supervisor_that_does_not_listen_makes_nothing_grow() {
        let mut state = State::default();
        let begin = Instant::now();
        for second in 0..100 {
            for number in 0..150 {
                let host = format!("h{number}.{second}.example");
                state.add(denied(&host), begin + Duration::from_secs(100 * second));
            }
        }
        assert_eq!(state.waiting.len(), MOST_WAITING);
        state.flush(begin);
        let news: Vec<_> = state.waiting.drain(..).collect();
        assert_eq!(count(&news), 15_000);
    }

    #[test]
    fn what_was_put_together_waits_for_its_second() {
        let mut state = State::default();
        let now = Instant::now();
        (0..=SINGLY).for_each(|number| state.add(denied(&format!("h{number}.example")), now));
        (0..SINGLY).for_each(|_| assert!(matches!(state.next(now), Next::News(_))));
        assert!(matches!(state.next(now), Next::At(due) if due == now + WINDOW));
        assert!(matches!(state.next(now + WINDOW), Next::News(_)));
        assert!(matches!(state.next(now + WINDOW), Next::Nothing));
    }

    fn opened(number: u64) -> EgressNews {
        let (host, rule) = (format!("h{number}.example"), "*".to_owned());
        let (id, port, via, count) = (number, 443, Via::Connect, 1);
        EgressNews::Opened(EgressOpened { id, host, port, via, rule, count })
    }

    #[test]
    fn no_flood_hides_what_is_opened() {
        let mut state = State::default();
        let now = Instant::now();
        (0..10_000).for_each(|number| state.add(denied(&format!("h{number}.example")), now));
        state.add(opened(7), now);
        let told = |news: &EgressNews| matches!(news, EgressNews::Opened(one) if one.id == 7);
        assert!(state.waiting.iter().any(told));
        // And beyond its own quota it is counted.
        (0..1000).for_each(|number| state.add(opened(number % 3), now));
        state.flush(now);
        let count = |news: &EgressNews| match news {
            EgressNews::Opened(opened) => opened.count,
            _ => 0,
        };
        assert_eq!(state.waiting.iter().map(count).sum::<u64>(), 1001);
        assert!(state.waiting.len() < 2 * SINGLY as usize + 300);
    }

    #[test]
    fn a_flood_without_end_makes_no_record_without_end() {
        let mut state = State::default();
        let begin = Instant::now();
        let (long, mut told, mut counted) = (600, 0, 0);
        for second in 0..long {
            let now = begin + Duration::from_secs(second);
            for number in 0..500 {
                state.add(denied(&format!("h{number}.{second}.example")), now);
                state.add(opened(number), now);
            }
            while let Next::News(news) = state.next(now) {
                told += 1;
                counted += count(&[*news]);
            }
        }
        state.flush(begin + Duration::from_secs(long));
        counted += count(state.waiting.make_contiguous());
        assert_eq!(counted, 500 * long);
        let most = u64::from(2 * LASTING + SUMS + 1) * long + 1000;
        assert!(told < most, "{told} of at most {most}");
        // When it is over, single ones are told at once again.
        let later = begin + Duration::from_secs(2 * long);
        state.waiting.clear();
        state.add(denied("b.example"), later);
        assert!(matches!(state.next(later), Next::News(_)));
    }

    #[test]
    fn the_first_of_equal_denials_is_told_at_once_and_the_others_by_their_count() {
        let (mut state, now) = (State::default(), Instant::now());
        (0..5).for_each(|_| state.add(denied("a.example"), now));
        state.add(denied("b.example"), now);
        let told: Vec<EgressNews> = std::iter::from_fn(|| match state.next(now) {
            Next::News(news) => Some(*news),
            _ => None,
        })
        .collect();
        assert_eq!(told, [denied("a.example"), denied("b.example")]);
        let due = now + FIRST_PAUSE;
        assert!(matches!(state.next(now), Next::At(at) if at == due));
        let Next::News(sum) = state.next(due) else { panic!() };
        assert!(
            matches!(&*sum, EgressNews::Denied(sum) if sum.host == "a.example" && sum.count == 4)
        );
        assert!(matches!(state.next(due), Next::Nothing));
    }

    #[test]
    fn at_the_end_the_counts_are_told_and_what_comes_then_is_told_at_once() {
        let reporter = Reporter::default();
        (0..3).for_each(|_| reporter.tell(denied("a.example")));
        let news = reporter.take_all();
        assert_eq!((news.len(), count(&news)), (2, 3));
        reporter.tell(denied("a.example"));
        assert!(matches!(reporter.state().next(Instant::now()), Next::News(_)));
    }

    #[test]
    fn a_text_is_escaped_and_cut() {
        assert_eq!(cut("a\nb\x1b[2J"), "a\\u{a}b\\u{1b}[2J");
        let long = cut(&"ä".repeat(1000));
        assert!(long.len() <= LONGEST_TEXT && long.ends_with("ä…"), "{long}");
        assert_eq!(cut(&cut("\0")), cut("\0"));
    }
}

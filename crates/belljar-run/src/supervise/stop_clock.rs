//! The clocks that end a run: its deadline, its idle limit, and the grace after a request to stop.

use std::time::{Duration, Instant};

use belljar_spec::{Plan, Terminal};

use super::SuperviseError;
use super::event_source::{EventSource, PollSet};
use super::libc_signal::{HUP, INT, QUIT, TERM};

/// A kill that did not end it is repeated.
const KILL_AGAIN: Duration = Duration::from_secs(1);

/// Why a run is being ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopCause {
    Deadline,
    /// It wrote nothing for too long.
    Idle,
    /// A kept sandbox was not renewed.
    Expired,
    DiskFull,
    /// The agent's login could not be refreshed.
    LoginExpired,
    /// Belljar received a signal, or a request to stop.
    Requested {
        signal: i32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    Forward,
    ForwardToAll,
    Kill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    AskToStop,
    Kill,
}

#[derive(Debug)]
pub(super) struct StopClock {
    begun: Instant,
    deadline: Option<Instant>,
    grace: Duration,
    idle: Option<Duration>,
    /// When a kept sandbox ends.
    expires: Option<Instant>,
    last_activity: Instant,
    /// When grace is over.
    kill_at: Option<Instant>,
    interrupted: bool,
    stopping: Option<StopCause>,
    over: bool,
    terminal: Terminal,
}

impl StopClock {
    pub(super) fn new(plan: &Plan, begun: Instant) -> Self {
        Self {
            begun,
            deadline: plan.limits.time.map(|limit| begun + limit),
            grace: plan.limits.stop_timeout,
            idle: plan.limits.idle,
            expires: None,
            last_activity: begun,
            kill_at: None,
            interrupted: false,
            stopping: None,
            over: false,
            terminal: plan.command.terminal,
        }
    }

    pub(super) fn never_idle(&mut self) {
        self.idle = None;
    }

    /// Lets the run end after this time, in place of what was set before; `None` is never.
    pub(super) fn renew(&mut self, ttl: Option<Duration>, now: Instant) {
        self.expires = ttl.and_then(|ttl| now.checked_add(ttl));
    }

    /// What is left of the time that was set.
    pub(super) fn time_to_live(&self, now: Instant) -> Option<Duration> {
        self.expires.map(|at| at.saturating_duration_since(now))
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn stopping(&self) -> Option<StopCause> {
        self.stopping
    }

    /// Asked to end and not over yet: nothing new begins. A first interrupt is the command's to answer.
    pub(super) fn is_stopping(&self) -> bool {
        self.kill_at.is_some()
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Another grace than the run's own. `true`: it is being stopped already, and will not take longer than
    /// that now.
    pub(super) fn shorten_grace(&mut self, grace: Option<Duration>, now: Instant) -> bool {
        self.grace = grace.unwrap_or(self.grace);
        match &mut self.kill_at {
            Some(at) => {
                *at = (*at).min(now + self.grace);
                true
            }
            None => false,
        }
    }

    /// Whoever the run was bound to is gone.
    pub(super) fn owner_is_gone(&mut self) {
        self.stopping = self.stopping.or(Some(StopCause::Requested { signal: HUP }));
    }

    /// Everything inside is being killed. What still stands after that is killed again.
    pub(super) fn killed(&mut self, now: Instant) {
        let again = now + KILL_AGAIN;
        self.kill_at = Some(self.kill_at.map_or(again, |at| at.min(again)));
    }

    pub(super) fn end(&mut self) {
        self.over = true;
        self.deadline = None;
        self.idle = None;
        self.expires = None;
        self.kill_at = None;
    }

    pub(super) fn activity(&mut self, now: Instant) {
        self.last_activity = now;
    }

    fn next_deadline(&self) -> Option<Instant> {
        let idle = self.idle.map(|idle| self.last_activity + idle);
        [self.deadline, idle, self.expires, self.kill_at].into_iter().flatten().min()
    }

    /// An interrupt is the command's to answer, once. To terminate or hang up is the end, after grace.
    pub(super) fn stop_requested(&mut self, signal: i32, now: Instant) -> Reaction {
        match signal {
            // With a terminal the inner one turns ^C into a signal; this one came from elsewhere.
            INT | QUIT if !self.interrupted || self.terminal == Terminal::Pty => {
                self.interrupted = true;
                self.stopping = self.stopping.or(Some(StopCause::Requested { signal }));
                Reaction::Forward
            }
            TERM | HUP if self.kill_at.is_none() => {
                self.stopping = self.stopping.or(Some(StopCause::Requested { signal }));
                self.kill_at = Some(now + self.grace);
                Reaction::ForwardToAll
            }
            _ => Reaction::Kill,
        }
    }

    fn due(&mut self, now: Instant) -> Option<Due> {
        if self.over {
            return None;
        }
        if self.kill_at.is_some_and(|at| now >= at) {
            self.kill_at = Some(now + KILL_AGAIN);
            return Some(Due::Kill);
        }
        if self.deadline.is_some_and(|at| now >= at) {
            self.deadline = None;
            self.stopping = Some(StopCause::Deadline);
            self.kill_at = Some(now + self.grace);
            return Some(Due::AskToStop);
        }
        if self.expires.is_some_and(|at| now >= at) {
            self.expires = None;
            self.stopping = self.stopping.or(Some(StopCause::Expired));
            self.kill_at = Some(now + self.grace);
            return Some(Due::AskToStop);
        }
        if self.idle.is_some_and(|idle| now >= self.last_activity + idle) {
            self.idle = None;
            self.stopping = self.stopping.or(Some(StopCause::Idle));
            self.kill_at = Some(now + self.grace);
            return Some(Due::AskToStop);
        }
        None
    }
}

impl EventSource for StopClock {
    type Parts<'p> = ();
    type Event = Due;

    fn watch<'a>(&'a self, _: &mut PollSet<'a>) {}

    fn deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }

    fn take_turn(&mut self, now: Instant, (): ()) -> Result<Vec<Due>, SuperviseError> {
        Ok(self.due(now).into_iter().collect())
    }
}

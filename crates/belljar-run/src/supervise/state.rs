//! What the run is allowed to do now, and what is due next.

use std::time::{Duration, Instant};

use belljar_spec::{Plan, Terminal};

use super::libc_signal::{HUP, INT, QUIT, TERM};

/// A kill that did not end it is repeated.
const KILL_AGAIN: Duration = Duration::from_secs(1);

/// Why the run is being ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopping {
    Deadline,
    /// It said nothing for too long.
    Idle,
    DiskFull,
    /// Somebody sent belljar a signal.
    Asked {
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
    Nothing,
    AskToStop,
    Kill,
}

#[derive(Debug)]
pub(super) struct State {
    begun: Instant,
    deadline: Option<Instant>,
    grace: Duration,
    idle: Option<Duration>,
    heard: Instant,
    /// When grace is over.
    kill_at: Option<Instant>,
    interrupted: bool,
    stopping: Option<Stopping>,
    over: bool,
    terminal: Terminal,
}

impl State {
    pub(super) fn new(plan: &Plan, begun: Instant) -> Self {
        Self {
            begun,
            deadline: plan.limits.time.map(|limit| begun + limit),
            grace: plan.limits.stop_timeout,
            idle: plan.limits.idle,
            heard: begun,
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

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn stopping(&self) -> Option<Stopping> {
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
        self.stopping = self.stopping.or(Some(Stopping::Asked { signal: HUP }));
    }

    pub(super) fn end(&mut self) {
        self.over = true;
        self.deadline = None;
        self.idle = None;
        self.kill_at = None;
    }

    pub(super) fn something_happened(&mut self, now: Instant) {
        self.heard = now;
    }

    pub(super) fn next_moment(&self) -> Option<Instant> {
        let idle = self.idle.map(|idle| self.heard + idle);
        [self.deadline, idle, self.kill_at].into_iter().flatten().min()
    }

    /// An interrupt is the command's to answer, once. To terminate or hang up is the end, after grace.
    pub(super) fn asked_to_stop(&mut self, signal: i32, now: Instant) -> Reaction {
        match signal {
            // With a terminal the inner one turns ^C into a signal; this one came from elsewhere.
            INT | QUIT if !self.interrupted || self.terminal == Terminal::Pty => {
                self.interrupted = true;
                self.stopping = self.stopping.or(Some(Stopping::Asked { signal }));
                Reaction::Forward
            }
            TERM | HUP if self.kill_at.is_none() => {
                self.stopping = self.stopping.or(Some(Stopping::Asked { signal }));
                self.kill_at = Some(now + self.grace);
                Reaction::ForwardToAll
            }
            _ => Reaction::Kill,
        }
    }

    pub(super) fn due(&mut self, now: Instant) -> Due {
        if self.over {
            return Due::Nothing;
        }
        if self.kill_at.is_some_and(|at| now >= at) {
            self.kill_at = Some(now + KILL_AGAIN);
            return Due::Kill;
        }
        if self.deadline.is_some_and(|at| now >= at) {
            self.deadline = None;
            self.stopping = Some(Stopping::Deadline);
            self.kill_at = Some(now + self.grace);
            return Due::AskToStop;
        }
        if self.idle.is_some_and(|idle| now >= self.heard + idle) {
            self.idle = None;
            self.stopping = self.stopping.or(Some(Stopping::Idle));
            self.kill_at = Some(now + self.grace);
            return Due::AskToStop;
        }
        Due::Nothing
    }
}

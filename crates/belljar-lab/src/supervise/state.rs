//! What the run is allowed to do now, and what is due next.

use std::time::{Duration, Instant};

use belljar_spec::{Plan, Terminal};

use super::libc_signal::{HUP, INT, QUIT, TERM};

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

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn stopping(&self) -> Option<Stopping> {
        self.stopping
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
            self.kill_at = None;
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

//! Runs an agent, again and again, in a sandbox that has no command of its own.
//!
//! The decisions are [`crate::loop_policy`]'s; here they are carried out, one step after the other, within the
//! supervisor's loop. Set-up, agent and check are commands like those of `exec`: attested, recorded, ended with all
//! that they started.

mod agent_recorder;
mod checkpoint_task;
mod commit_iteration;
mod spawn;
mod state_machine;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use belljar_linux::file_clock::Arrival;
use belljar_spec::{
    AgentReport, AgentWork, Budget, Exit, ExitSource, Failure, Moment, ResumeKind, ResumeOrigin,
    SessionTotals, StopReason, Tally,
};
use rustix::event::PollFd;

pub(super) use agent_recorder::AgentRecorder;
pub(super) use checkpoint_task::PendingCheckpoint;

use crate::agent::{Adapter, SessionUse, Summary, adapter};
use crate::loop_policy::{IterationOutcome, Loop};
use belljar_workspace::checkpoint::Subject;

/// What a driver is told apart from the run's plan.
#[derive(Debug)]
pub(crate) struct AgentLoopOptions {
    pub(crate) work: AgentWork,
    pub(crate) birth: Option<Box<ResumeOrigin>>,
    pub(crate) subject: Subject,
    /// The tree that the agent works on, as `until` looks at it.
    pub(crate) workspace: Option<WorkTree>,
    /// Nothing of the agent's was heard for so long.
    pub(crate) idle: Option<Duration>,
}

/// Where the workspace is to be looked at from outside.
#[derive(Clone, Debug)]
pub(crate) enum WorkTree {
    /// The index of a layered tree in [`Subject::trees`].
    Layered(usize),
    Real(PathBuf),
}

/// How the loop ended.
#[derive(Clone, Debug)]
pub(crate) struct DriveEnd {
    pub(crate) reason: StopReason,
    pub(crate) exit: Exit,
    pub(crate) report: AgentReport,
}

/// What is going on.
#[derive(Debug)]
enum Step {
    /// Nothing was started yet.
    Begin,
    SetUp {
        exec: u32,
    },
    /// The loop is asked.
    Between,
    Pausing {
        until: Instant,
    },
    Agent(Iteration),
    /// `until` is being found out by a command.
    Check {
        exec: u32,
        ended: Box<AgentEnded>,
    },
    Checkpoint {
        keeping: PendingCheckpoint,
        ended: Box<AgentEnded>,
    },
    Over,
}

/// One run of the agent.
#[derive(Debug)]
struct Iteration {
    number: u32,
    exec: u32,
    begun: Instant,
    /// Before it could change anything, by the clock of files.
    since: Moment,
    cut: Option<Cut>,
}

/// Why belljar ended an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Idle,
    Budget(Budget),
    /// It has told its result, and does not go.
    Lingers,
}

/// An agent that has ended, on the way to its checkpoint.
#[derive(Debug)]
struct AgentEnded {
    iteration: Iteration,
    failure: Option<Failure>,
    summary: Summary,
    totals: SessionTotals,
    dropped: u64,
    wall: Duration,
    done: Option<bool>,
}

pub(crate) struct Driver {
    orders: AgentLoopOptions,
    adapter: &'static dyn Adapter,
    state: Loop,
    begun: Instant,
    step: Step,
    /// Of the iteration before, here or in the run that this one continues.
    session: Option<String>,
    /// What the agent said of that session as a whole.
    totals: SessionTotals,
    message: Option<String>,
    /// A command of its own ended just now.
    over: Option<state_machine::OwnEnd>,
    end: Option<DriveEnd>,
    /// What is to be told of an end that came from elsewhere.
    why: Option<String>,
}

impl Driver {
    pub(crate) fn new(orders: AgentLoopOptions) -> Self {
        let birth = orders.birth.as_deref();
        let tally = birth.map(|birth| birth.tally.clone()).unwrap_or_default();
        Self {
            adapter: adapter(orders.work.agent.kind),
            state: Loop::new(&orders.work, tally),
            begun: Instant::now(),
            step: Step::Begin,
            session: birth.and_then(|birth| birth.session.clone()),
            totals: birth.map(|birth| birth.session_totals).unwrap_or_default(),
            message: None,
            over: None,
            end: None,
            why: None,
            orders,
        }
    }

    /// Whether this command is one of the driver's.
    pub(super) fn owns(&self, exec: u32) -> bool {
        match &self.step {
            Step::SetUp { exec: own } | Step::Check { exec: own, .. } => *own == exec,
            Step::Agent(iteration) => iteration.exec == exec,
            Step::Begin
            | Step::Between
            | Step::Pausing { .. }
            | Step::Checkpoint { .. }
            | Step::Over => false,
        }
    }

    pub(super) fn poll_fd(&self) -> Option<PollFd<'_>> {
        match &self.step {
            Step::Checkpoint { keeping, .. } => Some(keeping.poll_fd()),
            _ => None,
        }
    }

    /// When something is due that nothing else tells of. `ear` is the agent's.
    pub(super) fn next_moment(&self, ear: Option<&AgentRecorder>) -> Option<Instant> {
        match &self.step {
            Step::Begin | Step::Between => Some(Instant::now()),
            Step::Pausing { until } => Some(*until),
            Step::Agent(Iteration { cut: None, .. }) => {
                let silent = ear.and_then(|ear| match ear.finished() {
                    Some(_) => Some(ear.heard() + state_machine::LINGERS),
                    None => self.orders.idle.map(|idle| ear.heard() + idle),
                });
                let left = self.state.time_left(self.begun.elapsed());
                let up = left.map(|left| Instant::now() + left);
                [silent, up].into_iter().flatten().min()
            }
            _ => None,
        }
    }

    /// A checkpoint that is being taken is given up.
    pub(super) fn cancel(&self) {
        self.orders.subject.cancel.store(true, Ordering::Relaxed);
    }

    /// Which session the next iteration works in.
    fn session_use(&self, new: String) -> SessionUse {
        use belljar_spec::manifest::SessionMode;
        let is_first = self.state.run_iterations() == 0;
        let birth = self.orders.birth.as_deref().map(|birth| birth.how);
        match (self.orders.work.repeat.session, &self.session, birth) {
            (SessionMode::Fresh, _, _) | (_, None, _) => SessionUse::New { id: new },
            (SessionMode::Continue, Some(id), Some(ResumeKind::Fork)) if is_first => {
                SessionUse::Fork { id: id.clone() }
            }
            (SessionMode::Continue, Some(id), _) => SessionUse::Continue { id: id.clone() },
        }
    }

    fn report(&self, why: String) -> AgentReport {
        AgentReport {
            tally: self.tally(),
            own_iterations: self.state.run_iterations(),
            why,
            message: self.message.clone(),
        }
    }

    fn tally(&self) -> Tally {
        self.state.tally().clone()
    }

    /// The loop came to its end by itself.
    fn stopped(&mut self, reason: StopReason, why: String) {
        let once = self.orders.work.repeat.is_once() && self.state.run_iterations() == 1;
        let failure = self.state.last_failure();
        let by_us = |code| Exit::of_belljar(code, ExitSource::Policy);
        // One run of the agent ends as the agent did; a loop has an end of its own.
        let (reason, exit) = match (reason, once, failure) {
            (StopReason::MaxIterations, true, None) => (StopReason::Exited, by_us(0)),
            // One that ends well and without a result has failed all the same.
            (StopReason::MaxIterations, true, Some(Failure::Exit { exit }))
                if exit.code != Some(0) =>
            {
                (StopReason::Exited, *exit)
            }
            (StopReason::MaxIterations, true, Some(Failure::Idle)) => (StopReason::Idle, by_us(1)),
            (StopReason::MaxIterations, true, Some(Failure::Budget { what })) => {
                (crate::loop_policy::reason_of(*what), by_us(1))
            }
            (StopReason::MaxIterations, true, Some(_)) => (StopReason::Exited, by_us(1)),
            (StopReason::Done, ..) => (reason, by_us(0)),
            // None was asked for.
            (StopReason::MaxIterations, ..)
                if self.orders.work.repeat.max_iterations == Some(0) =>
            {
                (reason, by_us(0))
            }
            (StopReason::MaxIterations, _, None) if self.orders.work.repeat.until.is_none() => {
                (reason, by_us(0))
            }
            (StopReason::MaxTime, ..) => {
                (reason, Exit::of_belljar(belljar_spec::EXIT_DEADLINE, ExitSource::Deadline))
            }
            _ => (reason, by_us(1)),
        };
        self.end = Some(DriveEnd { reason, exit, report: self.report(why) });
        self.step = Step::Over;
    }

    /// What is known when the run ends, whoever ended it.
    pub(super) fn into_end(self) -> (Option<DriveEnd>, AgentReport) {
        let why = match &self.step {
            Step::Over => String::new(),
            Step::SetUp { .. } | Step::Begin => "ended before the first iteration".to_owned(),
            Step::Agent(iteration) => format!("ended in iteration {}", iteration.number),
            Step::Check { ended, .. } | Step::Checkpoint { ended, .. } => {
                format!("ended before the checkpoint of iteration {}", ended.iteration.number)
            }
            Step::Between | Step::Pausing { .. } => "ended between two iterations".to_owned(),
        };
        let report = self.report(self.why.clone().unwrap_or(why));
        (self.end, report)
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("state", &self.state).field("step", &self.step).finish()
    }
}

impl AgentEnded {
    fn ended(&self, changed: u64, elapsed: Duration) -> IterationOutcome {
        IterationOutcome {
            failure: self.failure.clone(),
            turns: self.summary.turns,
            usage: self.summary.usage,
            changed,
            done: self.done,
            elapsed,
        }
    }
}

/// The moment before an iteration begins, by the clock that files carry.
pub(super) fn before_now() -> Moment {
    Arrival::now().passed()
}

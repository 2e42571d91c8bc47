//! Runs an agent in iterations, in a sandbox that has no main command.
//!
//! [`crate::loop_policy`] decides; here its decisions are carried out, step by step, as one source of the supervisor's
//! loop. Set-up, agent and check are commands like those of `exec`: attested, recorded, and ended with all that they
//! started.

mod agent_recorder;
mod checkpoint_task;
mod commit_iteration;
mod loop_source;
mod state_machine;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use belljar_bind::file_clock::Arrival;
use belljar_spec::{
    AgentReport, AgentWork, Budget, Exit, ExitSource, Failure, Moment, ResumeKind, ResumeOrigin,
    SessionTotals, StopReason, counted,
};
use rustix::event::PollFd;

pub(super) use agent_recorder::AgentRecorder;
pub(super) use checkpoint_task::PendingCheckpoint;
pub(super) use loop_source::{AgentParts, LoopEnded};

use crate::agent::{Adapter, Remaining, SessionUse, Summary, adapter_for};
use crate::loop_policy::{IterationOutcome, Loop};
use belljar_workspace::FileVersion;
use belljar_workspace::checkpoint::Subject;

/// What an agent's loop needs besides the run's plan.
#[derive(Debug)]
pub(crate) struct AgentLoopOptions {
    pub(crate) work: AgentWork,
    pub(crate) resumed_from: Option<Box<ResumeOrigin>>,
    pub(crate) subject: Subject,
    /// The tree that the agent works on, as `until` looks at it.
    pub(crate) workspace: Option<WorkTree>,
    /// How long an agent may go without an event.
    pub(crate) idle: Option<Duration>,
}

/// Where the workspace is, as seen from outside.
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

/// What the loop is doing.
#[derive(Debug)]
enum LoopStep {
    /// Nothing was started yet.
    Begin,
    SetUp {
        exec: u32,
    },
    /// The policy decides next.
    Between,
    Pausing {
        until: Instant,
    },
    Agent(Iteration),
    /// A command finds out whether `until` holds.
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
    /// Before it could change anything, by the clock of the file system.
    since: Moment,
    cut: Option<Cut>,
    /// What the agent was told that it may use.
    remaining: Remaining,
    /// How often memory had run out in the sandbox before it.
    oom_kills: u64,
}

/// Why belljar ended an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Idle,
    Budget(Budget),
    /// It reported its result, and does not exit.
    Lingering,
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
    options: AgentLoopOptions,
    adapter: &'static dyn Adapter,
    state: Loop,
    begun: Instant,
    step: LoopStep,
    /// Of the iteration before, here or in the run that this one continues.
    session: Option<String>,
    /// What the agent reported for that session as a whole.
    totals: SessionTotals,
    message: Option<String>,
    /// The file of `until`, as it was before the first iteration.
    leftover: Option<FileVersion>,
    /// A command of the loop ended just now.
    ended: Option<state_machine::LoopTaskEnd>,
    end: Option<DriveEnd>,
    /// The reason to report for an end that did not come from the loop.
    why: Option<String>,
    /// When it needs a turn that no descriptor announces.
    wake_at: Option<Instant>,
}

impl Driver {
    pub(crate) fn new(options: AgentLoopOptions) -> Self {
        let origin = options.resumed_from.as_deref();
        let totals = origin.map(|origin| origin.totals.clone()).unwrap_or_default();
        Self {
            adapter: adapter_for(options.work.agent.kind, options.work.agent.format),
            state: Loop::new(&options.work, totals),
            begun: Instant::now(),
            step: LoopStep::Begin,
            session: origin.and_then(|origin| origin.session.clone()),
            totals: origin.map(|origin| origin.session_totals).unwrap_or_default(),
            message: None,
            leftover: None,
            ended: None,
            end: None,
            why: None,
            wake_at: Some(Instant::now()),
            options,
        }
    }

    /// Whether this command is one of the loop's.
    fn owns(&self, exec: u32) -> bool {
        match &self.step {
            LoopStep::SetUp { exec: own } | LoopStep::Check { exec: own, .. } => *own == exec,
            LoopStep::Agent(iteration) => iteration.exec == exec,
            LoopStep::Begin
            | LoopStep::Between
            | LoopStep::Pausing { .. }
            | LoopStep::Checkpoint { .. }
            | LoopStep::Over => false,
        }
    }

    fn poll_fd(&self) -> Option<PollFd<'_>> {
        match &self.step {
            LoopStep::Checkpoint { keeping, .. } => Some(keeping.poll_fd()),
            _ => None,
        }
    }

    /// When something is due that no descriptor announces.
    fn next_wake(&self, agent: Option<&AgentRecorder>) -> Option<Instant> {
        match &self.step {
            LoopStep::Begin | LoopStep::Between => Some(Instant::now()),
            LoopStep::Pausing { until } => Some(*until),
            LoopStep::Agent(Iteration { cut: None, .. }) => {
                let silent = agent.and_then(|agent| match agent.finished() {
                    Some(_) => Some(agent.last_event() + state_machine::LINGER_TIMEOUT),
                    None => self.options.idle.map(|idle| agent.last_event() + idle),
                });
                let left = self.state.time_left(self.begun.elapsed());
                let up = left.map(|left| Instant::now() + left);
                [silent, up].into_iter().flatten().min()
            }
            _ => None,
        }
    }

    /// Gives up a checkpoint that is being taken.
    pub(super) fn cancel(&self) {
        self.options.subject.cancel.store(true, Ordering::Relaxed);
    }

    /// Which session the next iteration works in.
    fn session_use(&self, new: String) -> SessionUse {
        use belljar_spec::manifest::SessionMode;
        let is_first = self.state.run_iterations() == 0;
        let origin = self.options.resumed_from.as_deref().map(|origin| origin.kind);
        match (self.options.work.repeat.session, &self.session, origin) {
            (SessionMode::Fresh, _, _) | (_, None, _) => SessionUse::New { id: new },
            (SessionMode::Continue, Some(id), Some(ResumeKind::Fork)) if is_first => {
                SessionUse::Fork { id: id.clone() }
            }
            (SessionMode::Continue, Some(id), _) => SessionUse::Continue { id: id.clone() },
        }
    }

    fn report(&self, why: String) -> AgentReport {
        AgentReport {
            totals: self.state.totals_at(self.begun.elapsed()),
            run_iterations: self.state.run_iterations(),
            unfinished_iteration: None,
            why,
            message: self.message.clone(),
        }
    }

    /// The iteration that has no checkpoint, and what its agent used.
    fn unfinished(&self) -> Option<(u32, Option<&Summary>)> {
        match &self.step {
            LoopStep::Agent(iteration) => {
                let agent = self.ended.as_ref().and_then(|ended| ended.agent.as_ref());
                Some((iteration.number, agent.map(AgentRecorder::summary)))
            }
            LoopStep::Check { ended, .. } | LoopStep::Checkpoint { ended, .. } => {
                Some((ended.iteration.number, Some(&ended.summary)))
            }
            LoopStep::Begin
            | LoopStep::SetUp { .. }
            | LoopStep::Between
            | LoopStep::Pausing { .. }
            | LoopStep::Over => None,
        }
    }

    /// The reason to report for an end that does not come from the loop.
    pub(super) fn ended_because(&mut self, why: String) {
        self.why = Some(why);
    }

    /// The policy ended the loop.
    fn stopped(&mut self, reason: StopReason, why: String) {
        let once = self.options.work.repeat.is_once() && self.state.run_iterations() == 1;
        let failure = self.state.last_failure();
        let by_us = |code| Exit::of_belljar(code, ExitSource::Policy);
        // A single iteration ends as the agent did; a loop has its own end.
        let (reason, exit) = match (reason, once, failure) {
            (StopReason::MaxIterations, true, None) => (StopReason::Exited, by_us(0)),
            // An agent that exits with 0 and without a result has failed all the same.
            (StopReason::MaxIterations, true, Some(Failure::Exit { exit }))
                if exit.code != Some(0) =>
            {
                (StopReason::Exited, *exit)
            }
            (StopReason::MaxIterations, true, Some(Failure::NotStarted { exit, .. })) => {
                (StopReason::Error, exit.unwrap_or(by_us(1)))
            }
            (StopReason::MaxIterations, true, Some(Failure::Oom { exit })) => {
                let killed = Exit { code: None, signal: Some(9), source: ExitSource::Oom };
                let own = Exit { source: ExitSource::Oom, ..*exit };
                (StopReason::Oom, if exit.code == Some(0) { killed } else { own })
            }
            (StopReason::Failures, _, Some(Failure::Oom { .. })) => {
                (StopReason::Oom, Exit::of_belljar(1, ExitSource::Oom))
            }
            (StopReason::MaxIterations, true, Some(Failure::Idle)) => (StopReason::Idle, by_us(1)),
            (StopReason::MaxIterations, true, Some(Failure::Budget { what })) => {
                (crate::loop_policy::reason_of(*what), by_us(1))
            }
            (StopReason::MaxIterations, true, Some(_)) => (StopReason::Exited, by_us(1)),
            (StopReason::Done, ..) => (reason, by_us(0)),
            // No iteration was requested.
            (StopReason::MaxIterations, ..)
                if self.options.work.repeat.max_iterations == Some(0) =>
            {
                (reason, by_us(0))
            }
            (StopReason::MaxIterations, _, None) if self.options.work.repeat.until.is_none() => {
                (reason, by_us(0))
            }
            (StopReason::MaxTime, ..) => {
                (reason, Exit::of_belljar(belljar_spec::EXIT_DEADLINE, ExitSource::Deadline))
            }
            _ => (reason, by_us(1)),
        };
        let why = match (reason, failure) {
            (StopReason::Oom, _) if once => "its memory ran out".to_owned(),
            (StopReason::Oom, _) => format!("{why}; the last one because its memory ran out"),
            (StopReason::Error, Some(Failure::NotStarted { message, .. })) => message.clone(),
            (StopReason::Failures, Some(Failure::NotStarted { message, .. })) => {
                format!("{why}; {message}")
            }
            (StopReason::Idle, _) => "no event for as long as limits.idle allows".to_owned(),
            // A single run: its number of iterations says nothing.
            (_, Some(Failure::Budget { what })) if once => used_up(*what).to_owned(),
            _ => why,
        };
        self.end = Some(DriveEnd { reason, exit, report: self.report(why) });
        self.step = LoopStep::Over;
    }

    /// What is known when the run ends, whoever ended it.
    pub(super) fn into_end(self) -> (Option<DriveEnd>, AgentReport) {
        let why = match &self.step {
            LoopStep::Over => String::new(),
            LoopStep::SetUp { .. } | LoopStep::Begin => {
                "ended before the first iteration".to_owned()
            }
            LoopStep::Agent(iteration) => format!("ended in iteration {}", iteration.number),
            LoopStep::Check { ended, .. } | LoopStep::Checkpoint { ended, .. } => {
                format!("ended before the checkpoint of iteration {}", ended.iteration.number)
            }
            LoopStep::Between | LoopStep::Pausing { .. } => {
                "ended between two iterations".to_owned()
            }
        };
        let mut report = self.report(self.why.clone().unwrap_or(why));
        if let Some((number, summary)) = self.unfinished() {
            report.unfinished_iteration = Some(number);
            if let Some(Summary { turns, usage, .. }) = summary {
                report.totals.turns = counted(report.totals.turns, *turns);
                report.totals.usage.add(usage);
            }
        }
        (self.end, report)
    }
}

fn used_up(budget: Budget) -> &'static str {
    match budget {
        Budget::Time => "its time is used up",
        Budget::Turns => "its turns are used up",
        Budget::Cost => "its money is used up",
        Budget::Tokens => "its tokens are used up",
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

/// The moment before an iteration begins, by the clock of the file system.
pub(super) fn before_now() -> Moment {
    Arrival::now().passed()
}

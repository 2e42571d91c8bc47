//! The steps of an agent's loop: set-up, agent, check, checkpoint, pause.

use std::time::{Duration, Instant};

use belljar_spec::manifest::AgentKind;
use belljar_spec::wire::control::{ControlError, Streams};
use belljar_spec::wire::{Descendants, Work};
use belljar_spec::{
    Budget, EventKind, ExecFailure, Exit, ExitSource, Failure, OsText, ResumeKind, StopReason,
    Until,
};
use serde_json::json;

use super::{
    AgentEnded, AgentParts, AgentRecorder, Cut, DriveEnd, Driver, Iteration, LoopStep,
    PendingCheckpoint, WorkTree, before_now,
};
use crate::agent::SessionUse;
use crate::loop_policy::LoopDecision;
use crate::supervise::sandbox::{NewExec, SandboxState};
use crate::supervise::{SuperviseError, libc_signal};
use belljar_record::Recorder;
use belljar_workspace::{FileVersion, find_file, find_file_in_layers};

/// How long an agent that has reported its result may take to exit.
pub(super) const LINGER_TIMEOUT: Duration = Duration::from_secs(30);

/// How a command of the loop ended.
#[derive(Debug)]
pub(super) struct LoopTaskEnd {
    pub(super) exit: Exit,
    pub(super) failure: Option<ExecFailure>,
    pub(super) agent: Option<AgentRecorder>,
}

impl LoopTaskEnd {
    fn succeeded(&self) -> bool {
        self.exit.code == Some(0) && self.failure.is_none()
    }
}

impl Driver {
    /// Takes the next step, if it can be taken now.
    pub(super) fn step(&mut self, parts: &mut AgentParts<'_>) -> Result<Progress, SuperviseError> {
        match std::mem::replace(&mut self.step, LoopStep::Over) {
            LoopStep::Begin => self.begin(parts),
            LoopStep::SetUp { exec } => match self.ended.take() {
                None => self.wait(LoopStep::SetUp { exec }),
                Some(end) if end.succeeded() => self.narrow_network(parts),
                Some(_) if self.time_left() == Some(Duration::ZERO) => {
                    self.stopped(StopReason::MaxTime, "the set-up took all of it".to_owned());
                    Ok(Progress::Wait)
                }
                Some(end) => {
                    self.cannot_begin(why_not_set_up(&end));
                    Ok(Progress::Wait)
                }
            },
            LoopStep::Between => match self.state.next(self.begun.elapsed()) {
                LoopDecision::Stop { reason, why } => {
                    self.stopped(reason, why);
                    Ok(Progress::Wait)
                }
                LoopDecision::Iterate { number, after } if after.is_zero() => {
                    self.start_agent(parts, number)
                }
                LoopDecision::Iterate { after, .. } => {
                    let after = self.time_left().map_or(after, |left| after.min(left));
                    self.wait(LoopStep::Pausing { until: Instant::now() + after })
                }
            },
            LoopStep::Pausing { until } if Instant::now() < until => {
                self.wait(LoopStep::Pausing { until })
            }
            // Its time may have run out meanwhile.
            LoopStep::Pausing { .. } => match self.state.next(self.begun.elapsed()) {
                LoopDecision::Stop { reason, why } => {
                    self.stopped(reason, why);
                    Ok(Progress::Wait)
                }
                LoopDecision::Iterate { number, .. } => self.start_agent(parts, number),
            },
            LoopStep::Agent(iteration) => match self.ended.take() {
                Some(end) => self.agent_ended(parts, iteration, end),
                None => self.watch_agent(parts, iteration),
            },
            LoopStep::Check { exec, mut ended } => match self.ended.take() {
                None => self.wait(LoopStep::Check { exec, ended }),
                Some(end) => {
                    ended.done = Some(end.succeeded());
                    self.begin_checkpoint(ended)
                }
            },
            LoopStep::Checkpoint { keeping, ended } if !keeping.is_done() => {
                self.wait(LoopStep::Checkpoint { keeping, ended })
            }
            LoopStep::Checkpoint { keeping, ended } => {
                match self.checkpoint_is_there(keeping, ended, parts.recorder) {
                    Err(SuperviseError::Checkpoint(error)) => {
                        self.cannot_go_on(belljar_spec::text::error_chain(&error));
                        Ok(Progress::Wait)
                    }
                    there => {
                        there?;
                        self.go(LoopStep::Between)
                    }
                }
            }
            LoopStep::Over => Ok(Progress::Wait),
        }
    }

    fn begin(&mut self, parts: &mut AgentParts<'_>) -> Result<Progress, SuperviseError> {
        self.begun = Instant::now();
        let continues = self.options.resumed_from.as_ref().is_some_and(|from| from.iteration > 0);
        let Some(setup) = self.options.work.setup.clone().filter(|_| !continues) else {
            // What the set-up made is in the checkpoint, together with what an agent added: none of that gets the
            // wider network access of the set-up.
            return self.narrow_network(parts);
        };
        match start(parts.sandbox, setup.command, Vec::new(), None) {
            Ok(exec) => {
                self.end_in_time(exec, parts.sandbox, setup.timeout);
                self.wait(LoopStep::SetUp { exec })
            }
            Err(error) => {
                self.cannot_begin(format!("the set-up could not be started: {error}"));
                Ok(Progress::Wait)
            }
        }
    }

    /// Closes the network access of the set-up before the agent begins.
    fn narrow_network(&mut self, parts: &mut AgentParts<'_>) -> Result<Progress, SuperviseError> {
        parts.sandbox.narrow_network(parts.recorder)?;
        self.leftover = self.leftover_file();
        self.go(LoopStep::Between)
    }

    fn start_agent(
        &mut self,
        parts: &mut AgentParts<'_>,
        number: u32,
    ) -> Result<Progress, SuperviseError> {
        let agent = &self.options.work.agent;
        let session = self.session_use(new_session());
        let remaining = self.state.remaining();
        let invocation = self.adapter.invocation(agent, &session, remaining);
        let (since, begun, exec) = (before_now(), Instant::now(), parts.sandbox.next_exec());
        let oom_kills = parts.sandbox.oom_kills();
        let iteration = Iteration { number, exec, begun, since, cut: None, remaining, oom_kills };
        let reader = match session {
            SessionUse::New { .. } => self.adapter.reader(),
            SessionUse::Continue { .. } | SessionUse::Fork { .. } => {
                self.adapter.reader_after(self.totals)
            }
        };
        let recorder = AgentRecorder::new(reader, number);
        match start(parts.sandbox, invocation.argv, invocation.stdin, Some(recorder)) {
            Ok(exec) => {
                let data = json!({ "iteration": number, "exec": exec });
                parts.recorder.event(EventKind::IterationStart, &data)?;
                self.wait(LoopStep::Agent(iteration))
            }
            Err(error) => {
                let failure = Failure::NotStarted { message: error.to_string(), exit: None };
                let ended = AgentEnded {
                    iteration,
                    failure: Some(failure),
                    summary: Default::default(),
                    totals: self.totals,
                    dropped: 0,
                    wall: Duration::ZERO,
                    done: None,
                };
                self.begin_checkpoint(Box::new(ended))
            }
        }
    }

    /// It runs. Without an event for too long, or past a budget, it is asked to exit, and then killed.
    fn watch_agent(
        &mut self,
        parts: &mut AgentParts<'_>,
        mut iteration: Iteration,
    ) -> Result<Progress, SuperviseError> {
        let stop_timeout = parts.sandbox.stop_timeout();
        let task = parts.sandbox.task_mut(iteration.exec);
        if let (None, Some(task)) = (iteration.cut, task)
            && let Some(agent) = &task.agent
        {
            let now = Instant::now();
            let is_idle = self.options.idle.is_some_and(|idle| now >= agent.last_event() + idle);
            let summary = agent.summary();
            let elapsed = self.begun.elapsed();
            let breach = self.state.breach(summary.turns, &summary.usage, elapsed);
            iteration.cut = match (agent.finished(), breach) {
                (_, Some(Budget::Time)) => Some(Cut::Budget(Budget::Time)),
                (Some(_), _) if now >= agent.last_event() + LINGER_TIMEOUT => Some(Cut::Lingering),
                // Its cost comes with its result: then its work is done, unless it goes on and on.
                (Some(finished), Some(what)) => {
                    (now >= finished + LINGER_TIMEOUT).then_some(Cut::Budget(what))
                }
                (Some(_), None) => None,
                (None, Some(what)) => Some(Cut::Budget(what)),
                (None, None) => is_idle.then_some(Cut::Idle),
            };
            if iteration.cut.is_some() {
                task.deadline = Some(now + stop_timeout);
                parts.sandbox.signal_exec(iteration.exec, libc_signal::TERM);
            }
        }
        self.wait(LoopStep::Agent(iteration))
    }

    fn agent_ended(
        &mut self,
        parts: &mut AgentParts<'_>,
        iteration: Iteration,
        end: LoopTaskEnd,
    ) -> Result<Progress, SuperviseError> {
        let wall = iteration.begun.elapsed();
        let failure = match (iteration.cut, &end.failure, &end.agent) {
            (Some(Cut::Idle), ..) => Some(Failure::Idle),
            (Some(Cut::Budget(what)), ..) => Some(Failure::Budget { what }),
            (Some(Cut::Lingering), _, agent) => {
                agent.as_ref().and_then(|agent| agent.parser().verdict())
            }
            (None, Some(failure), _) => {
                let message = self.why_not_started(failure, parts.sandbox);
                Some(Failure::NotStarted { message, exit: Some(end.exit) })
            }
            (None, None, Some(agent)) => {
                let failure = agent.parser().failure(end.exit);
                failure.map(|failure| self.cause_of(failure, agent, &iteration, parts.sandbox))
            }
            (None, None, None) => None,
        };
        // Over its budget by what it reported with its result: the work is done all the same, and may be all of it.
        let has_worked = failure.is_none();
        let overspent = || {
            let summary = end.agent.as_ref()?.summary();
            let what = self.state.overspent(summary.turns, &summary.usage)?;
            Some(Failure::Budget { what })
        };
        let failure = failure.or_else(overspent);
        let failure = failure.map(|failure| mask(failure, parts.recorder));
        let dropped = end.agent.as_ref().map_or(0, AgentRecorder::dropped);
        let totals = end.agent.as_ref().map_or(self.totals, |agent| agent.parser().totals());
        let summary = end.agent.map(|agent| agent.summary().clone()).unwrap_or_default();
        let mut ended =
            Box::new(AgentEnded { iteration, failure, summary, totals, dropped, wall, done: None });
        match self.options.work.repeat.until.clone() {
            None => {}
            Some(Until::File { path }) => {
                let found = self.find(path.as_path());
                ended.done = Some(found.is_some() && found != self.leftover);
            }
            Some(Until::Says { phrase }) => {
                let has_phrase = ended.summary.final_text.contains(&phrase);
                ended.done = Some(has_worked && has_phrase);
            }
            Some(Until::Command { argv, timeout }) => {
                match start(parts.sandbox, argv, Vec::new(), None) {
                    Ok(exec) => {
                        self.end_in_time(exec, parts.sandbox, timeout);
                        return self.wait(LoopStep::Check { exec, ended });
                    }
                    Err(_) => ended.done = Some(false), // the sandbox is about to end
                }
            }
        }
        self.begin_checkpoint(ended)
    }

    /// Which program it is, where it was searched, and what helps.
    fn why_not_started(&self, failure: &ExecFailure, sandbox: &SandboxState) -> String {
        let agent = &self.options.work.agent;
        let program = agent.program.first().map(ToString::to_string).unwrap_or_default();
        let mut why = format!("{program}: {failure}");
        if !matches!(failure, ExecFailure::NotFound { .. }) {
            return why;
        }
        if !program.contains('/')
            && let Some(path) = sandbox.search_path()
        {
            why.push_str(&format!(" (searched in {path})"));
        }
        let key = match agent.kind {
            AgentKind::Command => "agent.command",
            AgentKind::Claude | AgentKind::Codex | AgentKind::Gemini => "agent.program",
        };
        why.push_str(&format!(
            "; name its path inside with {key}, and bring a program of the host in with --tool or -v"
        ));
        why
    }

    /// What made the agent fail, where that is known from outside, or is a budget that it was given.
    fn cause_of(
        &self,
        failure: Failure,
        agent: &AgentRecorder,
        iteration: &Iteration,
        sandbox: &mut SandboxState,
    ) -> Failure {
        match failure {
            // An agent that reports a result has outlived what was killed inside.
            Failure::Exit { exit }
                if (exit.signal.map(i32::from) == Some(libc_signal::KILL)
                    || agent.summary().result.is_none())
                    && sandbox.oom_kills() > iteration.oom_kills =>
            {
                Failure::Oom { exit }
            }
            Failure::Reported { code: Some(code) } => {
                let budget = self.adapter.budget_of(&code);
                match budget.filter(|budget| iteration.remaining.has(*budget)) {
                    Some(what) => Failure::Budget { what },
                    None => Failure::Reported { code: Some(code) },
                }
            }
            other => other,
        }
    }

    /// Nothing that the loop starts outlives the loop's time.
    fn end_in_time(&self, exec: u32, sandbox: &mut SandboxState, most: Duration) {
        let most = self.time_left().map_or(most, |left| left.min(most));
        if let Some(task) = sandbox.task_mut(exec) {
            task.deadline = Instant::now().checked_add(most);
        }
    }

    fn begin_checkpoint(&mut self, ended: Box<AgentEnded>) -> Result<Progress, SuperviseError> {
        let Iteration { number, since, .. } = ended.iteration;
        let keep = self.options.work.repeat.checkpoints;
        let keeping = PendingCheckpoint::begin(self.options.subject.clone(), number, since, keep)
            .map_err(|error| SuperviseError::Step("begin a checkpoint", error))?;
        self.wait(LoopStep::Checkpoint { keeping, ended })
    }
}

impl Driver {
    fn go(&mut self, step: LoopStep) -> Result<Progress, SuperviseError> {
        self.step = step;
        Ok(Progress::Next)
    }

    fn wait(&mut self, step: LoopStep) -> Result<Progress, SuperviseError> {
        self.step = step;
        Ok(Progress::Wait)
    }

    fn cannot_begin(&mut self, why: String) {
        self.fail(StopReason::SetupFailed, why);
    }

    /// An iteration that cannot be kept did not happen; those before it did.
    fn cannot_go_on(&mut self, why: String) {
        self.fail(StopReason::Error, why);
    }

    fn fail(&mut self, reason: StopReason, why: String) {
        let exit = Exit::of_belljar(1, ExitSource::Policy);
        let report = self.report(why);
        self.end = Some(DriveEnd { reason, exit, report });
        self.step = LoopStep::Over;
    }

    /// What is left of the time of the whole loop.
    fn time_left(&self) -> Option<Duration> {
        self.state.time_left(self.begun.elapsed())
    }

    /// Looked up from outside: what is inside cannot be trusted.
    fn find(&self, path: &std::path::Path) -> Option<FileVersion> {
        let subject = &self.options.subject;
        match self.options.workspace.as_ref()? {
            WorkTree::Layered(index) => {
                let tree = subject.trees.get(*index)?;
                find_file_in_layers(&subject.directory, &subject.run, tree, path)
            }
            WorkTree::Real(tree) => find_file(tree, path),
        }
    }

    /// The file of `until`, if it is there before the first iteration: it says nothing about this run's work.
    fn leftover_file(&self) -> Option<FileVersion> {
        let Some(Until::File { path }) = &self.options.work.repeat.until else { return None };
        let kind = self.options.resumed_from.as_ref().map(|origin| origin.kind);
        match (kind, &self.options.workspace) {
            // The iteration that was interrupted may have written it into the tree itself.
            (Some(ResumeKind::Resume), Some(WorkTree::Real(_))) => None,
            _ => self.find(path.as_path()),
        }
    }
}

/// Whether the next step can be taken at once.
pub(super) enum Progress {
    Next,
    Wait,
}

/// Starts a command of the loop. No client follows it, and its output is recorded.
fn start(
    sandbox: &mut SandboxState,
    argv: Vec<OsText>,
    input: Vec<u8>,
    agent: Option<AgentRecorder>,
) -> Result<u32, ControlError> {
    let task = sandbox.start_exec(NewExec {
        work: Work::Program { argv },
        env: Vec::new(),
        workdir: None,
        streams: Streams::InputAndOutput,
        descendants: Descendants::Bound,
        follower: None,
        input,
    })?;
    task.agent = agent;
    Ok(task.exec)
}

fn mask(failure: Failure, recorder: &Recorder) -> Failure {
    match failure {
        Failure::Reported { code: Some(word) } => {
            Failure::Reported { code: Some(recorder.secrets().mask_words_of(&word)) }
        }
        Failure::NotStarted { message, exit } => {
            Failure::NotStarted { message: recorder.secrets().mask_words_of(&message), exit }
        }
        other => other,
    }
}

fn why_not_set_up(end: &LoopTaskEnd) -> String {
    let ended = match (&end.failure, end.exit) {
        (Some(failure), _) => return format!("the set-up could not be started: {failure}"),
        (None, Exit { source: ExitSource::Deadline, .. }) => {
            return "the set-up took longer than setup.timeout allows".to_owned();
        }
        (None, Exit { code: Some(code), .. }) => format!("code {code}"),
        (None, Exit { signal: Some(signal), .. }) => format!("signal {signal}"),
        (None, Exit { code: None, signal: None, .. }) => "nothing".to_owned(),
    };
    format!("the set-up ended with {ended}")
}

/// A UUID, as agents want them.
fn new_session() -> String {
    let mut bytes = [0u8; 16];
    let _ = getrandom::fill(&mut bytes); // without randomness the agent has to choose one itself
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

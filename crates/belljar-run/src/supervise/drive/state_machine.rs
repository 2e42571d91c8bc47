//! One step after the other.

use std::time::{Duration, Instant};

use belljar_spec::{Budget, EventKind, ExecFailure, Exit, ExitSource, Failure, StopReason, Until};
use serde_json::json;

use super::{
    AgentEnded, AgentRecorder, Cut, DriveEnd, Driver, Iteration, PendingCheckpoint, Step, WorkTree,
    before_now,
};
use crate::agent::SessionUse;
use crate::loop_policy::LoopDecision;
use crate::supervise::channel::Channel;
use crate::supervise::event_loop::Run;
use crate::supervise::task::{End, Phase, Task};
use crate::supervise::{SuperviseError, libc_signal};
use belljar_record::{RecordError, Recorder};
use belljar_workspace::{is_file_in, is_file_in_layers};

/// An agent that has told its result is given so long to end by itself.
pub(super) const LINGERS: Duration = Duration::from_secs(30);

/// A command of the driver's that is over.
#[derive(Debug)]
pub(in crate::supervise) struct OwnEnd {
    exit: Exit,
    failure: Option<ExecFailure>,
    ear: Option<AgentRecorder>,
}

impl OwnEnd {
    fn succeeded(&self) -> bool {
        self.exit.code == Some(0) && self.failure.is_none()
    }
}

impl Run<'_> {
    /// Whatever is due in an agent's run.
    pub(in crate::supervise) fn drive(&mut self) -> Result<(), SuperviseError> {
        let Some(mut driver) = self.driver.take() else { return Ok(()) };
        let mut driven = Ok(Going::On);
        while let Ok(Going::On) = driven {
            driven = match self.state.is_over() || self.state.is_stopping() {
                true => Ok(Going::Waits),
                false => self.step(&mut driver),
            };
        }
        let is_over = matches!(driver.step, Step::Over) && driver.end.is_some();
        self.driver = Some(driver);
        driven?;
        if is_over {
            self.end();
        }
        Ok(())
    }

    /// A command that was the driver's is over, and all it said is recorded.
    pub(in crate::supervise) fn own_task_is_over(
        &mut self,
        task: &mut Task,
    ) -> Result<(), RecordError> {
        let Some(driver) = self.driver.as_mut().filter(|driver| driver.owns(task.exec)) else {
            return Ok(());
        };
        let mut ear = task.ear.take();
        if let Some(ear) = &mut ear {
            ear.finish(&mut *self.recorder)?;
        }
        let failure = match &task.phase {
            Phase::Over(End::NotExecuted(failure)) => Some(failure.clone()),
            _ => None,
        };
        driver.over = Some(OwnEnd { exit: task.exit(), failure, ear });
        Ok(())
    }

    fn step(&mut self, driver: &mut Driver) -> Result<Going, SuperviseError> {
        match std::mem::replace(&mut driver.step, Step::Over) {
            Step::Begin => self.begin(driver),
            Step::SetUp { exec } => match driver.over.take() {
                None => wait(driver, Step::SetUp { exec }),
                Some(end) if end.succeeded() => self.shut_the_door(driver),
                Some(_) if driver.time_left() == Some(Duration::ZERO) => {
                    driver.stopped(StopReason::MaxTime, "the set-up took all of it".to_owned());
                    Ok(Going::Waits)
                }
                Some(end) => {
                    driver.cannot_begin(why_not_set_up(&end));
                    Ok(Going::Waits)
                }
            },
            Step::Between => match driver.state.next(driver.begun.elapsed()) {
                LoopDecision::Stop { reason, why } => {
                    driver.stopped(reason, why);
                    Ok(Going::Waits)
                }
                LoopDecision::Iterate { number, after } if after.is_zero() => {
                    self.start_agent(driver, number)
                }
                LoopDecision::Iterate { after, .. } => {
                    let after = driver.time_left().map_or(after, |left| after.min(left));
                    wait(driver, Step::Pausing { until: Instant::now() + after })
                }
            },
            Step::Pausing { until } if Instant::now() < until => {
                wait(driver, Step::Pausing { until })
            }
            // Its time may have run out meanwhile.
            Step::Pausing { .. } => match driver.state.next(driver.begun.elapsed()) {
                LoopDecision::Stop { reason, why } => {
                    driver.stopped(reason, why);
                    Ok(Going::Waits)
                }
                LoopDecision::Iterate { number, .. } => self.start_agent(driver, number),
            },
            Step::Agent(iteration) => match driver.over.take() {
                Some(end) => self.agent_ended(driver, iteration, end),
                None => self.watch_agent(driver, iteration),
            },
            Step::Check { exec, mut ended } => match driver.over.take() {
                None => wait(driver, Step::Check { exec, ended }),
                Some(end) => {
                    ended.done = Some(end.succeeded());
                    self.begin_checkpoint(driver, ended)
                }
            },
            Step::Checkpoint { keeping, ended } if !keeping.is_done() => {
                wait(driver, Step::Checkpoint { keeping, ended })
            }
            Step::Checkpoint { keeping, ended } => {
                match driver.checkpoint_is_there(keeping, ended, &mut *self.recorder) {
                    Err(SuperviseError::Checkpoint(error)) => {
                        driver.cannot_go_on(belljar_spec::text::error_chain(&error));
                        Ok(Going::Waits)
                    }
                    there => {
                        there?;
                        go(driver, Step::Between)
                    }
                }
            }
            Step::Over => Ok(Going::Waits),
        }
    }

    fn begin(&mut self, driver: &mut Driver) -> Result<Going, SuperviseError> {
        driver.begun = Instant::now();
        let goes_on = driver
            .orders
            .resumed_from
            .as_ref()
            .is_some_and(|resumed_from| resumed_from.iteration > 0);
        let Some(setup) = driver.orders.work.setup.clone().filter(|_| !goes_on) else {
            // What the set-up made is in the checkpoint, and so is what an agent put beside it: none of that is
            // let out of the wider door.
            return self.shut_the_door(driver);
        };
        match self.start_own(setup.command, Vec::new(), None) {
            Ok(exec) => {
                self.end_in_time(exec, driver, setup.timeout);
                wait(driver, Step::SetUp { exec })
            }
            Err(error) => {
                driver.cannot_begin(format!("the set-up could not be started: {error}"));
                Ok(Going::Waits)
            }
        }
    }

    /// What only the set-up could reach is out of reach before the agent begins.
    fn shut_the_door(&mut self, driver: &mut Driver) -> Result<Going, SuperviseError> {
        let mux = self.inside.channel().map(Channel::mux_mut);
        self.crossing.narrow(mux, &mut *self.recorder)?;
        go(driver, Step::Between)
    }

    fn start_agent(&mut self, driver: &mut Driver, number: u32) -> Result<Going, SuperviseError> {
        let agent = &driver.orders.work.agent;
        let session = driver.session_use(new_session());
        let invocation = driver.adapter.invocation(agent, &session, driver.state.remaining());
        let (since, begun, exec) = (before_now(), Instant::now(), self.next_exec);
        let iteration = Iteration { number, exec, begun, since, cut: None };
        let reader = match session {
            SessionUse::New { .. } => driver.adapter.reader(),
            SessionUse::Continue { .. } | SessionUse::Fork { .. } => {
                driver.adapter.reader_after(driver.totals)
            }
        };
        let ear = AgentRecorder::new(reader, number);
        match self.start_own(invocation.argv, invocation.stdin, Some(ear)) {
            Ok(exec) => {
                let data = json!({ "iteration": number, "exec": exec });
                self.recorder.event(EventKind::IterationStart, &data)?;
                wait(driver, Step::Agent(iteration))
            }
            Err(error) => {
                let failure = Failure::NotStarted { message: error.to_string() };
                let ended = AgentEnded {
                    iteration,
                    failure: Some(failure),
                    summary: Default::default(),
                    totals: driver.totals,
                    dropped: 0,
                    wall: Duration::ZERO,
                    done: None,
                };
                self.begin_checkpoint(driver, Box::new(ended))
            }
        }
    }

    /// It runs. Without news for too long, or past a budget, it is asked to end, and then ended.
    fn watch_agent(
        &mut self,
        driver: &mut Driver,
        mut iteration: Iteration,
    ) -> Result<Going, SuperviseError> {
        let task = self.tasks.get_mut(&iteration.exec);
        if let (None, Some(task)) = (iteration.cut, task)
            && let Some(ear) = &task.ear
        {
            let now = Instant::now();
            let is_idle = driver.orders.idle.is_some_and(|idle| now >= ear.heard() + idle);
            let summary = ear.summary();
            let elapsed = driver.begun.elapsed();
            let breach = driver.state.breach(summary.turns, &summary.usage, elapsed);
            iteration.cut = match (ear.finished(), breach) {
                (_, Some(Budget::Time)) => Some(Cut::Budget(Budget::Time)),
                (Some(_), _) if now >= ear.heard() + LINGERS => Some(Cut::Lingers),
                // What it cost is told with its result: then its work is done, unless it goes on and on.
                (Some(finished), Some(what)) => {
                    (now >= finished + LINGERS).then_some(Cut::Budget(what))
                }
                (Some(_), None) => None,
                (None, Some(what)) => Some(Cut::Budget(what)),
                (None, None) => is_idle.then_some(Cut::Idle),
            };
            if iteration.cut.is_some() {
                task.deadline = Some(now + self.plan.limits.stop_timeout);
                if let Some(channel) = self.inside.channel() {
                    channel.signal(iteration.exec, libc_signal::TERM);
                }
            }
        }
        wait(driver, Step::Agent(iteration))
    }

    fn agent_ended(
        &mut self,
        driver: &mut Driver,
        iteration: Iteration,
        end: OwnEnd,
    ) -> Result<Going, SuperviseError> {
        let wall = iteration.begun.elapsed();
        let failure = match (iteration.cut, &end.failure, &end.ear) {
            (Some(Cut::Idle), ..) => Some(Failure::Idle),
            (Some(Cut::Budget(what)), ..) => Some(Failure::Budget { what }),
            (Some(Cut::Lingers), _, ear) => ear.as_ref().and_then(|ear| ear.listener().verdict()),
            (None, Some(failure), _) => Some(Failure::NotStarted { message: failure.to_string() }),
            (None, None, Some(ear)) => ear.listener().failure(end.exit),
            (None, None, None) => None,
        };
        // Over its budget by what it told with its result: the work is done all the same, and may be all of it.
        let has_worked = failure.is_none();
        let overspent = || {
            let summary = end.ear.as_ref()?.summary();
            let what = driver.state.overspent(summary.turns, &summary.usage)?;
            Some(Failure::Budget { what })
        };
        let failure = failure.or_else(overspent);
        let failure = failure.map(|failure| mask(failure, self.recorder));
        let dropped = end.ear.as_ref().map_or(0, AgentRecorder::dropped);
        let totals = end.ear.as_ref().map_or(driver.totals, |ear| ear.listener().totals());
        let summary = end.ear.map(|ear| ear.summary().clone()).unwrap_or_default();
        let mut ended =
            Box::new(AgentEnded { iteration, failure, summary, totals, dropped, wall, done: None });
        match driver.orders.work.repeat.until.clone() {
            None => {}
            Some(Until::File { path }) => ended.done = Some(driver.is_there(path.as_path())),
            Some(Until::Says { phrase }) => {
                let says = ended.summary.final_text.contains(&phrase);
                ended.done = Some(has_worked && says);
            }
            Some(Until::Command { argv, timeout }) => {
                match self.start_own(argv, Vec::new(), None) {
                    Ok(exec) => {
                        self.end_in_time(exec, driver, timeout);
                        return wait(driver, Step::Check { exec, ended });
                    }
                    Err(_) => ended.done = Some(false), // the sandbox is about to end
                }
            }
        }
        self.begin_checkpoint(driver, ended)
    }

    /// Nothing that the driver starts outlives the loop's time.
    fn end_in_time(&mut self, exec: u32, driver: &Driver, most: Duration) {
        let most = driver.time_left().map_or(most, |left| left.min(most));
        if let Some(task) = self.tasks.get_mut(&exec) {
            task.deadline = Instant::now().checked_add(most);
        }
    }

    fn begin_checkpoint(
        &mut self,
        driver: &mut Driver,
        ended: Box<AgentEnded>,
    ) -> Result<Going, SuperviseError> {
        let Iteration { number, since, .. } = ended.iteration;
        let keep = driver.orders.work.repeat.checkpoints;
        let keeping = PendingCheckpoint::begin(driver.orders.subject.clone(), number, since, keep)
            .map_err(|error| SuperviseError::Step("begin a checkpoint", error))?;
        wait(driver, Step::Checkpoint { keeping, ended })
    }
}

impl Driver {
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
        self.step = Step::Over;
    }

    /// Of the whole loop's time.
    fn time_left(&self) -> Option<Duration> {
        self.state.time_left(self.begun.elapsed())
    }

    /// Looked at from outside: what is inside could lie.
    fn is_there(&self, path: &std::path::Path) -> bool {
        let subject = &self.orders.subject;
        match &self.orders.workspace {
            Some(WorkTree::Layered(index)) => subject.trees.get(*index).is_some_and(|tree| {
                is_file_in_layers(&subject.directory, &subject.run, tree, path)
            }),
            Some(WorkTree::Real(tree)) => is_file_in(tree, path),
            None => false,
        }
    }
}

/// Whether the next step can be taken at once.
enum Going {
    On,
    Waits,
}

fn go(driver: &mut Driver, step: Step) -> Result<Going, SuperviseError> {
    driver.step = step;
    Ok(Going::On)
}

fn wait(driver: &mut Driver, step: Step) -> Result<Going, SuperviseError> {
    driver.step = step;
    Ok(Going::Waits)
}

fn mask(failure: Failure, recorder: &Recorder) -> Failure {
    match failure {
        Failure::Reported { code: Some(word) } => {
            Failure::Reported { code: Some(recorder.secrets().mask_words_of(&word)) }
        }
        Failure::NotStarted { message } => {
            Failure::NotStarted { message: recorder.secrets().mask_words_of(&message) }
        }
        other => other,
    }
}

fn why_not_set_up(end: &OwnEnd) -> String {
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
    let _ = getrandom::fill(&mut bytes); // without randomness the agent has to find one itself
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

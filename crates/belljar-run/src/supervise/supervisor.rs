//! The supervisor of a run: one loop over sources of events.
//!
//! Each turn waits until a source is ready or due; then every source takes its turn, and the supervisor acts on the
//! events that concern more than one of them. What belongs to one sandbox is in `SandboxState`.

use std::convert::Infallible;
use std::time::Instant;

use belljar_record::{RecordError, Recorder};
use belljar_spec::wire::control::Keep;
use belljar_spec::{BackendName, RunId, RunState};

use super::baseline::Baselines;
use super::channel::MAIN_EXEC;
use super::checkpoint_request::Checkpoints;
use super::control::Control;
use super::disk::{Disk, DiskFull};
use super::drive::{AgentParts, Driver, LoopEnded};
use super::event_source::{EventSource, PollSet, ReadyStream};
use super::login_keeper::{LoginKeeper, LoginParts};
use super::outside::Signals;
use super::sandbox::{SandboxEvent, SandboxId, SandboxParts, Sandboxes};
use super::shutdown_notices::{ShutdownNotice, ShutdownNotices};
use super::stop_clock::{Due, Reaction, StopCause, StopClock};
use super::task::Task;
use super::terminal::CallersTerminal;
use super::{SuperviseError, Supervised, libc_signal};
use crate::exec_rules::ExecRules;
use crate::run::LivenessLock;

/// What a supervisor knows of its run.
#[derive(Debug)]
pub(super) struct RunSettings {
    pub(super) run: RunId,
    pub(super) backend: BackendName,
    pub(super) keep: Keep,
    pub(super) live: LivenessLock,
    pub(super) rules: ExecRules,
}

pub(super) struct Supervisor<'a> {
    pub(super) settings: RunSettings,
    pub(super) sandboxes: &'a mut Sandboxes,
    pub(super) control: Control,
    pub(super) clock: StopClock,
    pub(super) disk: Disk,
    pub(super) baselines: Baselines,
    pub(super) recorder: &'a mut Recorder,
    pub(super) signals: Signals,
    /// The caller's terminal.
    pub(super) terminal: Option<CallersTerminal>,
    /// Runs an agent in the main sandbox.
    pub(super) agent: Option<Box<Driver>>,
    /// Keeps the agent's login valid.
    pub(super) login: Option<Box<LoginKeeper>>,
    /// Taken when a client requests them, in a run without an agent.
    pub(super) checkpoints: Checkpoints,
    pub(super) supervised: Supervised,
}

impl Supervisor<'_> {
    /// Until the sandboxes are over and everything they wrote is recorded.
    pub(super) fn run(&mut self) {
        while !(self.clock.is_over() && self.sandboxes.are_finished()) {
            let ready = self.wait();
            let ready = self.or_fail(ready);
            self.turn(&ready);
            self.sandboxes.flush();
            self.control.clients.flush();
        }
    }

    /// Waits for all sources. The result is the connections whose sockets are ready.
    fn wait(&self) -> Result<Vec<ReadyStream>, SuperviseError> {
        if let Some(pause) = self.sandboxes.pause() {
            std::thread::sleep(pause);
        }
        let mut poll = PollSet::default();
        poll.add(&self.signals);
        poll.add(&self.control);
        poll.add(&*self.recorder);
        self.sandboxes.iter().for_each(|sandbox| poll.add(sandbox));
        if !self.clock.is_over() {
            poll.add(&self.clock);
            poll.add(&self.disk);
            poll.add(&self.baselines);
            poll.add(&self.checkpoints);
        }
        if let Some(login) = self.login.as_deref().filter(|_| self.agent_may_work()) {
            poll.add(login);
        }
        if let Some(agent) = self.agent.as_deref().filter(|_| self.agent_may_work()) {
            poll.add(agent);
        }
        poll.wait()
    }

    /// Every source in its order: what is read from a sandbox can answer a request of the same turn, clocks come after
    /// what happened before they were due, and an agent's next step after the end of its last one.
    fn turn(&mut self, ready: &[ReadyStream]) {
        let now = Instant::now();
        if !self.clock.is_over() {
            let events = self.disk.take_turn(now, ());
            for DiskFull in self.or_fail(events) {
                self.supervised.stopping = Some(StopCause::DiskFull);
                self.kill();
            }
        }
        let _: Vec<Infallible> = self.or_fail_turn(|this| this.baselines.take_turn(now, ()));
        for signal in self.or_fail_turn(|this| this.signals.take_turn(now, ())) {
            self.take_signal(signal);
        }
        for (client, event) in self.or_fail_turn(|this| this.control.take_turn(now, ())) {
            if let Err(error) = self.take_client_event(client, event) {
                self.fail(error.into());
            }
        }
        for id in self.sandboxes.ids() {
            self.sandbox_turn(id, ready, now);
        }
        let _: Vec<Infallible> = self.or_fail_turn(|this| this.recorder.take_turn(now, ()));
        for due in self.or_fail_turn(|this| this.clock.take_turn(now, ())) {
            match due {
                Due::AskToStop => {
                    self.sandboxes.signal_all(libc_signal::TERM);
                    self.stopping();
                }
                Due::Kill => self.kill(),
            }
        }
        self.login_turn(now);
        self.close_finished_tasks();
        self.agent_turn(now);
        self.checkpoint_turn(now);
    }

    fn sandbox_turn(&mut self, id: SandboxId, ready: &[ReadyStream], now: Instant) {
        let Some(sandbox) = self.sandboxes.get_mut(id) else { return };
        let recorder = &mut *self.recorder;
        let parts = SandboxParts { ready, clients: &mut self.control.clients, recorder };
        let events = sandbox.take_turn(now, parts);
        for event in self.or_fail(events) {
            match event {
                SandboxEvent::Activity => self.clock.activity(Instant::now()),
                SandboxEvent::DeadlinePassed => {
                    self.supervised.stopping = Some(StopCause::Deadline);
                }
                // The run ends with its main sandbox.
                SandboxEvent::Ended if id == SandboxId::MAIN => self.end(),
                SandboxEvent::Ended => {}
            }
        }
    }

    fn agent_may_work(&self) -> bool {
        !self.clock.is_over() && !self.clock.is_stopping()
    }

    fn agent_turn(&mut self, now: Instant) {
        if !self.agent_may_work() {
            return;
        }
        let Some(agent) = &mut self.agent else { return };
        let (sandbox, recorder) = (self.sandboxes.main_mut(), &mut *self.recorder);
        let events = agent.take_turn(now, AgentParts { sandbox, recorder });
        for LoopEnded in self.or_fail(events) {
            self.end();
        }
    }

    /// A run whose login is over is asked to end: the agent can write down what it has.
    fn login_turn(&mut self, now: Instant) {
        if !self.agent_may_work() {
            return;
        }
        let Some(login) = &mut self.login else { return };
        let (sandbox, recorder) = (self.sandboxes.main_mut(), &mut *self.recorder);
        let events = login.take_turn(now, LoginParts { sandbox, recorder });
        for expired in self.or_fail(events) {
            let why = expired.message(&self.settings.run);
            self.supervised.stopping = Some(StopCause::LoginExpired);
            if let Some(agent) = &mut self.agent {
                agent.ended_because(why.clone());
            }
            self.supervised.login_expired = Some(why);
            self.stop_requested(libc_signal::TERM);
        }
    }

    fn or_fail_turn<E>(
        &mut self,
        turn: impl FnOnce(&mut Self) -> Result<Vec<E>, SuperviseError>,
    ) -> Vec<E> {
        let events = turn(self);
        self.or_fail(events)
    }

    pub(super) fn or_fail<E>(&mut self, events: Result<Vec<E>, SuperviseError>) -> Vec<E> {
        events.unwrap_or_else(|error| {
            self.fail(error);
            Vec::new()
        })
    }

    /// The first request to stop is passed on, the second one kills.
    fn take_signal(&mut self, signal: i32) {
        match signal {
            libc_signal::CHLD => {} // a sandbox finds its child itself
            libc_signal::WINCH => {
                if let Some(terminal) = &self.terminal {
                    self.sandboxes.main_mut().resize_exec(MAIN_EXEC, terminal.size());
                }
            }
            signal => self.stop_requested(signal),
        }
    }

    pub(super) fn kill(&mut self) {
        if let Some(agent) = &self.agent {
            agent.cancel(); // no checkpoint is waited for any more
        }
        self.checkpoints.cancel();
        let now = Instant::now();
        self.sandboxes.kill_at(now);
        // A sandbox whose trees come back ends gently at first: it is asked again, whatever began this.
        self.clock.killed(now);
        self.stopping();
    }

    pub(super) fn stop_requested(&mut self, signal: i32) {
        // An agent is not asked twice: no person is there to answer.
        let signal = match (&self.agent, signal) {
            (Some(_), libc_signal::INT | libc_signal::QUIT) => libc_signal::TERM,
            _ => signal,
        };
        match self.clock.stop_requested(signal, Instant::now()) {
            Reaction::Forward => self.sandboxes.main_mut().signal_main(signal),
            Reaction::ForwardToAll => self.sandboxes.signal_all(signal),
            Reaction::Kill => self.kill(),
        }
        if self.clock.is_stopping() {
            self.stopping();
        }
    }

    fn stopping(&mut self) {
        self.sandboxes.stopping();
        self.settings.live.set_state(RunState::Stopping);
    }

    /// The run is over; what its sandboxes wrote before is still read.
    fn end(&mut self) {
        if self.clock.is_over() {
            return;
        }
        self.supervised.stopping = self.supervised.stopping.or(self.clock.stopping());
        self.sandboxes.end();
        self.clock.end();
        self.settings.live.set_state(RunState::Stopping);
        self.control.close_socket();
    }

    /// What cannot be recorded, or watched, does not go on.
    fn fail(&mut self, error: SuperviseError) {
        self.supervised.broken.get_or_insert(error);
        self.end();
        self.sandboxes.give_up_output();
    }

    /// Reports commands whose last byte has been passed on.
    fn close_finished_tasks(&mut self) {
        if self.clock.is_over() {
            return; // they are reported when the run's end is on disk
        }
        for id in self.sandboxes.ids() {
            let finished = self.sandboxes.get_mut(id).map(|sandbox| sandbox.take_finished_tasks());
            for task in finished.unwrap_or_default() {
                if let Err(error) = self.close_task(id, task) {
                    self.fail(error.into());
                }
            }
        }
    }

    /// The end is recorded, then reported.
    fn close_task(&mut self, id: SandboxId, mut task: Task) -> Result<(), RecordError> {
        if let Some(sandbox) = self.sandboxes.get_mut(id) {
            sandbox.record_end(&mut task, self.recorder)?;
        }
        if let Some(agent) = &mut self.agent {
            agent.task_ended(&mut task, self.recorder)?;
        }
        if let (Some(follower), Some(message)) = (task.follower, task.end_message()) {
            self.control.clients.end_task(follower.client, follower.task, &message);
        }
        Ok(())
    }

    pub(super) fn finish(mut self, begun: Instant) -> Supervised {
        let mut login = self.login.take();
        if let Some(login) = &mut login {
            login.stop();
        }
        self.checkpoints.give_up();
        let mut notices = Vec::new();
        for sandbox in self.sandboxes.iter_mut() {
            if let Err(error) = sandbox.finish_network(self.recorder) {
                self.supervised.broken.get_or_insert(error.into());
            }
            if let Err(error) = sandbox.finish_denied_calls(self.recorder) {
                self.supervised.broken.get_or_insert(error.into());
            }
            match sandbox.record_returned_trees(self.recorder) {
                Ok(lost) => {
                    self.supervised.not_returned = lost.or(self.supervised.not_returned.take())
                }
                Err(error) => drop(self.supervised.broken.get_or_insert(error.into())),
            }
            for mut task in sandbox.take_all_tasks() {
                let mut ended = sandbox.record_end(&mut task, self.recorder);
                if let Some(agent) = self.agent.as_mut().filter(|_| self.recorder.is_sound()) {
                    // What an interrupted iteration used is part of the agent's report.
                    ended = ended.and_then(|()| agent.task_ended(&mut task, self.recorder));
                }
                if let Err(error) = ended {
                    self.supervised.broken.get_or_insert(error.into());
                }
                notices.push(ShutdownNotice { message: task.end_message(), task });
            }
        }
        if let Some(mut agent) = self.agent.take() {
            if let Err(error) = agent.finish(self.recorder) {
                self.supervised.broken.get_or_insert(error);
            }
            let (driven, report) = agent.into_end();
            self.supervised.agent =
                Some(driven.as_ref().map_or(report, |driven| driven.report.clone()));
            self.supervised.driven = driven;
        }
        let Self { mut supervised, sandboxes, terminal, control, settings, signals, .. } = self;
        supervised.kept = settings.keep == Keep::UntilStopped;
        let clients = control.clients;
        supervised.notices = Some(ShutdownNotices { clients, tasks: notices, signals, terminal });
        supervised.usage.wall_ms = begun.elapsed().as_millis() as u64;
        supervised.main = sandboxes.main_mut().take_result();
        supervised.login = login;
        supervised
    }
}

/// The record wakes the loop when buffered output has to be covered by the log.
impl EventSource for Recorder {
    type Parts<'p> = ();
    type Event = Infallible;

    fn watch<'a>(&'a self, _: &mut PollSet<'a>) {}

    fn deadline(&self) -> Option<Instant> {
        self.next_flush()
    }

    fn take_turn(&mut self, _: Instant, (): ()) -> Result<Vec<Infallible>, SuperviseError> {
        if self.is_sound() {
            self.tick(Instant::now())?;
        }
        Ok(Vec::new())
    }
}

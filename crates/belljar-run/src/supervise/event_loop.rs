//! The loop.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use belljar_backend::Started;
use belljar_spec::wire::control::Keep;
use belljar_spec::wire::{ToInit, WireError};
use belljar_spec::{EventKind, Expectation, Plan, RunState};
use rustix::event::{PollFd, PollFlags};
use serde_json::json;

use super::baseline::Baselines;
use super::channel::{COMMAND, Channel, protocol_violation};
use super::checkpoint_request::Checkpoints;
use super::client::Clients;
use super::control_socket::ControlSocket;
use super::disk::Disk;
use super::drive::Driver;
use super::egress::NetworkBridge;
use super::exit_watch::Absence;
use super::loop_throttle::Pace;
use super::outside::Signals;
use super::readiness::{is_readable, wait_until};
use super::shutdown_notices::{ShutdownNotice, ShutdownNotices};
use super::state::{self, State, Stopping};
use super::task::{End, Ended, Phase, Task};
use super::terminal::RawTerminal;
use super::{Inside, LaunchOptions, SuperviseError, Supervised, libc_signal};
use belljar_record::{RecordError, Recorder};

/// How often a kept sandbox that was asked to stop is looked at.
const QUIET_LOOK: Duration = Duration::from_millis(20);
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Run<'a> {
    pub(super) started: &'a mut Started,
    pub(super) plan: &'a Plan,
    pub(super) expectation: &'a Expectation,
    pub(super) recorder: &'a mut Recorder,
    pub(super) orders: LaunchOptions,
    pub(super) inside: Inside,
    pub(super) signals: Signals,
    pub(super) terminal: Option<RawTerminal>,
    pub(super) tasks: BTreeMap<u32, Task>,
    pub(super) next_exec: u32,
    pub(super) door: Option<ControlSocket>,
    pub(super) clients: Clients,
    pub(super) bonded_to: Option<super::client::ClientId>,
    pub(super) state: State,
    pub(super) disk: Disk,
    pub(super) baselines: Baselines,
    pub(super) sampled: Instant,
    pub(super) buffer: Box<[u8]>,
    pub(super) pace: Pace,
    pub(super) pause: Option<Duration>,
    /// Commands that are over, whose time limit still holds for what they left running.
    pub(super) lingering: BTreeMap<u32, Instant>,
    pub(super) absence: Absence,
    pub(super) crossing: NetworkBridge,
    /// The run's own command ended just now, and the sandbox stays.
    pub(super) command_is_over: bool,
    pub(super) supervised: Supervised,
    /// Runs an agent in it.
    pub(super) driver: Option<Box<Driver>>,
    /// Taken on request, in a run without an agent.
    pub(super) checkpoints: Checkpoints,
}

impl Run<'_> {
    /// Until the sandbox is over and everything it said is recorded.
    pub(super) fn follow(&mut self) {
        while !(self.state.is_over() && self.tasks.values().all(Task::is_recorded)) {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    self.cannot_go_on(error);
                    Vec::new()
                }
            };
            if let Err(error) = self.keep_disk() {
                self.cannot_go_on(error);
            }
            self.baselines.look(Instant::now());
            self.take_signals();
            if let Err(error) = self.turn(&ready) {
                self.cannot_go_on(error.into());
            }
            self.keep_time();
            self.finish_tasks();
            if let Err(error) = self.drive() {
                self.cannot_go_on(error);
            }
            if let Err(error) = self.finish_checkpoint() {
                self.cannot_go_on(error.into());
            }
            self.flush();
        }
    }

    /// What has to be recorded as it goes.
    fn turn(&mut self, ready: &[u32]) -> Result<(), RecordError> {
        self.take_messages()?;
        self.take_requests()?;
        if !self.state.is_over() {
            let mux = self.inside.channel().map(Channel::mux_mut);
            self.crossing.turn(ready, mux, &mut *self.recorder)?;
        }
        let mut said = 0;
        // Asked before the last look: what was written before the end is then found.
        let emptied = self.state.is_over() && self.nothing_is_left();
        let command_is_over = std::mem::take(&mut self.command_is_over);
        for task in self.tasks.values_mut() {
            let emptied = emptied || (command_is_over && task.exec == COMMAND);
            if emptied {
                task.read_the_rest();
            }
            said += task.move_bytes(
                &mut self.buffer,
                self.inside.channel(),
                &mut self.clients,
                &mut *self.recorder,
            )?;
            if emptied {
                task.give_up();
            }
        }
        let now = Instant::now();
        if said > 0 {
            self.state.something_happened(now);
        }
        self.pause = self.pace.next(said);
        if self.recorder.is_sound() {
            self.recorder.tick(now)?;
        }
        Ok(())
    }

    /// Whoever holds a command's streams now is not of this run, and what it writes not of the record: a
    /// descriptor can be handed to somebody else.
    fn nothing_is_left(&self) -> bool {
        self.started.sandbox.end().is_none_or(is_readable)
    }

    fn flush(&mut self) {
        if let Some(channel) = self.inside.channel() {
            channel.flush();
        }
        self.clients.flush();
    }

    /// The answer is the streams of connections whose sockets have something.
    fn wait(&self) -> Result<Vec<u32>, SuperviseError> {
        if let Some(pause) = self.pause {
            std::thread::sleep(pause);
        }
        let mut fds = vec![PollFd::new(&self.signals.fd, PollFlags::IN)];
        fds.extend(self.signals.terminal_fd());
        let end = self.started.sandbox.end().filter(|_| match self.state.is_over() {
            true => !self.nothing_is_left(),
            false => !self.absence.is_known(),
        });
        fds.extend(end.as_ref().map(|end| PollFd::new(end, PollFlags::IN)));
        if !self.state.is_over() {
            fds.extend(self.inside.channel_ref().map(|channel| channel.poll_fd()));
            fds.extend(self.disk.poll_fd());
            fds.extend(self.door.as_ref().and_then(ControlSocket::poll_fd));
            fds.extend(self.driver.as_ref().and_then(|driver| driver.poll_fd()));
            fds.extend(self.checkpoints.poll_fd());
        }
        self.clients.watch(&mut fds);
        for task in self.tasks.values() {
            task.watch(self.inside.channel_ref(), &mut fds);
        }
        let mut streams = Vec::new();
        if !self.state.is_over() {
            let mux = self.inside.channel_ref().map(Channel::mux);
            streams = self.crossing.watch(mux, &mut fds);
        }
        wait_until(&mut fds, self.next_moment())?;
        let first = fds.len() - streams.len();
        let sockets = streams.into_iter().zip(&fds[first..]);
        let ready = sockets.filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|(stream, _)| stream).collect())
    }

    fn next_moment(&self) -> Option<Instant> {
        let recorded = self.recorder.next_flush();
        if self.state.is_over() {
            return recorded;
        }
        let quiet = self.waits_for_quiet().then(|| Instant::now() + QUIET_LOOK);
        let deadlines = self
            .tasks
            .values()
            .flat_map(|task| [task.deadline, task.give_up_at])
            .flatten()
            .chain(self.lingering.values().copied());
        [
            self.state.next_moment(),
            self.disk.first_look(),
            self.baselines.first_look(),
            recorded,
            quiet,
            self.door.as_ref().and_then(ControlSocket::shut_until),
            self.inside.channel_ref().and_then(|channel| channel.next_word()),
            self.absence.until(),
            self.crossing.next_moment(),
            self.next_of_driver(),
            Some(self.sampled + SAMPLE_EVERY),
        ]
        .into_iter()
        .flatten()
        .chain(deadlines)
        .min()
    }

    fn next_of_driver(&self) -> Option<Instant> {
        let driver = self.driver.as_ref().filter(|_| !self.state.is_stopping())?;
        let ear = self.tasks.values().find_map(|task| task.ear.as_ref());
        driver.next_moment(ear)
    }

    /// The first request to end is passed on, the second one ends.
    fn take_signals(&mut self) {
        if self.signals.is_hung_up() {
            self.asked_to_stop(libc_signal::HUP);
        }
        for signal in self.signals.take() {
            match signal {
                libc_signal::CHLD => {}
                libc_signal::WINCH => {
                    if let (Some(terminal), Some(channel)) = (&self.terminal, self.inside.channel())
                    {
                        channel.resize(COMMAND, terminal.size());
                    }
                }
                signal => self.asked_to_stop(signal),
            }
        }
        if let Some(status) =
            self.started.sandbox.unsupervised_command().and_then(|child| child.try_wait())
            && !self.state.is_over()
        {
            self.end_task(COMMAND, End::Exited(status));
        }
    }

    pub(super) fn kill(&mut self) {
        if let Some(driver) = &self.driver {
            driver.cancel(); // nobody waits for a checkpoint any more
        }
        self.checkpoints.cancel();
        self.absence.was_killed(Instant::now());
        self.started.sandbox.kill();
    }

    pub(super) fn asked_to_stop(&mut self, signal: i32) {
        // An agent is not asked twice: it has no person who could answer.
        let signal = match (&self.driver, signal) {
            (Some(_), libc_signal::INT | libc_signal::QUIT) => libc_signal::TERM,
            _ => signal,
        };
        match self.state.asked_to_stop(signal, Instant::now()) {
            state::Reaction::Forward => self.inside.signal_command(self.started, signal),
            state::Reaction::ForwardToAll => self.inside.signal_all(self.started, signal),
            state::Reaction::Kill => self.kill(),
        }
        if self.state.is_stopping() {
            self.orders.live.say(RunState::Stopping);
        }
    }

    pub(super) fn never_began(
        &mut self,
        exec: u32,
        failure: belljar_spec::ExecFailure,
    ) -> Result<Result<(), WireError>, RecordError> {
        if !self.tasks.contains_key(&exec) {
            return Ok(Err(protocol_violation("news of a command that was never asked for")));
        }
        if exec == COMMAND {
            self.supervised.failure = Some(failure.clone());
        }
        self.end_task(exec, End::NotExecuted(failure));
        Ok(Ok(()))
    }

    /// A command ended. The run's own takes everything with it, unless the sandbox is to stay.
    pub(super) fn end_task(&mut self, exec: u32, end: End) {
        let Some(task) = self.tasks.get_mut(&exec) else { return };
        if exec == COMMAND
            && let End::Exited(status) = end
        {
            self.supervised.status = Some(status);
        }
        let asked = task.ended == Some(Ended::Asked);
        task.phase = Phase::Over(end);
        if let Some(deadline) = task.deadline.take() {
            self.lingering.insert(exec, deadline);
        }
        if let Some(input) = &mut task.input {
            input.close();
        }
        if exec != COMMAND
            && asked
            && let Some(channel) = self.inside.channel()
        {
            channel.say(&ToInit::KillTree { exec }); // what it left running goes too
        }
        let stays = self.orders.keep == Keep::UntilStopped
            && matches!(self.inside, Inside::Init(_))
            && self.supervised.failure.is_none();
        match (exec, stays) {
            (COMMAND, false) => self.end(),
            // What it left in the background may hold its pipes for ever, and is no longer listened to.
            (COMMAND, true) => self.command_is_over = true,
            _ => {}
        }
    }

    /// The sandbox is over, and with it everything inside; what was written before is still carried.
    pub(super) fn end(&mut self) {
        if self.state.is_over() {
            return;
        }
        self.supervised.stopping = self.supervised.stopping.or(self.state.stopping());
        self.started.sandbox.sample();
        self.started.sandbox.kill();
        self.state.end();
        self.orders.live.say(RunState::Stopping);
        self.door = None;
        self.crossing.end();
        for task in self.tasks.values_mut() {
            if task.is_running() {
                task.phase = Phase::Over(End::Gone);
            }
            task.deadline = None;
            task.input = None;
            task.sandbox_is_gone();
        }
    }

    /// What cannot be recorded, or watched, does not go on.
    fn cannot_go_on(&mut self, error: SuperviseError) {
        self.supervised.broken.get_or_insert(error);
        self.end();
        for task in self.tasks.values_mut() {
            task.give_up();
        }
    }

    /// Tells of commands whose last byte has been passed on.
    fn finish_tasks(&mut self) {
        if self.state.is_over() {
            return; // they are told when the run's end is on disk
        }
        let finished: Vec<u32> =
            self.tasks.values().filter(|task| task.is_finished()).map(|task| task.exec).collect();
        for exec in finished {
            if let Some(task) = self.tasks.remove(&exec)
                && let Err(error) = self.close_task(task)
            {
                self.cannot_go_on(error.into());
            }
        }
    }

    /// Its end is recorded, then told.
    fn close_task(&mut self, mut task: Task) -> Result<(), RecordError> {
        self.record_end(&mut task)?;
        self.own_task_is_over(&mut task)?;
        if let (Some(follower), Some(message)) = (task.follower, task.last_word()) {
            self.clients.end_task(follower.client, follower.task, &message);
        }
        Ok(())
    }

    fn record_end(&mut self, task: &mut Task) -> Result<(), RecordError> {
        if self.recorder.is_sound() {
            if let Some(work) = task.unrecorded.take() {
                self.record_work(task.exec, work)?; // it never came to run
            }
            self.recorder.end_exec(task.exec)?;
            let mut data = json!({ "exec": task.exec, "exit": task.exit() });
            if let Phase::Over(End::NotExecuted(failure)) = &task.phase {
                data["failure"] = json!(self.recorder.secrets().mask_failure(failure));
            }
            self.recorder.event(EventKind::ExecExit, &data)?;
        }
        if task.exec == COMMAND {
            (self.supervised.stdout, self.supervised.stderr) =
                (task.stdout.captured(), task.stderr.captured());
        }
        Ok(())
    }

    /// A kept sandbox that was asked to stop ends as soon as nothing runs in it.
    pub(super) fn waits_for_quiet(&self) -> bool {
        self.orders.keep == Keep::UntilStopped && self.state.is_stopping()
    }

    fn keep_time(&mut self) {
        let now = Instant::now();
        match self.state.due(now) {
            state::Due::Nothing => {}
            state::Due::AskToStop => {
                self.inside.signal_all(self.started, libc_signal::TERM);
                self.orders.live.say(RunState::Stopping);
            }
            state::Due::Kill => self.kill(),
        }
        if self.state.is_over() {
            return;
        }
        if self.waits_for_quiet() && self.started.sandbox.is_quiet() {
            self.end();
        }
        if self.started.sandbox.end().is_some_and(is_readable) {
            self.absence.is_gone(now);
        }
        if self.absence.until().is_some_and(|until| now >= until) {
            self.end();
            return;
        }
        if let Some(channel) = self.inside.channel() {
            channel.keep_lease(now);
        }
        if now >= self.sampled + SAMPLE_EVERY {
            self.sampled = now;
            self.started.sandbox.sample();
        }
        let mut overdue = Vec::new();
        for task in self.tasks.values_mut() {
            if task.deadline.is_some_and(|at| now >= at) {
                task.deadline = None;
                task.end(Ended::Deadline);
                overdue.push(task.exec);
            }
            if task.give_up_at.is_some_and(|at| now >= at) {
                task.stop_waiting(self.inside.channel());
            }
        }
        self.lingering.retain(|exec, at| {
            let is_over = now >= *at;
            overdue.extend(is_over.then_some(*exec));
            !is_over
        });
        if let Some(channel) = self.inside.channel() {
            for exec in overdue {
                channel.say(&ToInit::KillTree { exec });
            }
        }
    }

    fn keep_disk(&mut self) -> Result<(), SuperviseError> {
        if self.state.is_over() {
            return Ok(());
        }
        let full = self
            .disk
            .look(Instant::now())
            .map_err(|error| SuperviseError::Step("watch the disk", error))?;
        if full {
            self.supervised.stopping = Some(Stopping::DiskFull);
            self.kill();
        }
        Ok(())
    }

    pub(super) fn finish(mut self, begun: Instant) -> Supervised {
        if let Err(error) = self.crossing.finish(&mut *self.recorder) {
            self.supervised.broken.get_or_insert(error.into());
        }
        self.checkpoints.give_up();
        let mut farewells = Vec::new();
        for mut task in std::mem::take(&mut self.tasks).into_values() {
            if let Err(error) = self.record_end(&mut task) {
                self.supervised.broken.get_or_insert(error.into());
            }
            farewells.push(ShutdownNotice { message: task.last_word(), task });
        }
        if let Some(mut driver) = self.driver.take() {
            if let Err(error) = driver.finish(&mut *self.recorder) {
                self.supervised.broken.get_or_insert(error);
            }
            let (driven, agent) = driver.into_end();
            self.supervised.agent =
                Some(driven.as_ref().map_or(agent, |driven| driven.report.clone()));
            self.supervised.driven = driven;
        }
        let Self { mut supervised, terminal, clients, orders, signals, .. } = self;
        supervised.kept = orders.keep == Keep::UntilStopped;
        supervised.farewells =
            Some(ShutdownNotices { clients, tasks: farewells, signals, terminal });
        supervised.usage.wall_ms = begun.elapsed().as_millis() as u64;
        supervised
    }
}

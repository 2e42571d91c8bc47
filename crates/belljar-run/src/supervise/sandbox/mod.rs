//! One sandbox under supervision, with everything that belongs to it and to no other: the boundary, the channel to
//! PID 1, its commands and their streams, its connections, its clocks, and its result.

mod client_tasks;
mod end_exec;
mod init_events;
mod list;
mod start_exec;
mod streams;
mod trees;
mod upkeep;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use belljar_backend::Started;
use belljar_record::{Captured, RecordError, Recorder};
use belljar_spec::denied_call::TRACED_FILTER;
use belljar_spec::egress::{Published, SecretValue};
use belljar_spec::network_list::NetworkChange;
use belljar_spec::wire::control::{ControlError, Keep};
use belljar_spec::wire::{Mux, WireError};
use belljar_spec::{
    Attestation, CommandPlan, ExecFailure, ExitStatus, Expectation, OsText, Plan, Posture, Usage,
};
use rustix::event::{PollFd, PollFlags};

use super::SuperviseError;
use super::channel::{Channel, MAIN_EXEC};
use super::client::Clients;
use super::denied_calls::DeniedCallLog;
use super::drive::AgentRecorder;
use super::egress::NetworkBridge;
use super::event_source::{EventSource, PollSet, ReadyStream};
use super::exit_watch::ExitWatch;
use super::init_link::Inside;
use super::readiness::is_readable;
use super::task::{End, Task, TaskPhase};
use super::transfer::Transfers;
use crate::config::SYSTEM_DIRECTORY;
pub(crate) use list::Sandboxes;
pub(super) use start_exec::NewExec;
use streams::OutputPump;

/// Which sandbox of a run. Streams and execs are numbered in each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SandboxId(usize);

impl SandboxId {
    /// The sandbox of the run's command or agent, with which the run ends.
    pub(super) const MAIN: Self = Self(0);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lifecycle {
    Running,
    /// Asked to stop.
    Stopping,
    /// Killed, or found dead. What it wrote before is still read.
    Over,
}

#[derive(Debug)]
pub(crate) struct SandboxState {
    id: SandboxId,
    /// The planned command. Further commands get its environment and working directory.
    command: CommandPlan,
    /// From the request to stop to the kill.
    stop_timeout: Duration,
    keep: Keep,
    expectation: Expectation,
    posture: Posture,
    started: Started,
    link: Inside,
    /// By the number of the exec.
    tasks: BTreeMap<u32, Task>,
    next_exec: u32,
    /// Execs that ended, and until when what they left running may run.
    leftovers: BTreeMap<u32, Instant>,
    network: NetworkBridge,
    /// Only where the plan's filter reports refused calls.
    denied_calls: Option<DeniedCallLog>,
    exit_watch: ExitWatch,
    sampled: Instant,
    lifecycle: Lifecycle,
    /// The main command ended in this turn, and the sandbox stays.
    main_just_ended: bool,
    output: OutputPump,
    transfers: Transfers,
    result: SandboxResult,
}

/// What became of a sandbox and its main command.
#[derive(Debug, Default)]
pub(crate) struct SandboxResult {
    pub(crate) attestation: Option<Box<Attestation>>,
    pub(crate) status: Option<ExitStatus>,
    pub(crate) failure: Option<ExecFailure>,
    /// The channel carried what PID 1 cannot have sent.
    pub(crate) tampered: Option<WireError>,
    pub(crate) stdout: Captured,
    pub(crate) stderr: Captured,
}

/// What the supervisor has to know of a sandbox's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SandboxEvent {
    /// A command wrote something.
    Activity,
    /// PID 1 ended everything since the supervisor did not keep the deadline.
    DeadlinePassed,
    Ended,
}

/// What a sandbox's turn works with besides the sandbox.
pub(super) struct SandboxParts<'p> {
    pub(super) ready: &'p [ReadyStream],
    pub(super) clients: &'p mut Clients,
    pub(super) recorder: &'p mut Recorder,
}

impl SandboxState {
    fn new(id: SandboxId, mut started: Started, plan: &Plan, promised: Promised) -> Self {
        let transfers = Transfers::new(std::mem::take(&mut started.sent));
        let Promised { expectation, posture, keep } = promised;
        Self {
            id,
            command: plan.command.clone(),
            stop_timeout: plan.limits.stop_timeout,
            keep,
            expectation,
            posture,
            started,
            link: Inside::Child,
            tasks: BTreeMap::new(),
            next_exec: MAIN_EXEC + 1,
            leftovers: BTreeMap::new(),
            network: NetworkBridge::default(),
            denied_calls: (plan.filter == TRACED_FILTER).then(DeniedCallLog::new),
            exit_watch: ExitWatch::default(),
            sampled: Instant::now(),
            lifecycle: Lifecycle::Running,
            main_just_ended: false,
            output: OutputPump::default(),
            transfers,
            result: SandboxResult::default(),
        }
    }

    pub(crate) fn started(&self) -> &Started {
        &self.started
    }

    pub(crate) fn started_mut(&mut self) -> &mut Started {
        &mut self.started
    }

    pub(crate) fn posture(&self) -> &Posture {
        &self.posture
    }

    pub(super) fn expectation(&self) -> &Expectation {
        &self.expectation
    }

    pub(super) fn link(&mut self) -> &mut Inside {
        &mut self.link
    }

    /// For a backend with a PID 1, once its channel is open.
    pub(super) fn connect(&mut self, channel: Channel) {
        self.link = Inside::Init(Box::new(channel));
    }

    /// The network bridge, with the listening sockets that the sandbox was started with.
    pub(super) fn open_network(
        &mut self,
        mut network: NetworkBridge,
        recorder: &mut Recorder,
    ) -> Result<(), RecordError> {
        network.prepare(std::mem::take(&mut self.started.listeners), recorder)?;
        self.network = network;
        Ok(())
    }

    /// The main command runs, if there is one.
    pub(super) fn begin(&mut self, main: Option<Task>, begun: Instant) {
        self.tasks.extend(main.map(|task| (MAIN_EXEC, task)));
        self.sampled = begun;
        self.output = OutputPump::new();
    }

    pub(super) fn published(&self) -> Vec<Published> {
        self.network.published()
    }

    pub(super) fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        self.started.sandbox.usage(&mut usage);
        usage
    }

    /// How often the kernel ended something inside for want of memory so far.
    pub(super) fn oom_kills(&mut self) -> u64 {
        self.started.sandbox.sample();
        self.started.sandbox.oom_kills()
    }

    /// Where programs are searched inside.
    pub(super) fn search_path(&self) -> Option<&OsText> {
        self.command.env.get("PATH")
    }

    pub(super) fn has_init(&self) -> bool {
        matches!(self.link, Inside::Init(_))
    }

    fn is_over(&self) -> bool {
        self.lifecycle == Lifecycle::Over
    }

    /// Over, and everything its commands wrote is recorded.
    fn is_finished(&self) -> bool {
        self.is_over() && self.tasks.values().all(Task::is_recorded)
    }

    pub(super) fn stop_timeout(&self) -> Duration {
        self.stop_timeout
    }

    pub(super) fn task_mut(&mut self, exec: u32) -> Option<&mut Task> {
        self.tasks.get_mut(&exec)
    }

    pub(super) fn running_tasks(&self) -> usize {
        self.tasks.values().filter(|task| task.is_running()).count()
    }

    /// The events of the agent that runs in it, if one does.
    pub(super) fn agent_recorder(&self) -> Option<&AgentRecorder> {
        self.tasks.values().find_map(|task| task.agent.as_ref())
    }

    pub(super) fn signal_exec(&mut self, exec: u32, signal: i32) {
        if let Some(channel) = self.link.channel() {
            channel.signal(exec, signal);
        }
    }

    pub(super) fn signal_main(&mut self, signal: i32) {
        self.link.signal_command(&mut self.started, signal);
    }

    fn signal_all(&mut self, signal: i32) {
        self.link.signal_all(&mut self.started, signal);
    }

    pub(super) fn resize_exec(&mut self, exec: u32, size: super::channel::Size) {
        if let Some(channel) = self.link.channel() {
            channel.resize(exec, size);
        }
    }

    /// Closes the network access that only an agent's set-up has.
    pub(super) fn narrow_network(&mut self, recorder: &mut Recorder) -> Result<(), RecordError> {
        let mux = self.link.channel().map(Channel::mux_mut);
        self.network.narrow(mux, recorder)
    }

    /// Changes what may be reached; see [`NetworkBridge::change_list`].
    pub(super) fn change_network(
        &mut self,
        change: &NetworkChange,
        recorder: &mut Recorder,
    ) -> Result<Result<u64, ControlError>, RecordError> {
        let mux = self.link.channel().map(Channel::mux_mut);
        self.network.change_list(change, Path::new(SYSTEM_DIRECTORY), mux, recorder)
    }

    pub(super) fn network(&self) -> &NetworkBridge {
        &self.network
    }

    /// Sends the proxy a new value for one of its secrets.
    pub(super) fn replace_secret(&mut self, value: SecretValue) {
        self.network.replace_secret(value);
    }

    /// Writes down the refused calls that were only counted so far.
    pub(super) fn finish_denied_calls(
        &mut self,
        recorder: &mut Recorder,
    ) -> Result<(), RecordError> {
        self.denied_calls.as_mut().map_or(Ok(()), |calls| calls.finish(recorder))
    }

    pub(super) fn has_proxy(&self) -> bool {
        self.network.proxy.is_some()
    }

    fn kill(&mut self, now: Instant) {
        if self.transfers.end_gently(self.link.channel(), now) {
            return;
        }
        self.exit_watch.was_killed(now);
        self.started.sandbox.kill();
    }

    /// The sandbox is over, and with it everything inside; what was written before is still read.
    fn end(&mut self) {
        if self.is_over() {
            return;
        }
        self.started.sandbox.sample();
        self.bring_trees_back();
        self.started.sandbox.kill();
        self.lifecycle = Lifecycle::Over;
        self.network.end();
        for task in self.tasks.values_mut() {
            if task.is_running() {
                task.phase = TaskPhase::Over(End::Gone);
            }
            task.deadline = None;
            task.input = None;
            task.sandbox_is_gone();
        }
    }

    /// Everything inside is gone. Whoever holds a command's streams now is not part of this run, and what it writes
    /// is not part of the record: a descriptor can be passed to another process.
    fn is_empty(&self) -> bool {
        self.started.sandbox.end().is_none_or(is_readable)
    }

    fn mux(&self) -> Option<&Mux> {
        self.link.channel_ref().map(Channel::mux)
    }
}

/// What was decided about a sandbox before it was started.
#[derive(Debug)]
pub(crate) struct Promised {
    pub(crate) expectation: Expectation,
    pub(crate) posture: Posture,
    pub(crate) keep: Keep,
}

impl EventSource for SandboxState {
    type Parts<'p> = SandboxParts<'p>;
    type Event = SandboxEvent;

    fn watch<'a>(&'a self, poll: &mut PollSet<'a>) {
        let exit = self.started.sandbox.end().filter(|_| match self.lifecycle {
            Lifecycle::Running | Lifecycle::Stopping => !self.exit_watch.is_gone(),
            Lifecycle::Over => !self.is_empty(),
        });
        poll.fds().extend(exit.map(|exit| PollFd::from_borrowed_fd(exit, PollFlags::IN)));
        let channel = self.link.channel_ref();
        if !self.is_over() {
            poll.fds().extend(channel.and_then(Channel::poll_fd));
        }
        for task in self.tasks.values() {
            task.watch(channel, poll.fds());
        }
        if !self.is_over() {
            let streams = self.network.watch(self.mux(), poll.fds());
            poll.name_last(self.id, streams);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self.lifecycle {
            Lifecycle::Running | Lifecycle::Stopping => self.next_upkeep(),
            Lifecycle::Over => None,
        }
    }

    fn take_turn(
        &mut self,
        now: Instant,
        mut parts: SandboxParts<'_>,
    ) -> Result<Vec<SandboxEvent>, SuperviseError> {
        let was_over = self.is_over();
        let mut events = Vec::new();
        self.reap_unsupervised_command();
        self.take_messages(&mut parts, &mut events)?;
        self.move_connections(&mut parts)?;
        if self.move_streams(&mut parts)? > 0 {
            events.push(SandboxEvent::Activity);
        }
        if let Some(calls) = &mut self.denied_calls {
            calls.turn(now, parts.recorder)?;
        }
        self.upkeep(now);
        if !was_over && self.is_over() {
            events.push(SandboxEvent::Ended);
        }
        Ok(events)
    }
}

//! One command in a sandbox: its streams, its deadline, and the client that follows it.

use std::time::{Duration, Instant};

use belljar_spec::wire::Work;
use belljar_spec::wire::control::{Bond, FromSupervisor, Streams, TaskStreams};
use belljar_spec::{
    EXIT_DEADLINE, EventKind, ExecFailure, Exit, ExitSource, ExitStatus, OsText, OutputStream,
};
use rustix::event::PollFd;
use serde_json::json;

use super::channel::{Channel, MAIN_EXEC};
use super::client::{ClientId, Clients};
use super::drive::AgentRecorder;
use super::inlet::{Inlet, InputSource};
use super::outlet::{Outlet, OutputSink};
use belljar_record::{RecordError, Recorder};

/// Taken from one stream before the next source has its turn.
const MAX_CHUNKS: usize = 9;

/// How long a command that is being ended waits for a follower that takes nothing.
const FOLLOWER_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) enum TaskPhase {
    /// Its process locks itself down; these are the variables it must attest.
    Preparing { environment: Vec<OsText> },
    /// Released.
    Running,
    /// Its streams may still hold something.
    Over(End),
}

#[derive(Clone, Debug)]
pub(super) enum End {
    Exited(ExitStatus),
    NotExecuted(ExecFailure),
    /// It went with the sandbox.
    Gone,
}

/// Who ended a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedBy {
    Deadline,
    /// A client or its disconnection.
    Request,
}

/// A connection that follows a task, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Follower {
    pub(super) client: ClientId,
    pub(super) task: u32,
}

/// What standard output carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carries {
    Output,
    /// Files for the host, which are not recorded.
    Files,
}

#[derive(Debug)]
pub(super) struct Task {
    pub(super) exec: u32,
    pub(super) carries: Carries,
    pub(super) stdout: Outlet,
    pub(super) stderr: Outlet,
    pub(super) input: Option<Inlet>,
    pub(super) follower: Option<Follower>,
    pub(super) bond: Bond,
    pub(super) phase: TaskPhase,
    /// What it is to do, until that is recorded.
    pub(super) unrecorded: Option<Work>,
    pub(super) deadline: Option<Instant>,
    /// Its follower is waited for until then.
    pub(super) give_up_at: Option<Instant>,
    pub(super) ended_by: Option<EndedBy>,
    /// Parses what it prints, where it is an agent.
    pub(super) agent: Option<AgentRecorder>,
}

impl Task {
    /// A command that runs, is followed by no client, and has no input.
    pub(super) fn new(exec: u32, stdout: Outlet, stderr: Outlet) -> Self {
        Self {
            exec,
            carries: Carries::Output,
            stdout,
            stderr,
            input: None,
            follower: None,
            bond: Bond::LivesOn,
            phase: TaskPhase::Running,
            unrecorded: None,
            deadline: None,
            give_up_at: None,
            ended_by: None,
            agent: None,
        }
    }

    /// Its process is being made. `environment` has the names that it must attest.
    pub(super) fn preparing(self, work: Work, environment: Vec<OsText>) -> Self {
        let carries = match &work {
            Work::Pack { .. } => Carries::Files,
            Work::Program { .. } | Work::Nothing | Work::Unpack { .. } => Carries::Output,
        };
        let phase = TaskPhase::Preparing { environment };
        Self { carries, phase, unrecorded: Some(work), ..self }
    }

    /// Once for each command, before its end at the latest.
    pub(super) fn record_start(&mut self, recorder: &mut Recorder) -> Result<(), RecordError> {
        let Some(work) = self.unrecorded.take() else { return Ok(()) };
        let exec = self.exec;
        let masked = |path: OsText| recorder.masked(&[path]).pop();
        let data = match work {
            Work::Program { argv } => json!({ "exec": exec, "argv": recorder.masked(&argv) }),
            Work::Pack { path } => json!({ "exec": exec, "copy_out": masked(path) }),
            Work::Unpack { path, .. } => json!({ "exec": exec, "copy_in": masked(path) }),
            Work::Nothing => json!({ "exec": exec }),
        };
        recorder.event(EventKind::ExecStart, &data)
    }

    pub(super) fn record_end(&mut self, recorder: &mut Recorder) -> Result<(), RecordError> {
        self.record_start(recorder)?; // if it never came to run
        recorder.end_exec(self.exec)?;
        let mut data = json!({ "exec": self.exec, "exit": self.exit() });
        if let TaskPhase::Over(End::NotExecuted(failure)) = &self.phase {
            data["failure"] = json!(recorder.secrets().mask_failure(failure));
        }
        recorder.event(EventKind::ExecExit, &data)
    }

    pub(super) fn is_running(&self) -> bool {
        !matches!(self.phase, TaskPhase::Over(_))
    }

    /// It is being ended. A follower that takes nothing must not hold that up for ever.
    pub(super) fn end(&mut self, by: EndedBy) {
        self.ended_by = self.ended_by.or(Some(by));
        self.give_up_at.get_or_insert(Instant::now() + FOLLOWER_TIMEOUT);
    }

    /// What its follower has not taken is given up.
    pub(super) fn stop_waiting(&mut self, mut channel: Option<&mut Channel>) {
        self.give_up_at = None;
        for outlet in [&mut self.stdout, &mut self.stderr] {
            outlet.redirect(OutputSink::Nowhere, channel.as_deref_mut());
        }
    }

    /// Over, and nothing is left to be passed on.
    pub(super) fn is_finished(&self) -> bool {
        matches!(self.phase, TaskPhase::Over(_)) && self.stdout.is_done() && self.stderr.is_done()
    }

    /// Over, and all its output is in the record.
    pub(super) fn is_recorded(&self) -> bool {
        matches!(self.phase, TaskPhase::Over(_)) && self.stdout.is_ended() && self.stderr.is_ended()
    }

    pub(super) fn watch<'a>(&'a self, channel: Option<&Channel>, fds: &mut Vec<PollFd<'a>>) {
        self.stdout.watch(fds);
        self.stderr.watch(fds);
        if let Some(input) = &self.input {
            input.watch(channel, fds);
        }
    }

    /// How many bytes the command wrote.
    pub(super) fn move_bytes(
        &mut self,
        buffer: &mut [u8],
        mut channel: Option<&mut Channel>,
        clients: &mut Clients,
        recorder: &mut Recorder,
    ) -> Result<usize, RecordError> {
        let mut moved = 0;
        for outlet in [&mut self.stdout, &mut self.stderr] {
            outlet.pass_on(clients, channel.as_deref_mut());
            for _ in 0..MAX_CHUNKS {
                let Some(bytes) = outlet.read(buffer) else { break };
                recorder.output(self.exec, outlet.stream, bytes, Instant::now())?;
                outlet.accept(bytes, None);
                outlet.pass_on(clients, None);
                moved += bytes.len();
            }
        }
        if let Some(input) = &mut self.input {
            input.move_bytes(channel, clients);
        }
        Ok(moved)
    }

    /// The channel brought bytes of one of its streams.
    pub(super) fn take_output(
        &mut self,
        stream: u32,
        bytes: &[u8],
        channel: &mut Channel,
        clients: &mut Clients,
        recorder: &mut Recorder,
    ) -> Result<(), RecordError> {
        for outlet in [&mut self.stdout, &mut self.stderr] {
            if outlet.is_fed_by(stream) {
                if (self.carries, outlet.stream) != (Carries::Files, OutputStream::Stdout) {
                    recorder.output(self.exec, outlet.stream, bytes, Instant::now())?;
                }
                if let (Some(agent), OutputStream::Stdout) = (&mut self.agent, outlet.stream) {
                    agent.take_output(bytes, recorder)?;
                }
                outlet.accept(bytes, Some(channel));
                outlet.pass_on(clients, Some(channel));
            }
        }
        Ok(())
    }

    pub(super) fn is_followed(&self) -> bool {
        self.follower.is_some() || self.stdout.goes_to_fd()
    }

    /// From now on this connection is given the output, and gives the input.
    pub(super) fn follow(&mut self, client: ClientId, numbers: TaskStreams, streams: Streams) {
        self.follower = Some(Follower { client, task: MAIN_EXEC });
        let to = |stream| OutputSink::Client { client, stream };
        match streams {
            Streams::Unwatched => return,
            Streams::Terminal(_) => self.stdout.redirect(to(numbers.stdin), None),
            Streams::Output | Streams::InputAndOutput => {
                self.stdout.redirect(to(numbers.stdout), None);
                self.stderr.redirect(to(numbers.stderr), None);
            }
        }
        if let (Streams::Terminal(_) | Streams::InputAndOutput, Some(input)) =
            (streams, &mut self.input)
        {
            input.set_source(InputSource::Client { client, stream: numbers.stdin });
        }
    }

    /// Its follower is gone. Its output is still recorded, and another client may attach.
    pub(super) fn unfollow(&mut self, mut channel: Option<&mut Channel>) {
        let Some(follower) = self.follower.take() else { return };
        for outlet in [&mut self.stdout, &mut self.stderr] {
            if outlet.follower() == Some(follower.client) {
                outlet.redirect(OutputSink::Nowhere, channel.as_deref_mut());
            }
        }
        if let Some(input) = &mut self.input
            && input.is_given_by(follower.client)
        {
            input.set_source(InputSource::Detached);
        }
    }

    /// A follower takes no more of one stream.
    pub(super) fn stop_output(
        &mut self,
        client: ClientId,
        stream: u32,
        mut channel: Option<&mut Channel>,
    ) {
        for outlet in [&mut self.stdout, &mut self.stderr] {
            if !outlet.is_sent_to(client, stream) {
                continue;
            }
            match self.bond {
                // As `| head` does: the command finds a closed pipe.
                Bond::EndsWithConnection => outlet.stop(channel.as_deref_mut()),
                // The client only watched.
                Bond::LivesOn => outlet.redirect(OutputSink::Nowhere, channel.as_deref_mut()),
            }
        }
    }

    /// Nothing more can come over the channel; pipes end by themselves.
    pub(super) fn sandbox_is_gone(&mut self) {
        for outlet in [&mut self.stdout, &mut self.stderr] {
            outlet.channel_is_gone();
        }
    }

    /// Everything inside is gone; see [`Outlet::read_the_rest`].
    pub(super) fn read_the_rest(&mut self) {
        self.stdout.read_the_rest();
        self.stderr.read_the_rest();
    }

    /// What cannot be recorded is not read.
    pub(super) fn give_up(&mut self) {
        self.stdout.end();
        self.stderr.end();
    }

    pub(super) fn end_output(&mut self, stream: u32) {
        for outlet in [&mut self.stdout, &mut self.stderr] {
            if outlet.is_fed_by(stream) {
                outlet.end();
            }
        }
    }

    pub(super) fn has_stream(&self, stream: u32) -> bool {
        self.stdout.is_fed_by(stream)
            || self.stderr.is_fed_by(stream)
            || self.input.as_ref().is_some_and(|input| input.goes_to(stream))
    }

    pub(super) fn pass_on(&mut self, clients: &mut Clients) {
        self.stdout.pass_on(clients, None);
        self.stderr.pass_on(clients, None);
    }

    /// Bytes that no follower has taken yet.
    pub(super) fn waiting(&self) -> usize {
        self.stdout.waiting() + self.stderr.waiting()
    }

    pub(super) fn drop_waiting(&mut self) {
        self.stdout.give_up();
        self.stderr.give_up();
    }

    /// What its follower is sent after the last byte.
    pub(super) fn end_message(&self) -> Option<FromSupervisor> {
        let task = self.follower?.task;
        Some(match &self.phase {
            TaskPhase::Over(End::NotExecuted(failure)) => {
                FromSupervisor::TaskFailed { task, failure: failure.clone() }
            }
            _ => FromSupervisor::TaskEnded { task, exit: self.exit() },
        })
    }

    /// The exit to report: the kernel's status, unless belljar ended the command.
    pub(super) fn exit(&self) -> Exit {
        let killed = Exit { code: None, signal: Some(9), source: ExitSource::Sandbox };
        match (&self.phase, self.ended_by) {
            (TaskPhase::Over(_), Some(EndedBy::Deadline)) => {
                Exit::of_belljar(EXIT_DEADLINE, ExitSource::Deadline)
            }
            (TaskPhase::Over(End::Exited(status)), _) => Exit::of_command(*status),
            (TaskPhase::Over(End::NotExecuted(failure)), _) => {
                Exit::of_belljar(failure.exit_code(), ExitSource::Sandbox)
            }
            _ => killed,
        }
    }
}

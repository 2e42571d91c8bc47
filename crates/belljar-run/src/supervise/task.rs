//! One command in the sandbox: its streams, its clock, and who follows it.

use std::time::{Duration, Instant};

use belljar_spec::wire::Work;
use belljar_spec::wire::control::{Bond, FromSupervisor, Streams, TaskStreams};
use belljar_spec::{
    EXIT_DEADLINE, ExecFailure, Exit, ExitSource, ExitStatus, OsText, OutputStream,
};
use rustix::event::PollFd;

use super::channel::{COMMAND, Channel};
use super::client::{ClientId, Clients};
use super::drive::AgentRecorder;
use super::inlet::{Inlet, InputSource};
use super::outlet::{Outlet, OutputSink};
use belljar_record::{RecordError, Recorder};

/// What is taken from one stream before the loop looks at everything else again.
const CHUNKS_AT_ONCE: usize = 9;

/// How long a command that is being ended waits for a follower that takes nothing.
const FOLLOWER_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) enum Phase {
    /// Its process locks itself down; these are the variables it must attest.
    Preparing { environment: Vec<OsText> },
    /// Let go.
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

/// Why belljar ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Deadline,
    Asked,
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
    /// Files on their way to the host, where they are kept anyway: not in the record.
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
    pub(super) phase: Phase,
    /// What it is to do, until that is recorded.
    pub(super) unrecorded: Option<Work>,
    pub(super) deadline: Option<Instant>,
    /// Its follower is waited for until then.
    pub(super) give_up_at: Option<Instant>,
    pub(super) ended: Option<Ended>,
    /// Of an agent: what it prints means something.
    pub(super) ear: Option<AgentRecorder>,
}

impl Task {
    pub(super) fn is_running(&self) -> bool {
        !matches!(self.phase, Phase::Over(_))
    }

    /// It is being ended. A follower that takes nothing must not hold that up for ever.
    pub(super) fn end(&mut self, why: Ended) {
        self.ended = self.ended.or(Some(why));
        self.give_up_at.get_or_insert(Instant::now() + FOLLOWER_WITHIN);
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
        matches!(self.phase, Phase::Over(_)) && self.stdout.is_done() && self.stderr.is_done()
    }

    /// Over, and all it said is in the record.
    pub(super) fn is_recorded(&self) -> bool {
        matches!(self.phase, Phase::Over(_)) && self.stdout.is_ended() && self.stderr.is_ended()
    }

    pub(super) fn watch<'a>(&'a self, channel: Option<&Channel>, fds: &mut Vec<PollFd<'a>>) {
        self.stdout.watch(fds);
        self.stderr.watch(fds);
        if let Some(input) = &self.input {
            input.watch(channel, fds);
        }
    }

    /// How much the command said.
    pub(super) fn move_bytes(
        &mut self,
        buffer: &mut [u8],
        mut channel: Option<&mut Channel>,
        clients: &mut Clients,
        recorder: &mut Recorder,
    ) -> Result<usize, RecordError> {
        let mut said = 0;
        for outlet in [&mut self.stdout, &mut self.stderr] {
            outlet.pass_on(clients, channel.as_deref_mut());
            for _ in 0..CHUNKS_AT_ONCE {
                let Some(bytes) = outlet.read(buffer) else { break };
                recorder.output(self.exec, outlet.stream, bytes, Instant::now())?;
                outlet.accept(bytes, None);
                outlet.pass_on(clients, None);
                said += bytes.len();
            }
        }
        if let Some(input) = &mut self.input {
            input.move_bytes(channel, clients);
        }
        Ok(said)
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
                if let (Some(ear), OutputStream::Stdout) = (&mut self.ear, outlet.stream) {
                    ear.hear(bytes, recorder)?;
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
        self.follower = Some(Follower { client, task: COMMAND });
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
            input.hand_to(InputSource::Client { client, stream: numbers.stdin });
        }
    }

    /// Its follower is gone. What it says is recorded all the same, and somebody else may come.
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
            input.hand_to(InputSource::Nobody);
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
                // As `| head` does: the command is told by a closed pipe.
                Bond::EndsWithConnection => outlet.stop(channel.as_deref_mut()),
                // It was only looked at.
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

    /// Bytes that nobody has taken yet.
    pub(super) fn waiting(&self) -> usize {
        self.stdout.waiting() + self.stderr.waiting()
    }

    pub(super) fn drop_waiting(&mut self) {
        self.stdout.give_up();
        self.stderr.give_up();
    }

    /// What its follower is told at the very end.
    pub(super) fn last_word(&self) -> Option<FromSupervisor> {
        let task = self.follower?.task;
        Some(match &self.phase {
            Phase::Over(End::NotExecuted(failure)) => {
                FromSupervisor::TaskFailed { task, failure: failure.clone() }
            }
            _ => FromSupervisor::TaskEnded { task, exit: self.exit() },
        })
    }

    /// What to report of a command that ended: the kernel's word, unless belljar ended it.
    pub(super) fn exit(&self) -> Exit {
        let killed = Exit { code: None, signal: Some(9), source: ExitSource::Sandbox };
        match (&self.phase, self.ended) {
            (Phase::Over(_), Some(Ended::Deadline)) => {
                Exit::of_belljar(EXIT_DEADLINE, ExitSource::Deadline)
            }
            (Phase::Over(End::Exited(status)), _) => Exit::of_command(*status),
            (Phase::Over(End::NotExecuted(failure)), _) => {
                Exit::of_belljar(failure.exit_code(), ExitSource::Sandbox)
            }
            _ => killed,
        }
    }
}

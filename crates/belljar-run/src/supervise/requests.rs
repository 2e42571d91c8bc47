//! What connections ask for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use belljar_spec::wire::control::{
    Bond, ControlError, FromSupervisor, MAX_TASKS, RunStatus, Streams, TaskRequest, TaskStreams,
    ToSupervisor, WindowSize,
};
use belljar_spec::wire::{
    AttestationKind, Descendants, ExecRequest, Stdio, ToInit, WireError, Work,
};
use belljar_spec::{
    EventKind, ExecFailure, OsText, OutputStream, RunState, ShortAttestation, Terminal, Usage,
};
use serde_json::json;

use super::channel::{COMMAND, protocol_violation};
use super::client::{Brought, ClientId, Connection};
use super::event_loop::Run;
use super::inlet::{Inlet, InputSink, InputSource};
use super::outlet::{Outlet, OutputSink, OutputSource};
use super::task::{Carries, Ended, Follower, Phase, Task};
use super::{Inside, libc_signal};
use belljar_record::{RecordError, looks_secret};

impl Run<'_> {
    pub(super) fn take_requests(&mut self) -> Result<(), RecordError> {
        while let Some(fd) = self.door.as_mut().and_then(|door| door.answer()) {
            // One too many, or a socket that is closed already: nothing was promised.
            match Connection::new(fd) {
                Ok(connection) => drop(self.clients.add(connection)),
                Err(error) => tracing::debug!(%error, "control connection refused"),
            }
        }
        for (client, brought) in self.clients.read(self.orders.run) {
            match brought {
                Brought::Request(request) => self.handle_request(client, request)?,
                Brought::Data { stream, bytes } => self.typed(client, stream, &bytes),
                Brought::End { stream } => self.stdin_eof(client, stream),
                Brought::Reset { stream } => self.reset_output(client, stream),
                Brought::Closed => self.let_client_go(client),
            }
        }
        Ok(())
    }

    fn handle_request(
        &mut self,
        client: ClientId,
        request: ToSupervisor,
    ) -> Result<(), RecordError> {
        match request {
            ToSupervisor::Exec(request) => return self.exec(client, *request),
            ToSupervisor::Attach { streams } => self.attach(client, streams),
            ToSupervisor::Signal { task, signal } => self.signal_task(client, task, signal),
            ToSupervisor::Resize { task, size } => self.resize_task(client, task, size),
            ToSupervisor::Kill { task } => self.kill_task(client, task),
            ToSupervisor::Stop { grace_ms } => {
                let grace = grace_ms.map(Duration::from_millis);
                // Who asks again only shortens the grace.
                if !self.state.shorten_grace(grace, Instant::now()) {
                    self.asked_to_stop(libc_signal::TERM);
                }
            }
            ToSupervisor::Status => self.tell_status(client),
            ToSupervisor::Checkpoint { note } => self.checkpoint_requested(client, note),
            ToSupervisor::Hello(_) | ToSupervisor::Launch(_) => {
                let why = "this supervisor has its run already".to_owned();
                self.clients.say(client, &FromSupervisor::Refused(ControlError::OutOfTurn { why }));
            }
        }
        Ok(())
    }

    fn run_state(&self) -> RunState {
        if self.state.is_over() || self.state.is_stopping() {
            RunState::Stopping
        } else {
            RunState::Running
        }
    }

    fn tell_status(&mut self, client: ClientId) {
        let mut usage = Usage::default();
        self.started.sandbox.usage(&mut usage);
        usage.wall_ms = self.state.elapsed().as_millis() as u64;
        let status = RunStatus {
            run: self.orders.run,
            state: self.run_state(),
            backend: self.plan.backend,
            keep: self.orders.keep,
            tasks: self.tasks.values().filter(|task| task.is_running()).count() as u32,
            usage,
            ports: self.crossing.published(),
        };
        self.clients.say(client, &FromSupervisor::Status(Box::new(status)));
    }

    /// One more command: PID 1 makes its process, which attests before it is let go.
    fn exec(&mut self, client: ClientId, request: TaskRequest) -> Result<(), RecordError> {
        let number = request.task;
        let run = self.orders.run;
        let _exec = tracing::debug_span!("exec", %run, exec = self.next_exec).entered();
        if let Some(error) = self.against_rules(&request)? {
            tracing::debug!("refused by the rules for commands");
            self.refuse_task(client, number, error);
            return Ok(());
        }
        if let Err(error) = self.start_task(client, request) {
            tracing::debug!(%error, "refused");
            self.refuse_task(client, number, error);
        }
        Ok(())
    }

    fn refuse_task(&mut self, client: ClientId, task: u32, error: ControlError) {
        self.clients.say(client, &FromSupervisor::TaskRefused { task, error });
        if let Some(connection) = self.clients.get(client) {
            connection.forget_streams(task);
        }
    }

    fn start_task(&mut self, client: ClientId, request: TaskRequest) -> Result<(), ControlError> {
        let TaskRequest { task: number, work, env, workdir, streams, timeout_ms, bond } = request;
        let bad = |why: &str| ControlError::BadTask { task: number, why: why.to_owned() };
        let state = self.run_state();
        let Inside::Init(channel) = &mut self.inside else { return Err(ControlError::NoInit) };
        if !state.allows_exec() {
            return Err(ControlError::NotRunning { state });
        }
        if self.tasks.len() >= MAX_TASKS {
            return Err(ControlError::TooMany { most: MAX_TASKS });
        }
        if self.checkpoints.is_pending() {
            return Err(ControlError::CheckpointPending);
        }
        if number == COMMAND {
            return Err(bad("0 is the run's own command"));
        }
        if matches!(&work, Work::Nothing)
            || matches!(&work, Work::Program { argv } if argv.is_empty())
        {
            return Err(bad("there is no command"));
        }
        let exec = self.next_exec;
        let inside = TaskStreams::of(exec).ok_or(ControlError::TooMany { most: MAX_TASKS })?;
        let outside = TaskStreams::of(number).ok_or_else(|| bad("its number is too high"))?;
        let stdio = match streams {
            Streams::Terminal(WindowSize { rows, columns }) => {
                Stdio::Pty { stream: inside.stdin, rows, columns }
            }
            Streams::InputAndOutput => Stdio::Streams {
                stdin: Some(inside.stdin),
                stdout: inside.stdout,
                stderr: inside.stderr,
            },
            Streams::Output | Streams::Unwatched => {
                Stdio::Streams { stdin: None, stdout: inside.stdout, stderr: inside.stderr }
            }
        };
        if let Some((name, _)) = env.iter().find(|(name, _)| !is_variable(name)) {
            return Err(bad(&format!("\"{}\" is no name of a variable", name.escape_debug())));
        }
        let secret = env.iter().filter(|(name, _)| looks_secret(name));
        self.recorder
            .add_secrets(secret.filter_map(|(_, value)| Some(value.as_ref()?.as_bytes().to_vec())));
        let env = merged(&self.plan.command.env, env);
        let environment = env.keys().map(|name| OsText::from(name.as_str())).collect();
        let asked = ExecRequest {
            exec,
            work: work.clone(),
            env,
            workdir: workdir.unwrap_or_else(|| self.plan.command.workdir.clone()),
            stdio,
            depth: AttestationKind::Short,
            descendants: Descendants::Tracked,
        };
        channel.ask_for_exec(&asked).map_err(|error| bad(&error.to_string()))?;
        self.next_exec += 1;
        let to = |stream| match streams {
            Streams::Unwatched => OutputSink::Nowhere,
            _ => OutputSink::Client { client, stream },
        };
        let (stdout, stderr, input) = match streams {
            Streams::Terminal(_) => (
                Outlet::new(
                    OutputStream::Stdout,
                    OutputSource::Channel(inside.stdin),
                    to(outside.stdin),
                ),
                Outlet::new(OutputStream::Stderr, OutputSource::Ended, OutputSink::Nowhere),
                Some((outside.stdin, inside.stdin)),
            ),
            _ => (
                Outlet::new(
                    OutputStream::Stdout,
                    OutputSource::Channel(inside.stdout),
                    to(outside.stdout),
                ),
                Outlet::new(
                    OutputStream::Stderr,
                    OutputSource::Channel(inside.stderr),
                    to(outside.stderr),
                ),
                matches!(streams, Streams::InputAndOutput).then_some((outside.stdin, inside.stdin)),
            ),
        };
        let input = input.map(|(stream, to)| {
            Inlet::new(InputSource::Client { client, stream }, InputSink::Channel(to))
        });
        let deadline = timeout_ms.map(|timeout| Instant::now() + Duration::from_millis(timeout));
        let follower = Some(Follower { client, task: number });
        let carries = match &work {
            Work::Pack { .. } | Work::List { .. } => Carries::Files,
            Work::Program { .. } | Work::Nothing | Work::Unpack { .. } => Carries::Output,
        };
        let phase = Phase::Preparing { environment };
        let unrecorded = Some(work);
        let task = Task {
            exec,
            carries,
            stdout,
            stderr,
            input,
            follower,
            bond,
            phase,
            unrecorded,
            deadline,
            give_up_at: None,
            ended: None,
            ear: None,
        };
        self.tasks.insert(exec, task);
        Ok(())
    }

    /// A later command is as locked down as the first: recorded, then let go.
    pub(super) fn attested(
        &mut self,
        exec: u32,
        attestation: &ShortAttestation,
    ) -> Result<Result<(), WireError>, RecordError> {
        let waiting = self.tasks.get_mut(&exec).and_then(|task| match &task.phase {
            Phase::Preparing { environment } => Some(environment.clone()),
            _ => None,
        });
        let (Some(environment), Inside::Init(_)) = (waiting, &self.inside) else {
            return Ok(Err(protocol_violation("an attestation nobody asked for")));
        };
        let wrong = self.expectation.compare_short(attestation, &environment);
        if !wrong.is_empty() {
            let why = format!("it is not locked down as planned: {}", wrong.join("; "));
            if let Some(channel) = self.inside.channel() {
                channel.say(&ToInit::Dismiss { exec });
            }
            return self.never_began(exec, ExecFailure::Other { why });
        }
        self.record_start(exec)?;
        self.recorder.flush()?; // with the system before its effect; on disk with the next barrier
        if let Some(task) = self.tasks.get_mut(&exec) {
            task.phase = Phase::Running;
        }
        if let Some(channel) = self.inside.channel() {
            channel.let_go(exec);
        }
        Ok(Ok(()))
    }

    /// Once for each command, before its end at the latest.
    pub(super) fn record_start(&mut self, exec: u32) -> Result<(), RecordError> {
        let Some(work) = self.tasks.get_mut(&exec).and_then(|task| task.unrecorded.take()) else {
            return Ok(());
        };
        self.record_work(exec, work)
    }

    pub(super) fn record_work(&mut self, exec: u32, work: Work) -> Result<(), RecordError> {
        let masked = |path: OsText| self.recorder.masked(&[path]).pop();
        let what = match work {
            Work::Program { argv } => json!({ "exec": exec, "argv": self.recorder.masked(&argv) }),
            Work::Pack { path } => json!({ "exec": exec, "copy_out": masked(path) }),
            Work::Unpack { path } => json!({ "exec": exec, "copy_in": masked(path) }),
            Work::List { path } => json!({ "exec": exec, "list": masked(path) }),
            Work::Nothing => json!({ "exec": exec }),
        };
        self.recorder.event(EventKind::ExecStart, &what)
    }

    /// The run's own command is followed over this connection from now on.
    fn attach(&mut self, client: ClientId, streams: Streams) {
        if let Err(error) = self.try_attach(client, streams) {
            self.refuse_task(client, COMMAND, error);
        }
    }

    fn try_attach(&mut self, client: ClientId, streams: Streams) -> Result<(), ControlError> {
        let bad = |why: &str| ControlError::BadTask { task: COMMAND, why: why.to_owned() };
        let task = self.tasks.get_mut(&COMMAND).ok_or(ControlError::NoCommand)?;
        if !task.is_running() {
            return Err(ControlError::NoCommand);
        }
        if task.is_followed() {
            return Err(ControlError::AlreadyAttached);
        }
        let has_terminal = self.plan.command.terminal == Terminal::Pty;
        match (streams, has_terminal) {
            (Streams::Terminal(_), false) => return Err(bad("it has no terminal")),
            (Streams::Output | Streams::InputAndOutput, true) => {
                return Err(bad("it has a terminal; attach with one"));
            }
            (Streams::InputAndOutput, false) if task.input.is_none() => {
                return Err(bad("its input was not kept open; start it with -i"));
            }
            _ => {}
        }
        let numbers = TaskStreams::of(COMMAND).ok_or_else(|| bad("its number is too high"))?;
        task.follow(client, numbers, streams);
        if let (Streams::Terminal(size), Some(channel)) = (streams, self.inside.channel()) {
            channel.resize(COMMAND, (size.rows, size.columns));
        }
        let started = FromSupervisor::TaskStarted { task: COMMAND, exec: COMMAND };
        self.clients.say(client, &started);
        Ok(())
    }

    /// The task that this connection calls by this number.
    fn task_of(&mut self, client: ClientId, number: u32) -> Option<&mut Task> {
        let follower = Follower { client, task: number };
        self.tasks.values_mut().find(|task| task.follower == Some(follower))
    }

    fn signal_task(&mut self, client: ClientId, number: u32, signal: i32) {
        let Some(task) = self.task_of(client, number) else { return };
        use libc_signal::{HUP, INT, QUIT, TERM};
        if matches!(signal, INT | QUIT | TERM | HUP) {
            task.ended = task.ended.or(Some(Ended::Asked));
        }
        let exec = task.exec;
        if let Some(channel) = self.inside.channel() {
            channel.signal(exec, signal);
        }
    }

    fn resize_task(&mut self, client: ClientId, number: u32, size: WindowSize) {
        let Some(exec) = self.task_of(client, number).map(|task| task.exec) else { return };
        if let Some(channel) = self.inside.channel() {
            channel.resize(exec, (size.rows, size.columns));
        }
    }

    fn kill_task(&mut self, client: ClientId, number: u32) {
        let Some(task) = self.task_of(client, number) else { return };
        task.end(Ended::Asked);
        let exec = task.exec;
        let Some(channel) = self.inside.channel() else { return };
        if exec == COMMAND {
            channel.signal(exec, libc_signal::KILL);
        } else {
            channel.say(&ToInit::KillTree { exec });
        }
    }

    fn typed(&mut self, client: ClientId, stream: u32, bytes: &[u8]) {
        let inputs = self.tasks.values_mut().filter_map(|task| task.input.as_mut());
        match inputs.into_iter().find(|input| input.is_fed_by(client, stream)) {
            Some(input) => input.accept(bytes),
            None => self.clients.consumed(client, stream, bytes.len()), // of a task that is over
        }
    }

    fn stdin_eof(&mut self, client: ClientId, stream: u32) {
        let inputs = self.tasks.values_mut().filter_map(|task| task.input.as_mut());
        for input in inputs.filter(|input| input.is_fed_by(client, stream)) {
            input.end();
        }
    }

    fn reset_output(&mut self, client: ClientId, stream: u32) {
        for task in self.tasks.values_mut() {
            task.stop_output(client, stream, self.inside.channel());
        }
    }

    /// Whether a connection's end is the end of what it started.
    pub(super) fn let_client_go(&mut self, client: ClientId) {
        self.clients.remove(client);
        for task in self.tasks.values_mut() {
            if task.follower.is_none_or(|follower| follower.client != client) {
                continue;
            }
            task.unfollow(self.inside.channel());
            if task.bond == Bond::EndsWithConnection && task.is_running() {
                task.end(Ended::Asked);
                if task.exec != COMMAND
                    && let Some(channel) = self.inside.channel()
                {
                    channel.say(&ToInit::KillTree { exec: task.exec });
                }
            }
        }
        if self.bonded_to == Some(client) && !self.state.is_over() {
            self.state.owner_is_gone();
            self.kill();
        }
    }
}

/// The run's variables, with changes on top.
fn merged(
    base: &BTreeMap<String, OsText>,
    changes: Vec<(String, Option<OsText>)>,
) -> BTreeMap<String, OsText> {
    let mut env = base.clone();
    for (name, value) in changes {
        match value {
            Some(value) => env.insert(name, value),
            None => env.remove(&name),
        };
    }
    env
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

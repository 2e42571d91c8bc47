//! Handles the requests of clients.

use std::time::{Duration, Instant};

use belljar_record::RecordError;
use belljar_spec::wire::control::{
    ControlError, FromSupervisor, Keep, MAX_TASKS, RunStatus, Streams, TaskRequest, TaskStreams,
    ToSupervisor,
};
use belljar_spec::wire::{Descendants, Work};
use belljar_spec::{EventKind, OsText, RunState};
use serde_json::json;

use super::channel::MAIN_EXEC;
use super::client::{ClientEvent, ClientId};
use super::libc_signal;
use super::rules::{check_rules, mask_secrets};
use super::sandbox::NewExec;
use super::supervisor::Supervisor;
use super::task::Follower;

impl Supervisor<'_> {
    pub(super) fn take_client_event(
        &mut self,
        client: ClientId,
        event: ClientEvent,
    ) -> Result<(), RecordError> {
        match event {
            ClientEvent::Request(request) => return self.handle_request(client, request),
            ClientEvent::Data { stream, bytes } => {
                self.sandboxes.take_input((client, stream), &bytes, &mut self.control.clients);
            }
            ClientEvent::End { stream } => self.sandboxes.end_input(client, stream),
            ClientEvent::Reset { stream } => {
                self.sandboxes.iter_mut().for_each(|sandbox| sandbox.stop_output(client, stream));
            }
            ClientEvent::Closed => self.client_is_gone(client),
        }
        Ok(())
    }

    fn client_is_gone(&mut self, client: ClientId) {
        self.control.clients.remove(client);
        self.sandboxes.iter_mut().for_each(|sandbox| sandbox.client_is_gone(client));
        if self.control.is_owner(client) && !self.clock.is_over() {
            self.clock.owner_is_gone();
            self.kill();
        }
    }

    fn handle_request(
        &mut self,
        client: ClientId,
        request: ToSupervisor,
    ) -> Result<(), RecordError> {
        match request {
            ToSupervisor::Exec(request) => return self.exec(client, *request),
            ToSupervisor::Attach { streams } => self.attach(client, streams),
            ToSupervisor::Signal { task, signal } => {
                let follower = Follower { client, task };
                if let Some(sandbox) = self.sandboxes.with_task(follower) {
                    sandbox.signal_task(follower, signal);
                }
            }
            ToSupervisor::Resize { task, size } => {
                let follower = Follower { client, task };
                if let Some(sandbox) = self.sandboxes.with_task(follower) {
                    sandbox.resize_task(follower, size);
                }
            }
            ToSupervisor::Kill { task } => {
                let follower = Follower { client, task };
                if let Some(sandbox) = self.sandboxes.with_task(follower) {
                    sandbox.kill_task(follower);
                }
            }
            ToSupervisor::Stop { grace_ms } => {
                let grace = grace_ms.map(Duration::from_millis);
                // A further request can only shorten the grace.
                if !self.clock.shorten_grace(grace, Instant::now()) {
                    self.stop_requested(libc_signal::TERM);
                }
            }
            ToSupervisor::Status => self.send_status(client),
            ToSupervisor::Renew { ttl_ms } => return self.renew(client, ttl_ms),
            ToSupervisor::Network { change } => return self.network_requested(client, change),
            ToSupervisor::Checkpoint { note } => self.checkpoint_requested(client, note),
            ToSupervisor::Hello(_) | ToSupervisor::Launch(_) => {
                let why = "this supervisor has its run already".to_owned();
                let refused = FromSupervisor::Refused(ControlError::OutOfTurn { why });
                self.control.clients.send(client, &refused);
            }
        }
        Ok(())
    }

    pub(super) fn run_state(&self) -> RunState {
        if self.clock.is_over() || self.clock.is_stopping() {
            RunState::Stopping
        } else {
            RunState::Running
        }
    }

    fn send_status(&mut self, client: ClientId) {
        let main = self.sandboxes.main();
        let mut usage = main.usage();
        usage.wall_ms = self.clock.elapsed().as_millis() as u64;
        let tasks: usize = self.sandboxes.iter().map(|sandbox| sandbox.running_tasks()).sum();
        let status = RunStatus {
            run: self.settings.run,
            state: self.run_state(),
            backend: self.settings.backend,
            keep: self.settings.keep,
            tasks: tasks as u32,
            usage,
            ports: self.sandboxes.iter().flat_map(|sandbox| sandbox.published()).collect(),
            ttl_ms: self.clock.time_to_live(Instant::now()).map(|left| left.as_millis() as u64),
        };
        self.control.clients.send(client, &FromSupervisor::Status(Box::new(status)));
    }

    fn renew(&mut self, client: ClientId, ttl_ms: Option<u64>) -> Result<(), RecordError> {
        let state = self.run_state();
        let is_kept = self.settings.keep == Keep::UntilStopped && self.agent.is_none();
        if !is_kept || !state.allows_exec() {
            let why = match is_kept {
                true => format!("the run is {state}"),
                false => {
                    "only a sandbox that was started with --keep has a time to live".to_owned()
                }
            };
            let refused = FromSupervisor::Refused(ControlError::OutOfTurn { why });
            self.control.clients.send(client, &refused);
            return Ok(());
        }
        self.clock.renew(ttl_ms.map(Duration::from_millis), Instant::now());
        self.recorder.event(EventKind::RunRenewed, &json!({ "ttl_ms": ttl_ms }))?;
        self.send_status(client);
        Ok(())
    }

    /// Starts a further command in the main sandbox.
    fn exec(&mut self, client: ClientId, request: TaskRequest) -> Result<(), RecordError> {
        let (run, number) = (self.settings.run, request.task);
        let exec = self.sandboxes.main().next_exec();
        let _exec = tracing::debug_span!("exec", %run, exec).entered();
        if let Some(error) = check_rules(&self.settings.rules, &request, self.recorder)? {
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
        self.control.clients.send(client, &FromSupervisor::TaskRefused { task, error });
        if let Some(connection) = self.control.clients.get(client) {
            connection.forget_streams(task);
        }
    }

    fn start_task(&mut self, client: ClientId, request: TaskRequest) -> Result<(), ControlError> {
        let state = self.run_state();
        let sandbox = self.sandboxes.main_mut();
        if !sandbox.has_init() {
            return Err(ControlError::NoInit);
        }
        if !state.allows_exec() {
            return Err(ControlError::NotRunning { state });
        }
        if !sandbox.has_room_for_exec() {
            return Err(ControlError::TooMany { most: MAX_TASKS });
        }
        if self.checkpoints.is_pending() {
            return Err(ControlError::CheckpointPending);
        }
        check_request(&request)?;
        mask_secrets(&request.env, self.recorder);
        let TaskRequest { task, work, env, workdir, streams, timeout_ms, bond } = request;
        let widened = match (&work, streams) {
            (Work::Unpack { .. }, Streams::InputAndOutput) => TaskStreams::of(task),
            _ => None,
        };
        let task = sandbox.start_exec(NewExec {
            work,
            env,
            workdir,
            streams,
            descendants: Descendants::Tracked,
            follower: Some(Follower { client, task }),
            input: Vec::new(),
        })?;
        task.bond = bond;
        task.deadline = timeout_ms.map(|timeout| Instant::now() + Duration::from_millis(timeout));
        if let Some(TaskStreams { stdin, .. }) = widened {
            self.control.clients.widen(client, stdin);
        }
        Ok(())
    }

    fn attach(&mut self, client: ClientId, streams: Streams) {
        match self.sandboxes.main_mut().attach(client, streams) {
            Ok(()) => {
                let started = FromSupervisor::TaskStarted { task: MAIN_EXEC, exec: MAIN_EXEC };
                self.control.clients.send(client, &started);
            }
            Err(error) => self.refuse_task(client, MAIN_EXEC, error),
        }
    }
}

fn check_request(request: &TaskRequest) -> Result<(), ControlError> {
    let bad = |why: &str| ControlError::BadTask { task: request.task, why: why.to_owned() };
    if request.task == MAIN_EXEC {
        return Err(bad("0 is the run's main command"));
    }
    match &request.work {
        Work::Nothing => return Err(bad("there is no command")),
        Work::Program { argv } if argv.is_empty() => return Err(bad("there is no command")),
        Work::Program { .. } | Work::Pack { .. } | Work::Unpack { .. } | Work::List { .. } => {}
    }
    let is_variable =
        |(name, _): &&(String, Option<OsText>)| !name.is_empty() && !name.contains(['=', '\0']);
    match request.env.iter().find(|variable| !is_variable(variable)) {
        None => Ok(()),
        Some((name, _)) => {
            Err(bad(&format!("\"{}\" is not a valid name of a variable", name.escape_debug())))
        }
    }
}

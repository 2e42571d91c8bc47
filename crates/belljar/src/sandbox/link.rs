//! The client's side of a connection: one task moves the bytes, and all handles share one state.
//!
//! Memory is bounded by the windows of the streams: what is not read is not acknowledged, so the
//! supervisor stops sending.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use belljar_spec::network_list::NetworkState;
use belljar_spec::wire::control::{
    ControlError, FromSupervisor, LaunchRefusal, RunStatus, StopReport, Streams, TakenCheckpoint,
    TaskStreams, ToSupervisor, frame_version,
};
use belljar_spec::wire::mux::parse;
use belljar_spec::wire::{Arrival, Mux, WireError};
use belljar_spec::{BackendName, ExecFailure, Posture, RunId, SkippedBackend};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, oneshot};

use super::connector::Connection;
use super::error::Error;
use super::task::{Delivery, Phase, Task, flows};

/// How long sending the last messages may take after the client was dropped.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(super) struct Greeting {
    pub(super) build: String,
    pub(super) run: Option<RunId>,
}

#[derive(Clone, Debug)]
pub(super) struct Launched {
    pub(super) run: RunId,
    pub(super) backend: BackendName,
    pub(super) posture: Posture,
    pub(super) skipped_backends: Vec<SkippedBackend>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) mux: Mux,
    pub(super) tasks: BTreeMap<u32, Task>,
    next_task: u32,
    pub(super) greeting: Option<Greeting>,
    pub(super) launch: Option<Result<Launched, LaunchRefusal>>,
    /// Whether the run's main command was executed.
    pub(super) executed: Option<Result<(), ExecFailure>>,
    /// Pending status requests, in order: a cancelled one must not take the response of another.
    pub(super) asked: VecDeque<oneshot::Sender<Result<RunStatus, ControlError>>>,
    /// Requests about the network access, in order.
    pub(super) networks: VecDeque<oneshot::Sender<Result<NetworkState, ControlError>>>,
    /// Checkpoints that were requested, in order.
    pub(super) checkpoints: VecDeque<oneshot::Sender<Result<TakenCheckpoint, ControlError>>>,
    /// The refusal of a request that belongs to no task.
    pub(super) refusal: Option<ControlError>,
    pub(super) stopped: Option<StopReport>,
    /// Why the connection was lost.
    pub(super) lost: Option<String>,
    closing: bool,
    /// Futures that wait for something that belongs to no task.
    pub(super) wakers: Vec<Waker>,
    /// Futures that wait for room to write.
    pub(super) writers: Vec<Waker>,
}

#[derive(Debug)]
pub(super) struct Link {
    state: Mutex<State>,
    wake: Notify,
}

impl Link {
    pub(super) fn new(mux: Mux) -> Arc<Self> {
        let state = State {
            mux,
            tasks: BTreeMap::new(),
            next_task: 1,
            greeting: None,
            launch: None,
            executed: None,
            asked: VecDeque::new(),
            networks: VecDeque::new(),
            checkpoints: VecDeque::new(),
            refusal: None,
            stopped: None,
            lost: None,
            closing: false,
            wakers: Vec::new(),
            writers: Vec::new(),
        };
        Arc::new(Self { state: Mutex::new(state), wake: Notify::new() })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // No code under the lock can panic half-way, so the state is consistent even if it is poisoned.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the task that sends.
    pub(super) fn flush(&self) {
        self.wake.notify_one();
    }

    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.flush();
    }

    pub(super) fn send(&self, message: &ToSupervisor) -> Result<(), Error> {
        let mut state = self.lock();
        state.check()?;
        state.mux.send(message).map_err(wire)?;
        drop(state);
        self.flush();
        Ok(())
    }

    /// Waits until `look` returns something, or the connection is lost.
    pub(super) async fn wait<T>(
        &self,
        mut look: impl FnMut(&mut State) -> Option<Result<T, Error>>,
    ) -> Result<T, Error> {
        poll_fn(|context| {
            let mut state = self.lock();
            if let Some(answer) = look(&mut state) {
                return Poll::Ready(answer);
            }
            if let Err(error) = state.check() {
                return Poll::Ready(Err(error));
            }
            register(&mut state.wakers, context);
            Poll::Pending
        })
        .await
    }

    /// Opens a task's streams and sends the request that names them.
    pub(super) fn begin(
        &self,
        number: TaskNumber,
        kind: Streams,
        feed: Option<Vec<u8>>,
        request: impl FnOnce(u32) -> ToSupervisor,
    ) -> Result<u32, Error> {
        let mut state = self.lock();
        state.check()?;
        let number = match number {
            TaskNumber::Main => 0,
            TaskNumber::Next => state.take_number()?,
        };
        let bad = |why: &str| ControlError::BadTask { task: number, why: why.to_owned() };
        let streams = TaskStreams::of(number).ok_or_else(|| bad("there is no such number"))?;
        if state.tasks.contains_key(&number) {
            return Err(ControlError::AlreadyAttached.into());
        }
        let text = serde_json::to_vec(&request(number))
            .map_err(|error| bad(&format!("it has no JSON form: {error}")))?;
        let opened = flows(streams, kind);
        for (stream, flow) in &opened {
            if state.mux.open_for(*stream, *flow).is_err() {
                opened.iter().for_each(|(stream, _)| state.mux.forget(*stream));
                let most = belljar_spec::wire::control::MAX_TASKS;
                return Err(ControlError::TooMany { most }.into());
            }
        }
        if let Err(error) = state.mux.send_text(&text) {
            opened.iter().for_each(|(stream, _)| state.mux.forget(*stream));
            return Err(bad(&error.to_string()).into());
        }
        let mut task = Task::new(streams, kind);
        if let Some(feed) = feed {
            task.feed = feed.into();
            task.feeding = true;
        }
        state.tasks.insert(number, task);
        drop(state);
        self.flush();
        Ok(number)
    }

    /// The bytes to send, after pending input was added.
    fn take_outgoing(&self) -> Vec<u8> {
        let mut state = self.lock();
        let state = &mut *state;
        for task in state.tasks.values_mut() {
            feed(&mut state.mux, task);
        }
        let bytes = state.mux.outgoing().to_vec();
        state.mux.sent(bytes.len());
        state.writers.drain(..).for_each(Waker::wake);
        bytes
    }

    fn arrived(&self, bytes: &[u8]) -> Result<(), WireError> {
        let mut state = self.lock();
        state.mux.push(bytes);
        while let Some(arrival) = state.mux.next_arrival()? {
            state.accept(arrival)?;
        }
        Ok(())
    }

    fn lose(&self, why: String) {
        let mut state = self.lock();
        state.lost = Some(why);
        state.asked.clear();
        state.networks.clear();
        state.checkpoints.clear();
        state.tasks.values_mut().for_each(Task::wake);
        state.wakers.drain(..).for_each(Waker::wake);
        state.writers.drain(..).for_each(Waker::wake);
    }
}

/// The number of a task.
#[derive(Clone, Copy, Debug)]
pub(super) enum TaskNumber {
    /// 0.
    Main,
    Next,
}

pub(super) fn register(wakers: &mut Vec<Waker>, context: &Context<'_>) {
    if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
        wakers.push(context.waker().clone());
    }
}

pub(super) fn wire(error: WireError) -> Error {
    Error::lost(format!("invalid message: {error}"))
}

fn feed(mux: &mut Mux, task: &mut Task) {
    if !task.feeding || !matches!(task.phase, Phase::Running) {
        return;
    }
    while !task.feed.is_empty() {
        let (front, _) = task.feed.as_slices();
        let taken = mux.send_data(task.streams.stdin, front);
        task.feed.drain(..taken);
        if taken == 0 {
            return;
        }
    }
    task.feeding = false;
    mux.end(task.streams.stdin);
}

impl State {
    /// An error if no more requests can be sent.
    pub(super) fn check(&self) -> Result<(), Error> {
        match (&self.stopped, &self.lost) {
            (Some(report), _) => {
                let detail = report.detail.as_ref().map(|why| format!(", {why}"));
                let reason = report.reason.name();
                Err(Error::lost(format!(
                    "the run has ended ({reason}{})",
                    detail.unwrap_or_default()
                )))
            }
            (None, Some(why)) => Err(Error::lost(why.clone())),
            (None, None) if self.closing => Err(Error::lost("the sandbox's handle was dropped")),
            (None, None) => Ok(()),
        }
    }

    fn take_number(&mut self) -> Result<u32, Error> {
        let number = self.next_task;
        self.next_task = number.checked_add(1).ok_or(Error::lost("no task numbers are left"))?;
        Ok(number)
    }

    fn accept(&mut self, arrival: Arrival) -> Result<(), WireError> {
        match arrival {
            Arrival::Message(text) => {
                let message = parse(&text)?;
                self.accept_message(message);
                self.wakers.drain(..).for_each(Waker::wake);
            }
            Arrival::Data { stream, bytes } => {
                let count = bytes.len();
                let taken = match self.task_of(stream) {
                    Some(task) => {
                        let taken = task.arrived(stream, bytes);
                        task.wake();
                        taken
                    }
                    None => Delivery::Discarded,
                };
                if taken == Delivery::Discarded {
                    self.mux.consumed(stream, count);
                }
            }
            Arrival::End { stream } => {
                if let Some(task) = self.task_of(stream) {
                    if let Some(inbox) = task.inbox(stream) {
                        inbox.ended = true;
                    }
                    task.wake();
                }
            }
            Arrival::Reset { stream } => {
                if let Some(task) = self.task_of(stream) {
                    task.input_refused = true;
                    task.feeding = false;
                    task.feed.clear();
                }
                self.mux.end(stream);
            }
        }
        Ok(())
    }

    fn task_of(&mut self, stream: u32) -> Option<&mut Task> {
        self.tasks.get_mut(&(stream.checked_sub(1)? / 4))
    }

    fn accept_message(&mut self, message: FromSupervisor) {
        match message {
            FromSupervisor::Hello { version, build, run } => {
                self.mux.use_version(frame_version(version));
                self.greeting = Some(Greeting { build, run });
            }
            FromSupervisor::Launched { run, backend, posture, skipped_backends, .. } => {
                self.launch =
                    Some(Ok(Launched { run, backend, posture: *posture, skipped_backends }));
                self.turn(0, Phase::Running);
            }
            FromSupervisor::LaunchRefused(refusal) => {
                self.launch = Some(Err(*refusal));
                if let Some(task) = self.tasks.remove(&0) {
                    let opened = flows(task.streams, task.kind);
                    opened.iter().for_each(|(stream, _)| self.mux.forget(*stream));
                }
            }
            FromSupervisor::TaskStarted { task, exec } => {
                if task == 0 {
                    self.executed = Some(Ok(()));
                }
                if let Some(known) = self.tasks.get_mut(&task) {
                    known.exec = Some(exec);
                }
                self.turn(task, Phase::Running);
            }
            FromSupervisor::TaskFailed { task, failure } => {
                if task == 0 {
                    self.executed = Some(Err(failure.clone()));
                }
                self.turn(task, Phase::Failed(failure));
            }
            FromSupervisor::TaskRefused { task, error } => self.turn(task, Phase::Refused(error)),
            FromSupervisor::TaskEnded { task, exit } => self.turn(task, Phase::Exited(exit)),
            FromSupervisor::Status(status) => {
                if let Some(asked) = self.asked.pop_front() {
                    drop(asked.send(Ok(*status)));
                }
            }
            FromSupervisor::Refused(error) => match self.asked.pop_front() {
                Some(asked) => drop(asked.send(Err(error))),
                None => self.refusal = Some(error),
            },
            FromSupervisor::Network(network) => {
                if let Some(asked) = self.networks.pop_front() {
                    drop(asked.send(Ok(*network))); // whoever asked may be gone
                }
            }
            FromSupervisor::NetworkRefused(error) => {
                if let Some(asked) = self.networks.pop_front() {
                    drop(asked.send(Err(error)));
                }
            }
            FromSupervisor::CheckpointTaken(taken) => {
                let asked = self.checkpoints.pop_front();
                asked.map(|asked| asked.send(Ok(taken)));
            }
            FromSupervisor::CheckpointRefused(error) => {
                let asked = self.checkpoints.pop_front();
                asked.map(|asked| asked.send(Err(error)));
            }
            FromSupervisor::Stopped(report) => {
                self.networks.clear();
                self.checkpoints.clear();
                self.stopped = Some(*report);
                self.tasks.values_mut().for_each(Task::wake);
            }
        }
    }

    fn turn(&mut self, number: u32, phase: Phase) {
        let Some(task) = self.tasks.get_mut(&number) else { return };
        if task.is_over() {
            return;
        }
        task.phase = phase;
        match task.phase {
            Phase::Failed(_) | Phase::Refused(_) => {
                let opened = flows(task.streams, task.kind);
                opened.iter().for_each(|(stream, _)| self.mux.forget(*stream));
            }
            // The stream is free again only when this side has ended it too.
            Phase::Exited(_) if task.takes_input() => self.mux.end(task.streams.stdin),
            _ => {}
        }
        task.wake();
        if task.is_over() && task.abandoned {
            self.tasks.remove(&number);
        }
    }
}

/// Moves bytes until either side closes; then reaps the supervisor, if it is a child.
pub(super) async fn drive(link: Arc<Link>, connection: Connection) {
    let Connection { stream, child } = connection;
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut buffer = vec![0; 64 * 1024];
    let (mut out, mut written) = (Vec::new(), 0);
    // A supervisor that is shutting down no longer reads, but its last messages must still be received.
    let mut write_error: Option<String> = None;
    let why = loop {
        if write_error.is_some() || written == out.len() {
            (out, written) = (link.take_outgoing(), 0);
        }
        if link.lock().closing {
            let out = if write_error.is_some() { Vec::new() } else { out.split_off(written) };
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, writer.write_all(&out)).await;
            break "the sandbox's handle was dropped".to_owned();
        }
        tokio::select! {
            read = reader.read(&mut buffer) => match read {
                Ok(0) => break write_error.unwrap_or_else(|| "it closed the connection".to_owned()),
                Ok(count) => if let Err(error) = link.arrived(&buffer[..count]) {
                    break format!("invalid message: {error}");
                },
                Err(error) => break error.to_string(),
            },
            wrote = writer.write(&out[written..]), if write_error.is_none() && written < out.len() => match wrote {
                Ok(count) => written += count,
                Err(error) => write_error = Some(error.to_string()),
            },
            () = link.wake.notified() => {}
        }
    };
    link.lose(why);
    drop((reader, writer)); // the supervisor ends when it sees this
    if let Some(mut child) = child {
        let _ = child.wait().await; // its exit status does not matter; the record has the result
    }
}

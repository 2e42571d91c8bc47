//! The client's end of a connection to a supervisor: one task of the runtime moves the bytes, and
//! every handle looks at the same state.
//!
//! Memory is bounded by the windows of the streams: what is not read here is not acknowledged, so the
//! other end stops sending it.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use belljar_spec::wire::control::{
    ControlError, FromSupervisor, LaunchRefusal, RunStatus, StopReport, Streams, TaskStreams,
    ToSupervisor,
};
use belljar_spec::wire::mux::parse;
use belljar_spec::wire::{Arrival, Mux, WireError};
use belljar_spec::{BackendName, Posture, RunId, SkippedBackend};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, oneshot};

use super::connector::Connection;
use super::error::Error;
use super::task::{Phase, Taken, Task, flows};

/// What is still to be said when a handle goes is given this long.
const LAST_WORDS: Duration = Duration::from_secs(1);

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
    pub(super) not_taken: Vec<SkippedBackend>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) mux: Mux,
    pub(super) tasks: BTreeMap<u32, Task>,
    next_task: u32,
    pub(super) greeting: Option<Greeting>,
    pub(super) launch: Option<Result<Launched, LaunchRefusal>>,
    /// Who asked for the status, in order: one that gave up does not take another's answer.
    pub(super) asked: VecDeque<oneshot::Sender<Result<RunStatus, ControlError>>>,
    /// A refusal of a request that is about no task.
    pub(super) refusal: Option<ControlError>,
    pub(super) stopped: Option<StopReport>,
    /// Why nothing more comes.
    pub(super) lost: Option<String>,
    closing: bool,
    /// Who waits for something that is about no task.
    pub(super) wakers: Vec<Waker>,
    /// Who waits for room.
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
            asked: VecDeque::new(),
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
        // Nothing that holds the lock calls foreign code, so the state is whole even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is to be sent.
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

    /// Waits until `look` has an answer; also answers when the connection is gone.
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
        number: Number,
        kind: Streams,
        feed: Option<Vec<u8>>,
        request: impl FnOnce(u32) -> ToSupervisor,
    ) -> Result<u32, Error> {
        let mut state = self.lock();
        state.check()?;
        let number = match number {
            Number::RunsOwn => 0,
            Number::Next => state.take_number()?,
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

    /// What is to be sent, after everything that waits for room had its chance.
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
        state.tasks.values_mut().for_each(Task::wake);
        state.wakers.drain(..).for_each(Waker::wake);
        state.writers.drain(..).for_each(Waker::wake);
    }
}

/// Which number a task gets.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    /// 0.
    RunsOwn,
    Next,
}

pub(super) fn register(wakers: &mut Vec<Waker>, context: &Context<'_>) {
    if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
        wakers.push(context.waker().clone());
    }
}

pub(super) fn wire(error: WireError) -> Error {
    Error::lost(format!("what came makes no sense: {error}"))
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
    /// Why nothing can be asked any more.
    pub(super) fn check(&self) -> Result<(), Error> {
        match (&self.stopped, &self.lost) {
            (Some(report), _) => {
                let detail = report.detail.as_ref().map(|why| format!(", {why}"));
                let reason = report.reason.name();
                Err(Error::lost(format!(
                    "the run is over ({reason}{})",
                    detail.unwrap_or_default()
                )))
            }
            (None, Some(why)) => Err(Error::lost(why.clone())),
            (None, None) if self.closing => Err(Error::lost("the sandbox was let go of")),
            (None, None) => Ok(()),
        }
    }

    fn take_number(&mut self) -> Result<u32, Error> {
        let number = self.next_task;
        self.next_task = number.checked_add(1).ok_or(Error::lost("its numbers are used up"))?;
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
                    None => Taken::ByNobody,
                };
                if taken == Taken::ByNobody {
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
            FromSupervisor::Hello { version: _, build, run } => {
                self.greeting = Some(Greeting { build, run });
            }
            FromSupervisor::Launched { run, backend, posture, not_taken, .. } => {
                self.launch = Some(Ok(Launched { run, backend, posture: *posture, not_taken }));
                self.turn(0, Phase::Running);
            }
            FromSupervisor::LaunchRefused(refusal) => {
                self.launch = Some(Err(*refusal));
                if let Some(task) = self.tasks.remove(&0) {
                    let opened = flows(task.streams, task.kind);
                    opened.iter().for_each(|(stream, _)| self.mux.forget(*stream));
                }
            }
            FromSupervisor::TaskStarted { task, exec: _ } => self.turn(task, Phase::Running),
            FromSupervisor::TaskFailed { task, failure } => self.turn(task, Phase::Failed(failure)),
            FromSupervisor::TaskRefused { task, error } => self.turn(task, Phase::Refused(error)),
            FromSupervisor::TaskEnded { task, exit } => self.turn(task, Phase::Exited(exit)),
            FromSupervisor::Status(status) => {
                let asked = self.asked.pop_front();
                asked.map(|asked| asked.send(Ok(*status)));
            }
            FromSupervisor::Refused(error) => match self.asked.pop_front() {
                Some(asked) => drop(asked.send(Err(error))),
                None => self.refusal = Some(error),
            },
            FromSupervisor::Stopped(report) => {
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
            // The number is free again when this end has said so too.
            Phase::Exited(_) if task.takes_input() => self.mux.end(task.streams.stdin),
            _ => {}
        }
        task.wake();
        if task.is_over() && task.abandoned {
            self.tasks.remove(&number);
        }
    }
}

/// Moves bytes until either end is done; then the supervisor, where it is a child, is reaped.
pub(super) async fn drive(link: Arc<Link>, connection: Connection) {
    let Connection { stream, child } = connection;
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut buffer = vec![0; 64 * 1024];
    let (mut out, mut written) = (Vec::new(), 0);
    // A supervisor that is leaving no longer listens, and its last words still have to be read.
    let mut deaf: Option<String> = None;
    let why = loop {
        if deaf.is_some() || written == out.len() {
            (out, written) = (link.take_outgoing(), 0);
        }
        if link.lock().closing {
            let out = if deaf.is_some() { Vec::new() } else { out.split_off(written) };
            let _ = tokio::time::timeout(LAST_WORDS, writer.write_all(&out)).await;
            break "the sandbox was let go of".to_owned();
        }
        tokio::select! {
            read = reader.read(&mut buffer) => match read {
                Ok(0) => break deaf.unwrap_or_else(|| "it closed the connection".to_owned()),
                Ok(count) => if let Err(error) = link.arrived(&buffer[..count]) {
                    break format!("what came makes no sense: {error}");
                },
                Err(error) => break error.to_string(),
            },
            wrote = writer.write(&out[written..]), if deaf.is_none() && written < out.len() => match wrote {
                Ok(count) => written += count,
                Err(error) => deaf = Some(error.to_string()),
            },
            () = link.wake.notified() => {}
        }
    };
    link.lose(why);
    drop((reader, writer)); // the supervisor ends when it sees this
    if let Some(mut child) = child {
        let _ = child.wait().await; // how it ended changes nothing; the record has it
    }
}

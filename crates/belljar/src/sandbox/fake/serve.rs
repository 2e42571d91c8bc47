//! The supervisor's side of the protocol, with scripted commands.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use belljar_spec::network_list::{
    NetworkAccess, NetworkChange, NetworkList, NetworkState, StartingNetwork,
};
use belljar_spec::wire::control::{
    CONTROL_MAX, ClientHello, ControlError, FromSupervisor, Keep, LaunchRequest, RunStatus,
    StopReport, Streams, TakenCheckpoint, TaskRequest, TaskStreams, ToSupervisor, frame_version,
};
use belljar_spec::wire::mux::parse;
use belljar_spec::wire::{Arrival, Flow, FrameKey, Mux, Side, WireError, Work};
use belljar_spec::{
    BackendName, CheckpointReport, EXIT_DEADLINE, ExecFailure, Exit, ExitSource, ExitStatus,
    Posture, RunId, RunState, StopReason, Usage,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::Instant;

use super::reply::{FakeReply, built_in};
use super::task::{FAR, FakeTask};
use super::{FakeCall, Inner, lock};
use crate::sandbox::connector::Destination;

const SIGKILL: u8 = 9;
const SIGTERM: u8 = 15;

struct Server {
    fake: Arc<Inner>,
    mux: Mux,
    greeted: bool,
    run: Option<RunId>,
    keep: Keep,
    tasks: BTreeMap<u32, FakeTask>,
    execs: u32,
    checkpoints: u32,
    /// What it began with and may reach now, if it may reach anything.
    network: Option<(StartingNetwork, NetworkList)>,
    /// Set when every message was sent.
    over: bool,
    owns_run: bool,
}

pub(super) async fn serve(fake: Arc<Inner>, to: Destination, mut stream: DuplexStream) {
    let run = match to {
        Destination::New => None,
        Destination::Live { run, .. } => Some(run),
    };
    let mut server = Server {
        fake,
        mux: Mux::new(Side::Server),
        greeted: false,
        run,
        keep: Keep::UntilStopped,
        checkpoints: 0,
        network: None,
        tasks: BTreeMap::new(),
        execs: 0,
        over: false,
        owns_run: false,
    };
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let Ok(lost) = server.pump() else { return };
        let out = server.mux.outgoing().to_vec();
        if out.is_empty() && (server.over || lost) {
            return;
        }
        let next = server.next_timer();
        let (mut reader, mut writer) = tokio::io::split(&mut stream);
        tokio::select! {
            read = reader.read(&mut buffer) => match read {
                Ok(count) if count > 0 => {
                    server.mux.push(&buffer[..count]);
                    if server.accept_all().is_err() {
                        return;
                    }
                }
                _ => return,
            },
            wrote = writer.write(&out), if !out.is_empty() => match wrote {
                Ok(count) => server.mux.sent(count),
                Err(_) => return,
            },
            () = tokio::time::sleep_until(next), if out.is_empty() => {}
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.owns_run {
            lock(&self.fake.log).live -= 1;
        }
    }
}

impl Server {
    fn accept_all(&mut self) -> Result<(), WireError> {
        while let Some(arrival) = self.mux.next_arrival()? {
            match arrival {
                Arrival::Message(text) => {
                    let message = parse(&text)?;
                    self.accept(message)?;
                }
                Arrival::Data { stream, bytes } => {
                    self.mux.consumed(stream, bytes.len());
                    let Some(task) = self.tasks.get_mut(&((stream - 1) / 4)) else { continue };
                    match task.kind {
                        Streams::Terminal(_) => task.stdout.extend(bytes), // echo
                        _ => task.call.stdin.extend(bytes),
                    }
                }
                Arrival::End { stream } => {
                    if let Some(task) = self.tasks.get_mut(&((stream - 1) / 4)) {
                        task.input_ended = true;
                    }
                }
                Arrival::Reset { stream } => {
                    if let Some(task) = self.tasks.get_mut(&((stream - 1) / 4)) {
                        task.stdout.clear();
                        task.stderr.clear();
                    }
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self, message: ToSupervisor) -> Result<(), WireError> {
        match message {
            ToSupervisor::Hello(hello) => self.greet(&hello),
            _ if !self.greeted => Err(WireError::BadMessage("no hello".to_owned())),
            ToSupervisor::Launch(request) => self.launch(*request),
            ToSupervisor::Exec(request) => self.exec(*request),
            ToSupervisor::Attach { streams } => self.attach(streams),
            ToSupervisor::Signal { task, signal } => {
                lock(&self.fake.log).signals.push(signal);
                if let Ok(signal @ (2 | SIGKILL | SIGTERM)) = u8::try_from(signal) {
                    self.end_by(task, Exit::of_command(ExitStatus::Signal(signal)));
                }
                Ok(())
            }
            ToSupervisor::Resize { task: _, size } => {
                lock(&self.fake.log).sizes.push(size);
                Ok(())
            }
            ToSupervisor::Kill { task } => {
                if self.tasks.contains_key(&task) {
                    lock(&self.fake.log).kills += 1;
                }
                self.end_by(task, Exit::of_command(ExitStatus::Signal(SIGKILL)));
                Ok(())
            }
            ToSupervisor::Stop { grace_ms: _ } => {
                let exit = Exit::of_command(ExitStatus::Signal(SIGTERM));
                let tasks: Vec<u32> = self.tasks.keys().copied().collect();
                tasks.into_iter().for_each(|task| self.end_by(task, exit));
                self.pump()?;
                self.stop(StopReason::Stopped, exit)
            }
            ToSupervisor::Network { change } => self.change_network(change),
            ToSupervisor::Checkpoint { note: _ } => {
                let running = self.tasks.len();
                let reply = match running {
                    0 => {
                        self.checkpoints += 1;
                        let (number, report) = (self.checkpoints, CheckpointReport::default());
                        let taken = TakenCheckpoint { number, changed: 0, report };
                        FromSupervisor::CheckpointTaken(taken)
                    }
                    _ => FromSupervisor::CheckpointRefused(ControlError::Busy { running }),
                };
                self.mux.send(&reply)
            }
            ToSupervisor::Status | ToSupervisor::Renew { .. } => match self.run {
                Some(run) => {
                    let tasks = self.tasks.len() as u32;
                    let (state, usage) = (RunState::Running, Usage::default());
                    let (backend, keep) = (BackendName::Jail, self.keep);
                    let ports = Vec::new();
                    let status =
                        RunStatus { run, state, backend, keep, tasks, usage, ports, ttl_ms: None };
                    self.mux.send(&FromSupervisor::Status(Box::new(status)))
                }
                None => {
                    let why = "there is no run yet".to_owned();
                    self.mux.send(&FromSupervisor::Refused(ControlError::OutOfTurn { why }))
                }
            },
        }
    }

    fn greet(&mut self, hello: &ClientHello) -> Result<(), WireError> {
        let key = key(&hello.key).ok_or(WireError::BadMessage("no key".to_owned()))?;
        self.mux.rekey(&key);
        self.greeted = true;
        let build = lock(&self.fake.settings).build.clone();
        let build = build.unwrap_or_else(|| belljar_spec::BUILD.to_owned());
        let version = hello.max.min(CONTROL_MAX);
        self.mux.send(&FromSupervisor::Hello { version, build, run: self.run })?;
        self.mux.use_version(frame_version(version));
        Ok(())
    }

    /// As a supervisor would, except for the ceiling.
    fn change_network(&mut self, change: Option<NetworkChange>) -> Result<(), WireError> {
        let refuse = |why: String| {
            let error = ControlError::NetworkUnchanged { why };
            FromSupervisor::NetworkRefused(error)
        };
        let (Some(run), ports) = (self.run, Vec::new()) else {
            return self.mux.send(&refuse("there is no run yet".to_owned()));
        };
        let answer = match (&mut self.network, change) {
            (Some((start, list)), change) => {
                match list.changed(&change.unwrap_or_default(), start) {
                    Ok(changed) => {
                        list.clone_from(&changed);
                        let (access, closed) = (NetworkAccess::Proxy, 0);
                        let routes = start.egress.routes.clone();
                        let list = changed;
                        let state = NetworkState { run, access, list, routes, ports, closed };
                        FromSupervisor::Network(Box::new(state))
                    }
                    Err(error) => refuse(error.to_string()),
                }
            }
            (None, None) => {
                let (access, list, routes) =
                    (NetworkAccess::None, NetworkList::default(), Vec::new());
                let state = NetworkState { run, access, list, routes, ports, closed: 0 };
                FromSupervisor::Network(Box::new(state))
            }
            (None, Some(_)) => refuse("this run was started without network access".to_owned()),
        };
        self.mux.send(&answer)
    }

    fn launch(&mut self, request: LaunchRequest) -> Result<(), WireError> {
        let streams = TaskStreams { stdin: 1, stdout: 2, stderr: 3 };
        self.open(streams, request.streams)?;
        let refusal = lock(&self.fake.settings).refusal.clone();
        if let Some(refusal) = refusal {
            self.forget(streams);
            return self.mux.send(&FromSupervisor::LaunchRefused(Box::new(refusal)));
        }
        let run = new_run();
        self.run = Some(run);
        self.keep = request.keep;
        if request.spec.has_network_access() {
            let (start, list) =
                (StartingNetwork::of(&request.spec), NetworkList::of(&request.spec));
            self.network = Some((start, list));
        }
        self.owns_run = true;
        let posture = {
            let mut log = lock(&self.fake.log);
            log.live += 1;
            log.specs.push(request.spec.clone());
            lock(&self.fake.settings).posture.clone()
        };
        let posture = posture.unwrap_or_else(|| Posture::nothing_held("a fake isolates nothing"));
        let (backend, posture) = (BackendName::Jail, Box::new(posture));
        let skipped_backends = Vec::new();
        self.mux.send(&FromSupervisor::Launched {
            run,
            backend,
            posture,
            skipped_backends,
            ports: Vec::new(),
        })?;
        if request.spec.command.is_empty() {
            return Ok(());
        }
        let call = FakeCall {
            argv: request.spec.command,
            env: Vec::new(),
            workdir: None,
            stdin: Vec::new(),
            terminal: None,
            timeout: request.spec.limits.time,
        };
        let work = Work::Program { argv: call.argv.clone() };
        self.begin(0, call, work, request.streams, streams)
    }

    fn exec(&mut self, request: TaskRequest) -> Result<(), WireError> {
        let TaskRequest { task, work, env, workdir, streams: kind, timeout_ms, bond: _ } = request;
        let streams = TaskStreams::of(task).filter(|_| task != 0);
        let streams = streams.ok_or(WireError::BadMessage("a bad task".to_owned()))?;
        self.open(streams, kind)?;
        let argv = match &work {
            Work::Program { argv } => argv.clone(),
            Work::Pack { path } => vec!["(pack)".into(), path.clone()],
            Work::Unpack { path, .. } => vec!["(unpack)".into(), path.clone()],
            Work::List { path } => vec!["(list)".into(), path.clone()],
            Work::Nothing => vec!["(nothing)".into()],
        };
        let terminal = match kind {
            Streams::Terminal(size) => Some(size),
            _ => None,
        };
        let timeout = timeout_ms.map(Duration::from_millis);
        let call = FakeCall { argv, env, workdir, stdin: Vec::new(), terminal, timeout };
        self.begin(task, call, work, kind, streams)
    }

    fn attach(&mut self, kind: Streams) -> Result<(), WireError> {
        let streams = TaskStreams { stdin: 1, stdout: 2, stderr: 3 };
        self.open(streams, kind)?;
        let reply = lock(&self.fake.settings).attached.clone();
        let Some(reply) = reply else {
            self.forget(streams);
            let error = ControlError::NoCommand;
            return self.mux.send(&FromSupervisor::TaskRefused { task: 0, error });
        };
        self.mux.send(&FromSupervisor::TaskStarted { task: 0, exec: 0 })?;
        let call = FakeCall {
            argv: Vec::new(),
            env: Vec::new(),
            workdir: None,
            stdin: Vec::new(),
            terminal: None,
            timeout: None,
        };
        let mut task = FakeTask::new(call, Work::Nothing, kind, streams);
        task.play(reply);
        self.tasks.insert(0, task);
        Ok(())
    }

    fn begin(
        &mut self,
        number: u32,
        call: FakeCall,
        work: Work,
        kind: Streams,
        streams: TaskStreams,
    ) -> Result<(), WireError> {
        let mut task = FakeTask::new(call, work, kind, streams);
        let waits_for_input = kind == Streams::InputAndOutput;
        let reply =
            if waits_for_input && self.is_known(&task) { None } else { Some(self.reply_to(&task)) };
        if let Some(FakeReply { failure: Some(failure), .. }) = reply {
            self.forget(streams);
            return self.mux.send(&FromSupervisor::TaskFailed { task: number, failure });
        }
        if number != 0 {
            self.execs += 1;
            self.mux.send(&FromSupervisor::TaskStarted { task: number, exec: self.execs })?;
        }
        if let Some(reply) = reply {
            task.play(reply);
        }
        self.tasks.insert(number, task);
        Ok(())
    }

    fn open(&mut self, streams: TaskStreams, kind: Streams) -> Result<(), WireError> {
        let output = matches!(kind, Streams::Output | Streams::InputAndOutput);
        match kind {
            Streams::InputAndOutput => self.mux.open_for(streams.stdin, Flow::Incoming)?,
            Streams::Terminal(_) => self.mux.open_for(streams.stdin, Flow::Bidirectional)?,
            Streams::Unwatched | Streams::Output => {}
        }
        if output {
            self.mux.open_for(streams.stdout, Flow::Outgoing)?;
            self.mux.open_for(streams.stderr, Flow::Outgoing)?;
        }
        Ok(())
    }

    fn forget(&mut self, streams: TaskStreams) {
        for stream in [streams.stdin, streams.stdout, streams.stderr] {
            self.mux.forget(stream);
        }
    }

    fn is_known(&self, task: &FakeTask) -> bool {
        let Work::Program { argv } = &task.work else { return true };
        let scripted = argv.first().is_some_and(|name| lock(&self.fake.scripts).contains_key(name));
        scripted || built_in(&task.call).is_some()
    }

    fn reply_to(&self, task: &FakeTask) -> FakeReply {
        lock(&self.fake.log).calls.push(task.call.clone());
        match &task.work {
            Work::Nothing => FakeReply::code(0),
            Work::Pack { path } => self.fake.pack(path.as_path()),
            Work::Unpack { path, .. } => self.fake.unpack(path.as_path(), &task.call.stdin),
            Work::List { path } => self.fake.list(path.as_path()),
            Work::Program { argv } => {
                let script =
                    argv.first().and_then(|name| lock(&self.fake.scripts).get(name).cloned());
                match script {
                    Some(script) => script(&task.call),
                    None => built_in(&task.call).unwrap_or_else(|| {
                        FakeReply::failure(ExecFailure::NotFound { cause: None })
                    }),
                }
            }
        }
    }

    fn end_by(&mut self, task: u32, exit: Exit) {
        if let Some(task) = self.tasks.get_mut(&task) {
            task.play(FakeReply { exit, ..FakeReply::code(0) });
        }
    }

    fn next_timer(&self) -> Instant {
        let times = self.tasks.values().flat_map(|task| {
            // A task that is blocked on its reader continues when the reader acknowledges bytes.
            let drained = task.stdout.is_empty() && task.stderr.is_empty();
            [task.ends.filter(|_| drained), task.deadline]
        });
        times.flatten().min().unwrap_or_else(|| Instant::now() + FAR)
    }

    /// Whether the connection is to be dropped now.
    fn pump(&mut self) -> Result<bool, WireError> {
        let now = Instant::now();
        let mut lost = false;
        for number in self.tasks.keys().copied().collect::<Vec<_>>() {
            let Some(mut task) = self.tasks.remove(&number) else { continue };
            if task.deadline.is_some_and(|deadline| deadline <= now) {
                task.deadline = None;
                let exit = Exit::of_belljar(EXIT_DEADLINE, ExitSource::Deadline);
                // The output so far is kept.
                let (stdout, stderr) = (task.stdout.clone(), task.stderr.clone());
                task.play(FakeReply { exit, ..FakeReply::code(0) });
                (task.stdout, task.stderr) = (stdout, stderr);
            }
            if task.reply.is_none() && task.input_ended {
                let reply = self.reply_to(&task);
                task.play(reply);
            }
            let sent = task.send(&mut self.mux);
            lock(&self.fake.log).sent += sent;
            let drained = task.stdout.is_empty() && task.stderr.is_empty();
            match &task.reply {
                Some(reply) if drained && reply.then_lost => lost = true,
                Some(reply) if drained && task.ends.is_some_and(|ends| ends <= now) => {
                    let exit = reply.exit;
                    task.end_streams(&mut self.mux);
                    self.mux.send(&FromSupervisor::TaskEnded { task: number, exit })?;
                    if number == 0 && self.keep == Keep::WhileCommandRuns {
                        let reason = match exit.source {
                            ExitSource::Deadline => StopReason::Deadline,
                            _ => StopReason::Exited,
                        };
                        self.stop(reason, exit)?;
                    }
                    continue;
                }
                _ => {}
            }
            self.tasks.insert(number, task);
        }
        Ok(lost)
    }

    fn stop(&mut self, reason: StopReason, exit: Exit) -> Result<(), WireError> {
        let Some(run) = self.run else { return Ok(()) };
        self.over = true;
        let usage = Usage::default();
        let report = StopReport {
            run,
            reason,
            exit,
            detail: None,
            usage,
            leak: None,
            workspace: None,
            agent: None,
        };
        self.mux.send(&FromSupervisor::Stopped(Box::new(report)))
    }
}

fn key(text: &str) -> Option<FrameKey> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(FrameKey::new(bytes))
}

fn new_run() -> RunId {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let millis = since.map_or(0, |since| since.as_millis() as u64);
    RunId::from_parts(millis, COUNT.fetch_add(1, Ordering::Relaxed))
}

//! Starts further commands in a sandbox: those that clients ask for, and those of an agent's loop.

use std::collections::BTreeMap;

use belljar_record::{RecordError, Recorder};
use belljar_spec::wire::control::{ControlError, MAX_TASKS, Streams, TaskStreams, WindowSize};
use belljar_spec::wire::{AttestationKind, Descendants, ExecRequest, Stdio, ToInit, Work};
use belljar_spec::{BriefAttestation, ExecFailure, OsText, OutputStream};

use super::super::inlet::{Inlet, InputSink, InputSource};
use super::super::outlet::{Outlet, OutputSink, OutputSource};
use super::super::task::{Follower, Task, TaskPhase};
use super::SandboxState;
use super::init_events::MessageError;

/// A command to be started besides the main one.
#[derive(Debug)]
pub(in crate::supervise) struct NewExec {
    pub(in crate::supervise) work: Work,
    /// Changes to the environment of the planned command.
    pub(in crate::supervise) env: Vec<(String, Option<OsText>)>,
    /// Relative to that of the planned command, which is used if none is given.
    pub(in crate::supervise) workdir: Option<OsText>,
    pub(in crate::supervise) streams: Streams,
    pub(in crate::supervise) descendants: Descendants,
    pub(in crate::supervise) follower: Option<Follower>,
    /// The standard input of a command that has no follower.
    pub(in crate::supervise) input: Vec<u8>,
}

impl SandboxState {
    /// The number of the next exec.
    pub(in crate::supervise) fn next_exec(&self) -> u32 {
        self.next_exec
    }

    /// PID 1 makes the process, which attests before it is released.
    pub(in crate::supervise) fn start_exec(
        &mut self,
        new: NewExec,
    ) -> Result<&mut Task, ControlError> {
        let NewExec { work, env, workdir, streams, descendants, follower, input } = new;
        let exec = self.next_exec;
        let channel = self.link.channel().ok_or(ControlError::NoInit)?;
        let number = follower.map_or(exec, |follower| follower.task);
        let bad = |why: &str| ControlError::BadTask { task: number, why: why.to_owned() };
        let inside = TaskStreams::of(exec).ok_or(ControlError::TooMany { most: MAX_TASKS })?;
        let outside = TaskStreams::of(number).ok_or_else(|| bad("its number is too high"))?;
        let env = merged(&self.command.env, env);
        let environment = env.keys().map(|name| OsText::from(name.as_str())).collect();
        let request = ExecRequest {
            exec,
            work: work.clone(),
            env,
            workdir: resolved(&self.command.workdir, workdir),
            stdio: stdio(streams, &inside),
            depth: AttestationKind::Brief,
            descendants,
        };
        channel.ask_for_exec(&request).map_err(|error| bad(&error.to_string()))?;
        self.next_exec += 1;
        let ends = ClientEnds { follower, streams, numbers: outside };
        let (stdout, stderr) = outlets(&inside, &ends);
        let mut task = Task::new(exec, stdout, stderr).preparing(work, environment);
        task.follower = follower;
        if let Streams::Terminal(_) | Streams::InputAndOutput = streams {
            let mut inlet = Inlet::new(ends.input(), InputSink::Channel(inside.stdin));
            inlet.accept(&input);
            task.input = Some(inlet);
        }
        Ok(self.tasks.entry(exec).or_insert(task))
    }

    /// Compares the attestation of a further command; it is recorded, then released.
    pub(super) fn attested(
        &mut self,
        exec: u32,
        attestation: &BriefAttestation,
        recorder: &mut Recorder,
    ) -> Result<(), MessageError> {
        let task = self.tasks.get_mut(&exec);
        let (Some(task), Some(channel)) = (task, self.link.channel()) else {
            return Err(MessageError::invalid("an attestation that was not requested"));
        };
        let TaskPhase::Preparing { environment } = &task.phase else {
            return Err(MessageError::invalid("an attestation that was not requested"));
        };
        let differences = self.expectation.compare_brief(attestation, environment);
        if !differences.is_empty() {
            channel.post(&ToInit::Dismiss { exec });
            let why = format!("it is not locked down as planned: {}", differences.join("; "));
            return self.exec_failed(exec, ExecFailure::Other { why });
        }
        record_start(task, recorder)?;
        task.phase = TaskPhase::Running;
        channel.release(exec);
        Ok(())
    }

    /// Whether one more command can be started at once.
    pub(in crate::supervise) fn has_room_for_exec(&self) -> bool {
        self.tasks.len() < MAX_TASKS
    }
}

/// In the kernel's hands before the command has any effect; on disk with the next barrier.
fn record_start(task: &mut Task, recorder: &mut Recorder) -> Result<(), RecordError> {
    task.record_start(recorder)?;
    recorder.flush()
}

/// The other ends of a command's streams.
struct ClientEnds {
    follower: Option<Follower>,
    streams: Streams,
    numbers: TaskStreams,
}

impl ClientEnds {
    fn output(&self, stream: u32) -> OutputSink {
        match (self.follower, self.streams) {
            (None, _) | (_, Streams::Unwatched) => OutputSink::Nowhere,
            (Some(Follower { client, .. }), _) => OutputSink::Client { client, stream },
        }
    }

    fn input(&self) -> InputSource {
        match self.follower {
            None => InputSource::Ended,
            Some(Follower { client, .. }) => {
                InputSource::Client { client, stream: self.numbers.stdin }
            }
        }
    }
}

fn stdio(streams: Streams, inside: &TaskStreams) -> Stdio {
    let TaskStreams { stdin, stdout, stderr } = *inside;
    match streams {
        Streams::Terminal(WindowSize { rows, columns }) => {
            Stdio::Pty { stream: stdin, rows, columns }
        }
        Streams::InputAndOutput => Stdio::Streams { stdin: Some(stdin), stdout, stderr },
        Streams::Output | Streams::Unwatched => Stdio::Streams { stdin: None, stdout, stderr },
    }
}

/// Standard output and standard error; a terminal has one stream for both.
fn outlets(inside: &TaskStreams, ends: &ClientEnds) -> (Outlet, Outlet) {
    let outlet = |of, from, to| Outlet::new(of, OutputSource::Channel(from), ends.output(to));
    match ends.streams {
        Streams::Terminal(_) => (
            outlet(OutputStream::Stdout, inside.stdin, ends.numbers.stdin),
            Outlet::new(OutputStream::Stderr, OutputSource::Ended, OutputSink::Nowhere),
        ),
        Streams::InputAndOutput | Streams::Output | Streams::Unwatched => (
            outlet(OutputStream::Stdout, inside.stdout, ends.numbers.stdout),
            outlet(OutputStream::Stderr, inside.stderr, ends.numbers.stderr),
        ),
    }
}

/// A relative directory is below the run's working directory.
fn resolved(base: &OsText, directory: Option<OsText>) -> OsText {
    match directory {
        Some(directory) => OsText::from(base.as_path().join(directory.as_path())),
        None => base.clone(),
    }
}

/// The planned command's environment, with changes on top.
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

//! Commands that the driver starts itself: nobody follows them, and what they print is recorded.

use belljar_spec::wire::control::{Bond, ControlError, TaskStreams};
use belljar_spec::wire::{AttestationKind, Descendants, ExecRequest, Stdio, Work};
use belljar_spec::{OsText, OutputStream};

use super::AgentRecorder;
use crate::supervise::Inside;
use crate::supervise::event_loop::Run;
use crate::supervise::inlet::{Inlet, InputSink, InputSource};
use crate::supervise::outlet::{Outlet, OutputSink, OutputSource};
use crate::supervise::task::{Carries, Phase, Task};

impl Run<'_> {
    /// Starts one more command in the sandbox. The answer is its number in the record.
    pub(super) fn start_own(
        &mut self,
        argv: Vec<OsText>,
        input: Vec<u8>,
        ear: Option<AgentRecorder>,
    ) -> Result<u32, ControlError> {
        let Inside::Init(channel) = &mut self.inside else { return Err(ControlError::NoInit) };
        let exec = self.next_exec;
        let most = belljar_spec::wire::control::MAX_TASKS;
        let streams = TaskStreams::of(exec).ok_or(ControlError::TooMany { most })?;
        let env = self.plan.command.env.clone();
        let environment = env.keys().map(|name| OsText::from(name.as_str())).collect();
        let work = Work::Program { argv };
        let asked = ExecRequest {
            exec,
            work: work.clone(),
            env,
            workdir: self.plan.command.workdir.clone(),
            stdio: Stdio::Streams {
                stdin: Some(streams.stdin),
                stdout: streams.stdout,
                stderr: streams.stderr,
            },
            depth: AttestationKind::Short,
            descendants: Descendants::Bound,
        };
        channel
            .ask_for_exec(&asked)
            .map_err(|error| ControlError::BadTask { task: exec, why: error.to_string() })?;
        self.next_exec += 1;
        let outlet =
            |of, stream| Outlet::new(of, OutputSource::Channel(stream), OutputSink::Nowhere);
        let mut typed = Inlet::new(InputSource::Ended, InputSink::Channel(streams.stdin));
        typed.accept(&input);
        let task = Task {
            exec,
            carries: Carries::Output,
            stdout: outlet(OutputStream::Stdout, streams.stdout),
            stderr: outlet(OutputStream::Stderr, streams.stderr),
            input: Some(typed),
            follower: None,
            bond: Bond::LivesOn,
            phase: Phase::Preparing { environment },
            unrecorded: Some(work),
            deadline: None,
            give_up_at: None,
            ended: None,
            ear,
        };
        self.tasks.insert(exec, task);
        Ok(exec)
    }
}

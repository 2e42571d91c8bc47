//! The agent's loop as a source of events.

use std::time::Instant;

use belljar_record::{RecordError, Recorder};

use super::state_machine::Progress;
use super::{Driver, LoopStep};
use crate::supervise::SuperviseError;
use crate::supervise::event_source::{EventSource, PollSet};
use crate::supervise::sandbox::SandboxState;
use crate::supervise::task::{End, Task, TaskPhase};

/// What the loop's turn works with: the sandbox that the agent runs in, and the record.
pub(in crate::supervise) struct AgentParts<'p> {
    pub(in crate::supervise) sandbox: &'p mut SandboxState,
    pub(in crate::supervise) recorder: &'p mut Recorder,
}

/// The loop came to its end, and so does the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::supervise) struct LoopEnded;

impl EventSource for Driver {
    type Parts<'p> = AgentParts<'p>;
    type Event = LoopEnded;

    fn watch<'a>(&'a self, poll: &mut PollSet<'a>) {
        poll.fds().extend(self.poll_fd());
    }

    fn deadline(&self) -> Option<Instant> {
        self.wake_at
    }

    fn take_turn(
        &mut self,
        _: Instant,
        mut parts: AgentParts<'_>,
    ) -> Result<Vec<LoopEnded>, SuperviseError> {
        while let Progress::Next = self.step(&mut parts)? {}
        self.wake_at = self.next_wake(parts.sandbox.agent_recorder());
        let is_over = matches!(self.step, LoopStep::Over) && self.end.is_some();
        Ok(is_over.then_some(LoopEnded).into_iter().collect())
    }
}

impl Driver {
    /// A command ended, and all its output is recorded. Those of the loop decide its next step.
    pub(in crate::supervise) fn task_ended(
        &mut self,
        task: &mut Task,
        recorder: &mut Recorder,
    ) -> Result<(), RecordError> {
        if !self.owns(task.exec) {
            return Ok(());
        }
        let mut agent = task.agent.take();
        if let Some(agent) = &mut agent {
            agent.finish(recorder)?;
        }
        let failure = match &task.phase {
            TaskPhase::Over(End::NotExecuted(failure)) => Some(failure.clone()),
            _ => None,
        };
        self.ended = Some(super::state_machine::LoopTaskEnd { exit: task.exit(), failure, agent });
        Ok(())
    }
}

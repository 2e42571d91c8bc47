//! The end of a command: its phase, what it left running, and its record.

use belljar_record::{RecordError, Recorder};
use belljar_spec::ExecFailure;
use belljar_spec::wire::ToInit;
use belljar_spec::wire::control::Keep;

use super::super::channel::MAIN_EXEC;
use super::super::task::{End, EndedBy, Task, TaskPhase};
use super::SandboxState;
use super::init_events::MessageError;

impl SandboxState {
    /// A command that could not be prepared or executed.
    pub(super) fn exec_failed(
        &mut self,
        exec: u32,
        failure: ExecFailure,
    ) -> Result<(), MessageError> {
        if !self.tasks.contains_key(&exec) {
            return Err(MessageError::unknown_exec());
        }
        if exec == MAIN_EXEC {
            self.result.failure = Some(failure.clone());
        }
        self.end_exec(exec, End::NotExecuted(failure));
        Ok(())
    }

    /// A command ended. The main one takes the sandbox with it, unless the sandbox is kept.
    pub(super) fn end_exec(&mut self, exec: u32, end: End) {
        let Some(task) = self.tasks.get_mut(&exec) else { return };
        if exec == MAIN_EXEC
            && let End::Exited(status) = end
        {
            self.result.status = Some(status);
        }
        let was_requested = task.ended_by == Some(EndedBy::Request);
        task.phase = TaskPhase::Over(end);
        if let Some(deadline) = task.deadline.take() {
            self.leftovers.insert(exec, deadline);
        }
        if let Some(input) = &mut task.input {
            input.close();
        }
        if exec != MAIN_EXEC
            && was_requested
            && let Some(channel) = self.link.channel()
        {
            channel.post(&ToInit::KillTree { exec }); // what it left running goes too
        }
        let stays =
            self.keep == Keep::UntilStopped && self.has_init() && self.result.failure.is_none();
        match (exec, stays) {
            (MAIN_EXEC, false) => self.end(),
            // What it left in the background may hold its pipes for ever, and is no longer read.
            (MAIN_EXEC, true) => self.main_just_ended = true,
            _ => {}
        }
    }

    /// Commands that ended and whose last byte has been passed on; they are forgotten here.
    pub(in crate::supervise) fn take_finished_tasks(&mut self) -> Vec<Task> {
        let finished = self.tasks.values().filter(|task| task.is_finished());
        let finished: Vec<u32> = finished.map(|task| task.exec).collect();
        finished.into_iter().filter_map(|exec| self.tasks.remove(&exec)).collect()
    }

    pub(in crate::supervise) fn take_all_tasks(&mut self) -> Vec<Task> {
        std::mem::take(&mut self.tasks).into_values().collect()
    }

    pub(in crate::supervise) fn record_end(
        &mut self,
        task: &mut Task,
        recorder: &mut Recorder,
    ) -> Result<(), RecordError> {
        if recorder.is_sound() {
            task.record_end(recorder)?;
        }
        if task.exec == MAIN_EXEC {
            self.result.stdout = task.stdout.captured();
            self.result.stderr = task.stderr.captured();
        }
        Ok(())
    }

    /// The rest of the proxy's events are recorded.
    pub(in crate::supervise) fn finish_network(
        &mut self,
        recorder: &mut Recorder,
    ) -> Result<(), RecordError> {
        self.network.finish(recorder)
    }

    pub(in crate::supervise) fn take_result(&mut self) -> super::SandboxResult {
        std::mem::take(&mut self.result)
    }

    pub(in crate::supervise) fn result_mut(&mut self) -> &mut super::SandboxResult {
        &mut self.result
    }
}

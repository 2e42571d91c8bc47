//! Commits an iteration: its checkpoint is on disk, then its event is written to the log.

use belljar_spec::{EventKind, IterationReport};

use super::{AgentEnded, Driver, LoopStep, PendingCheckpoint};
use crate::supervise::SuperviseError;
use belljar_record::Recorder;
use belljar_workspace::checkpoint::Taken;

impl Driver {
    /// Its data are on disk. With its event the iteration has happened.
    pub(super) fn checkpoint_is_there(
        &mut self,
        keeping: PendingCheckpoint,
        ended: Box<AgentEnded>,
        recorder: &mut Recorder,
    ) -> Result<(), SuperviseError> {
        let Taken { report: checkpoint, changed, .. } = match keeping.finish() {
            Some(taken) => taken.map_err(SuperviseError::Checkpoint)?,
            None => return Err(SuperviseError::CheckpointThread),
        };
        let came_to = ended.ended(changed, self.begun.elapsed());
        let AgentEnded { iteration, failure, summary, totals, dropped, wall, done } = *ended;
        let secrets = recorder.secrets();
        let masked = |text: &String| secrets.mask_words_of(text);
        let report = IterationReport {
            iteration: iteration.number,
            exec: iteration.exec,
            failure,
            wall_ms: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX),
            turns: summary.turns,
            usage: summary.usage,
            changed,
            // One that holds a secret's value could not be found again.
            session: summary.session.clone().filter(|session| masked(session) == *session),
            session_totals: totals,
            message: summary.message.as_ref().map(masked),
            done,
            unparsed: summary.unparsed,
            dropped,
            checkpoint,
            totals: self.state.with(&came_to),
        };
        recorder.event(EventKind::Checkpoint, &report)?;
        recorder.barrier()?;
        self.state.finished(&came_to);
        self.session = summary.session.or(self.session.take());
        self.totals = totals;
        self.message = report.message;
        Ok(())
    }

    /// The run is over; a checkpoint that was being taken still counts if it is whole.
    pub(in crate::supervise) fn finish(
        &mut self,
        recorder: &mut Recorder,
    ) -> Result<(), SuperviseError> {
        match std::mem::replace(&mut self.step, LoopStep::Over) {
            LoopStep::Checkpoint { keeping, ended } if recorder.is_sound() => {
                let number = ended.iteration.number;
                match self.checkpoint_is_there(keeping, ended, recorder) {
                    Err(SuperviseError::Checkpoint(error)) => {
                        let why = belljar_spec::text::error_chain(&error);
                        self.why = Some(format!("no checkpoint of iteration {number}: {why}"));
                    }
                    there => there?,
                }
                self.step = LoopStep::Between;
            }
            step => self.step = step,
        }
        Ok(())
    }
}

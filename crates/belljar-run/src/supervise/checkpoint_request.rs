//! Takes checkpoints of a run without an agent, when a client requests one.
//!
//! No command runs meanwhile: a request is refused while one does, and a command while a checkpoint is being taken.
//! A process that a command left in the background may still write; the report counts what may be torn.

use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

use belljar_record::Recorder;
use belljar_spec::text::error_chain;
use belljar_spec::wire::control::{ControlError, FromSupervisor, TakenCheckpoint};
use belljar_spec::{
    AgentTotals, CheckpointReport, EventKind, IterationReport, Moment, RunState, SessionTotals,
    TokenUsage,
};
use belljar_workspace::checkpoint::{Subject, Taken};

use super::SuperviseError;
use super::client::ClientId;
use super::drive::{PendingCheckpoint, before_now};
use super::event_source::{EventSource, PollSet};
use super::supervisor::Supervisor;

/// The newest checkpoints of a run that are kept.
const MAX_KEPT: u32 = 32;
/// Bytes of a client's note that are recorded.
const MAX_NOTE: usize = 4096;

#[derive(Debug)]
struct Requested {
    client: ClientId,
    number: u32,
    note: Option<String>,
    begun: Instant,
    work: PendingCheckpoint,
}

/// The checkpoints of one run.
#[derive(Debug)]
pub(super) struct Checkpoints {
    subject: Subject,
    taken: u32,
    /// When the last one was begun, or the run.
    since: Moment,
    pending: Option<Requested>,
}

impl Checkpoints {
    pub(super) fn of(subject: Subject) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let secs = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let since = Moment { secs, nanos: now.subsec_nanos() };
        Self { subject, taken: 0, since, pending: None }
    }

    pub(super) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// The client that asked for the one in progress is gone.
    pub(super) fn cancel(&self) {
        self.subject.cancel.store(true, Ordering::Relaxed);
    }

    /// At the end of the run: without its event, a checkpoint does not count.
    pub(super) fn give_up(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.cancel();
            drop(pending.work.finish());
        }
    }

    fn begin(&mut self, client: ClientId, note: Option<String>) -> Result<(), ControlError> {
        let number = self.taken + 1;
        let since = std::mem::replace(&mut self.since, before_now());
        let work = PendingCheckpoint::begin(self.subject.clone(), number, since, MAX_KEPT)
            .map_err(|error| ControlError::NoCheckpoint { why: error.to_string() })?;
        let begun = Instant::now();
        self.pending = Some(Requested { client, number, note, begun, work });
        Ok(())
    }
}

impl EventSource for Checkpoints {
    type Parts<'p> = &'p mut Recorder;
    type Event = (ClientId, FromSupervisor);

    fn watch<'a>(&'a self, poll: &mut PollSet<'a>) {
        poll.fds().extend(self.pending.as_ref().map(|pending| pending.work.poll_fd()));
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// The data are on disk; with its event a checkpoint counts, and only then is it reported.
    fn take_turn(
        &mut self,
        _: Instant,
        recorder: &mut Recorder,
    ) -> Result<Vec<Self::Event>, SuperviseError> {
        let done = self.pending.take_if(|pending| pending.work.is_done());
        let Some(Requested { client, number, note, begun, work }) = done else {
            return Ok(Vec::new());
        };
        let refused =
            |why: String| FromSupervisor::CheckpointRefused(ControlError::NoCheckpoint { why });
        let answer = match work.finish() {
            None => refused("its thread failed".to_owned()),
            Some(Err(error)) => refused(error_chain(&error)),
            Some(Ok(Taken { report, changed, .. })) => {
                let message = note.map(|note| recorder.secrets().mask_words_of(&note));
                let mut event = event_of(number, report, message);
                event.changed = changed;
                event.wall_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                recorder.event(EventKind::Checkpoint, &event)?;
                recorder.barrier()?;
                self.taken = number;
                FromSupervisor::CheckpointTaken(TakenCheckpoint { number, changed, report })
            }
        };
        Ok(vec![(client, answer)])
    }
}

impl Supervisor<'_> {
    pub(super) fn checkpoint_requested(&mut self, client: ClientId, note: Option<String>) {
        if let Err(error) = self.try_checkpoint(client, note) {
            tracing::debug!(%error, "checkpoint refused");
            self.control.clients.send(client, &FromSupervisor::CheckpointRefused(error));
        }
    }

    fn try_checkpoint(
        &mut self,
        client: ClientId,
        note: Option<String>,
    ) -> Result<(), ControlError> {
        let refused = |why: &str| ControlError::NoCheckpoint { why: why.to_owned() };
        if self.clock.is_over() || self.clock.is_stopping() {
            return Err(ControlError::NotRunning { state: RunState::Stopping });
        }
        if self.agent.is_some() {
            return Err(refused("the run's agent loop takes one after every iteration"));
        }
        if self.checkpoints.is_pending() {
            return Err(ControlError::CheckpointPending);
        }
        let running: usize = self.sandboxes.iter().map(|sandbox| sandbox.running_tasks()).sum();
        if running > 0 {
            return Err(ControlError::Busy { running });
        }
        if note.as_ref().is_some_and(|note| note.len() > MAX_NOTE) {
            return Err(refused(&format!("its note is longer than {MAX_NOTE} bytes")));
        }
        self.checkpoints.begin(client, note)
    }

    pub(super) fn checkpoint_turn(&mut self, now: Instant) {
        if self.clock.is_over() {
            return;
        }
        let events = self.checkpoints.take_turn(now, self.recorder);
        for (client, answer) in self.or_fail(events) {
            self.control.clients.send(client, &answer);
        }
    }
}

/// The same event as after an iteration of an agent, so that whoever reads checkpoints finds both.
fn event_of(number: u32, checkpoint: CheckpointReport, message: Option<String>) -> IterationReport {
    IterationReport {
        iteration: number,
        exec: 0,
        failure: None,
        wall_ms: 0,
        turns: 0,
        usage: TokenUsage::default(),
        changed: 0,
        session: None,
        session_totals: SessionTotals::default(),
        message,
        done: None,
        unparsed: 0,
        dropped: 0,
        checkpoint,
        totals: AgentTotals { iterations: number, ..AgentTotals::default() },
    }
}

//! Records the refused system calls of a traced sandbox: the first of each kind at once, then counts, less and less
//! often.

use std::time::{Duration, Instant};

use belljar_record::{Importance, RecordError, Recorder};
use belljar_spec::EventKind;
use belljar_spec::denied_call::{DeniedCallCount, DeniedCounts};
use serde_json::json;

/// From the first repetition to the event with its count.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// The same for calls that keep recurring.
const MAX_PAUSE: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct DeniedCallLog {
    counts: DeniedCounts,
    /// When the repetitions are written.
    due: Option<Instant>,
    pause: Duration,
}

impl DeniedCallLog {
    pub(super) fn new() -> Self {
        Self { counts: DeniedCounts::default(), due: None, pause: FIRST_PAUSE }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// What PID 1 reported, each of it plausible.
    pub(super) fn take(
        &mut self,
        calls: &[DeniedCallCount],
        now: Instant,
        recorder: &mut Recorder,
    ) -> Result<(), RecordError> {
        for DeniedCallCount { call, count } in calls {
            match self.counts.add_known(call, *count) {
                Some(first) => write(&first, recorder)?,
                None => drop(self.due.get_or_insert(now + self.pause)),
            }
        }
        Ok(())
    }

    pub(super) fn turn(
        &mut self,
        now: Instant,
        recorder: &mut Recorder,
    ) -> Result<(), RecordError> {
        if self.due.is_some_and(|due| now >= due) {
            self.pause = (2 * self.pause).min(MAX_PAUSE);
            self.finish(recorder)?;
        }
        Ok(())
    }

    /// What is not written yet.
    pub(super) fn finish(&mut self, recorder: &mut Recorder) -> Result<(), RecordError> {
        self.due = None;
        self.counts.take_new().iter().try_for_each(|counted| write(counted, recorder))
    }
}

fn write(counted: &DeniedCallCount, recorder: &mut Recorder) -> Result<(), RecordError> {
    let data = json!(counted.call.counted(counted.count));
    recorder.run_event(EventKind::SyscallDenied, &data, Importance::Ordinary).map(drop)
}

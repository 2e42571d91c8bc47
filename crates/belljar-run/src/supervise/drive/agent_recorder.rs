//! Parses the output of an agent into `agent.*` events of the record.

use std::time::Instant;

use belljar_spec::AgentEvent;
use serde_json::json;

use crate::agent::{OutputParser, Reader, Summary};
use belljar_record::{Importance, Kept, RecordError, Recorder};

/// Bytes of `agent.*` events of one iteration: one that floods leaves something of the run's budget to the next.
const MAX_BYTES: usize = 32 << 20;
/// Further events that still count, such as the result, when everything else is dropped.
const RESERVE: usize = 1 << 20;

/// The events of one iteration.
#[derive(Debug)]
pub(in crate::supervise) struct AgentRecorder {
    parser: OutputParser,
    iteration: u32,
    /// When the agent made progress last, as opposed to mere output.
    last_event: Instant,
    /// When it reported its result.
    finished: Option<Instant>,
    written: usize,
    dropped: u64,
}

impl AgentRecorder {
    pub(super) fn new(reader: Box<dyn Reader>, iteration: u32) -> Self {
        let (parser, last_event) = (OutputParser::new(reader), Instant::now());
        Self { parser, iteration, last_event, finished: None, written: 0, dropped: 0 }
    }

    pub(in crate::supervise) fn take_output(
        &mut self,
        bytes: &[u8],
        recorder: &mut Recorder,
    ) -> Result<(), RecordError> {
        let events = self.parser.feed(bytes);
        self.record(events, recorder)
    }

    /// Nothing more will come.
    pub(super) fn finish(&mut self, recorder: &mut Recorder) -> Result<(), RecordError> {
        let events = self.parser.finish();
        self.record(events, recorder)
    }

    fn record(
        &mut self,
        events: Vec<AgentEvent>,
        recorder: &mut Recorder,
    ) -> Result<(), RecordError> {
        for mut event in events {
            if is_progress(&event) {
                self.last_event = Instant::now();
            }
            if matches!(event, AgentEvent::Result(_)) && self.finished.is_none() {
                self.finished = Some(Instant::now());
            }
            for text in event.texts_mut() {
                *text = recorder.secrets().mask_words_of(text);
            }
            let (room, importance) = match &event {
                AgentEvent::Result(_) | AgentEvent::Session { .. } | AgentEvent::Usage(_) => {
                    (RESERVE, Importance::NeededToResume)
                }
                _ => (0, Importance::Ordinary),
            };
            let mut data = json!(&event);
            data["iteration"] = self.iteration.into();
            let length = data.to_string().len();
            if self.written + length > MAX_BYTES + room {
                self.dropped += 1;
                continue;
            }
            match recorder.run_event(event.kind(), &data, importance)? {
                Kept::Yes => self.written += length,
                Kept::Dropped => self.dropped += 1,
            }
        }
        Ok(())
    }

    pub(super) fn last_event(&self) -> Instant {
        self.last_event
    }

    pub(super) fn finished(&self) -> Option<Instant> {
        self.finished
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn parser(&self) -> &OutputParser {
        &self.parser
    }

    pub(super) fn summary(&self) -> &Summary {
        self.parser.summary()
    }
}

/// An agent that only reports errors, such as a service that it cannot reach, makes no progress.
fn is_progress(event: &AgentEvent) -> bool {
    match event {
        AgentEvent::Error { .. } => false,
        AgentEvent::Message { .. }
        | AgentEvent::ToolCall { .. }
        | AgentEvent::ToolResult { .. }
        | AgentEvent::Usage(_)
        | AgentEvent::Session { .. }
        | AgentEvent::Result(_) => true,
    }
}

//! Listens to an agent while its output goes into the record.

use std::time::Instant;

use belljar_spec::AgentEvent;
use serde_json::json;

use crate::agent::{OutputParser, Reader, Summary};
use belljar_record::{Importance, Kept, RecordError, Recorder};

/// Bytes of `agent.*` events of one iteration: one that floods leaves something of the run's budget to the next.
const MOST_BYTES: usize = 32 << 20;
/// Further news that still count, such as the result, when everything else is dropped.
const RESERVE: usize = 1 << 20;

/// The ear of one iteration.
#[derive(Debug)]
pub(in crate::supervise) struct AgentRecorder {
    listener: OutputParser,
    iteration: u32,
    /// When there was news last: progress, as opposed to mere output.
    heard: Instant,
    /// When it told its result.
    finished: Option<Instant>,
    written: usize,
    dropped: u64,
}

impl AgentRecorder {
    pub(super) fn new(reader: Box<dyn Reader>, iteration: u32) -> Self {
        let (listener, heard) = (OutputParser::new(reader), Instant::now());
        Self { listener, iteration, heard, finished: None, written: 0, dropped: 0 }
    }

    pub(in crate::supervise) fn hear(
        &mut self,
        bytes: &[u8],
        recorder: &mut Recorder,
    ) -> Result<(), RecordError> {
        let news = self.listener.feed(bytes);
        self.tell(news, recorder)
    }

    /// Nothing more will come.
    pub(super) fn finish(&mut self, recorder: &mut Recorder) -> Result<(), RecordError> {
        let news = self.listener.finish();
        self.tell(news, recorder)
    }

    fn tell(&mut self, news: Vec<AgentEvent>, recorder: &mut Recorder) -> Result<(), RecordError> {
        for mut one in news {
            if is_progress(&one) {
                self.heard = Instant::now();
            }
            if matches!(one, AgentEvent::Result(_)) && self.finished.is_none() {
                self.finished = Some(Instant::now());
            }
            for text in one.texts_mut() {
                *text = recorder.secrets().mask_words_of(text);
            }
            let (room, importance) = match &one {
                AgentEvent::Result(_) | AgentEvent::Session { .. } | AgentEvent::Usage(_) => {
                    (RESERVE, Importance::NeededToResume)
                }
                _ => (0, Importance::Ordinary),
            };
            let mut data = json!(&one);
            data["iteration"] = self.iteration.into();
            let length = data.to_string().len();
            if self.written + length > MOST_BYTES + room {
                self.dropped += 1;
                continue;
            }
            match recorder.run_event(one.kind(), &data, importance)? {
                Kept::Yes => self.written += length,
                Kept::Dropped => self.dropped += 1,
            }
        }
        Ok(())
    }

    pub(in crate::supervise) fn heard(&self) -> Instant {
        self.heard
    }

    pub(super) fn finished(&self) -> Option<Instant> {
        self.finished
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn listener(&self) -> &OutputParser {
        &self.listener
    }

    pub(super) fn summary(&self) -> &Summary {
        self.listener.summary()
    }
}

/// An agent that only says again and again that it cannot reach its service does not get on.
fn is_progress(news: &AgentEvent) -> bool {
    match news {
        AgentEvent::Error { .. } => false,
        AgentEvent::Message { .. }
        | AgentEvent::ToolCall { .. }
        | AgentEvent::ToolResult { .. }
        | AgentEvent::Usage(_)
        | AgentEvent::Session { .. }
        | AgentEvent::Result(_) => true,
    }
}

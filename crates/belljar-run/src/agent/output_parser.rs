//! Splits an agent's output into lines, parses them into events and sums up the result.

use belljar_spec::{AgentEvent, AgentResult, Exit, Failure, MAX_TEXT, Role, TokenUsage};

use super::{Reader, SessionTotals, Understood};

/// A longer line is counted as unparsed, and its bytes are dropped.
pub(crate) const MAX_LINE_BYTES: usize = 4 << 20;

/// A larger buffer is freed after its line.
const MAX_REUSED_BUFFER: usize = 1 << 20;
/// Of the final message, in which `until = { says = … }` is searched.
const MAX_FINAL_TEXT: usize = 1 << 20;

/// What one run of an agent has produced so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summary {
    pub(crate) session: Option<String>,
    pub(crate) result: Option<AgentResult>,
    /// The last message of the agent, truncated.
    pub(crate) message: Option<String>,
    /// The same message in full; of a longer one, the last [`MAX_FINAL_TEXT`] bytes.
    pub(crate) final_text: String,
    /// Responses of the model, as far as the format reports them.
    pub(crate) turns: u64,
    pub(crate) usage: TokenUsage,
    pub(crate) unparsed: u64,
}

/// Parses the output of one run of an agent.
#[derive(Debug)]
pub(crate) struct OutputParser {
    reader: Box<dyn Reader>,
    partial: Vec<u8>,
    /// Inside a line that is too long.
    skipping: bool,
    summary: Summary,
}

impl OutputParser {
    pub(crate) fn new(reader: Box<dyn Reader>) -> Self {
        Self { reader, partial: Vec::new(), skipping: false, summary: Summary::default() }
    }

    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Vec<AgentEvent> {
        let mut events = Vec::new();
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            if self.partial.is_empty() {
                self.take(line, &mut events);
            } else if self.partial.len() + line.len() > MAX_LINE_BYTES {
                self.partial = Vec::new();
                self.summary.unparsed += 1;
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                self.take(&whole, &mut events);
                if whole.capacity() <= MAX_REUSED_BUFFER {
                    whole.clear();
                    self.partial = whole;
                }
            }
        }
        if self.skipping {
            return events;
        }
        if self.partial.len() + bytes.len() > MAX_LINE_BYTES {
            self.partial = Vec::new();
            self.skipping = true;
            self.summary.unparsed += 1;
        } else {
            self.partial.extend_from_slice(bytes);
        }
        events
    }

    /// Parses the rest at end of file; the last line may have no newline.
    pub(crate) fn finish(&mut self) -> Vec<AgentEvent> {
        let mut events = Vec::new();
        let rest = std::mem::take(&mut self.partial);
        if !rest.is_empty() {
            self.take(&rest, &mut events);
        }
        let before = events.len();
        self.reader.end(&mut events);
        self.note(&mut events[before..]);
        events
    }

    fn take(&mut self, line: &[u8], events: &mut Vec<AgentEvent>) {
        if line.len() > MAX_LINE_BYTES {
            self.summary.unparsed += 1;
            return;
        }
        let before = events.len();
        if self.reader.line(line, events) == Understood::No {
            self.summary.unparsed += 1;
        }
        self.note(&mut events[before..]);
    }

    fn note(&mut self, events: &mut [AgentEvent]) {
        for one in events {
            self.summary.set_final_text(one);
            truncate_texts(one);
            self.summary.note(one);
        }
        self.summary.turns = self.reader.turns();
    }

    /// The session's totals as the agent reported them, for the next run in this session.
    pub(crate) fn totals(&self) -> SessionTotals {
        self.reader.totals()
    }

    #[cfg(test)]
    pub(super) fn buffered(&self) -> usize {
        self.partial.capacity()
    }

    pub(crate) fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Why the run failed, if it did. The exit code alone is not enough, and success in one of exit code and result
    /// does not outweigh failure in the other.
    pub(crate) fn failure(&self, exit: Exit) -> Option<Failure> {
        match &self.summary.result {
            None if self.reader.needs_result() => Some(Failure::Exit { exit }),
            _ => self.verdict().or((exit.code != Some(0)).then_some(Failure::Exit { exit })),
        }
    }

    /// The failure that the agent reported itself.
    pub(crate) fn verdict(&self) -> Option<Failure> {
        let result = self.summary.result.as_ref().filter(|result| result.is_error)?;
        Some(Failure::Reported { code: result.code.clone() })
    }
}

impl Summary {
    /// Runs before texts are truncated: the phrase of `until` may be at the very end.
    fn set_final_text(&mut self, event: &AgentEvent) {
        let text = match event {
            AgentEvent::Message { role: Role::Assistant, text } => text,
            AgentEvent::Result(AgentResult { text: Some(text), .. }) => text,
            _ => return,
        };
        let mut start = text.len().saturating_sub(MAX_FINAL_TEXT);
        while !text.is_char_boundary(start) {
            start += 1;
        }
        self.final_text.clear();
        self.final_text.push_str(&text[start..]);
    }

    fn note(&mut self, event: &AgentEvent) {
        match event {
            AgentEvent::Message { role: Role::Assistant, text } => {
                self.message = Some(text.clone())
            }
            AgentEvent::Session { id, .. } => self.session = Some(id.clone()),
            AgentEvent::Usage(usage) => self.usage.add(usage),
            AgentEvent::Result(result) => {
                if let Some(text) = &result.text {
                    self.message = Some(text.clone());
                }
                self.result = Some(result.clone());
            }
            AgentEvent::Message { .. }
            | AgentEvent::ToolCall { .. }
            | AgentEvent::ToolResult { .. }
            | AgentEvent::Error { .. } => {}
        }
    }
}

/// Bounds the size of an event.
fn truncate_texts(event: &mut AgentEvent) {
    let cut = |text: &mut String| {
        if text.len() > MAX_TEXT {
            let mut end = MAX_TEXT;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
            text.shrink_to_fit();
            text.push('…');
        }
    };
    let cut_option = |text: &mut Option<String>| text.as_mut().map_or((), cut);
    match event {
        AgentEvent::Message { text, .. } => cut(text),
        AgentEvent::ToolCall { id, tool, input } => {
            cut_option(id);
            cut(tool);
            cut(input);
        }
        AgentEvent::ToolResult { id, text, .. } => {
            cut_option(id);
            cut(text);
        }
        AgentEvent::Session { id, model } => {
            cut(id);
            cut_option(model);
        }
        AgentEvent::Result(result) => {
            cut_option(&mut result.code);
            cut_option(&mut result.text);
        }
        AgentEvent::Error { message } => cut(message),
        AgentEvent::Usage(_) => {}
    }
}

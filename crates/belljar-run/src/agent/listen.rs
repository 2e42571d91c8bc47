//! What an agent prints, taken apart into lines, and what came of them.

use belljar_spec::{AgentNews, AgentResult, Exit, Failure, LONGEST_TEXT, Role, TokenUsage};

use super::{Reader, SessionTotals, Understood};

/// A longer line is counted as one that makes no sense, and its bytes are not kept.
pub(crate) const LONGEST_LINE: usize = 4 << 20;

/// A larger buffer is given back after its line.
const KEPT_BUFFER: usize = 1 << 20;
/// Of the final message, kept for who looks for words in it.
const LONGEST_FINAL: usize = 1 << 20;

/// What is known of one run of an agent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summary {
    pub(crate) session: Option<String>,
    pub(crate) result: Option<AgentResult>,
    /// The last thing that the agent said, shortened.
    pub(crate) message: Option<String>,
    /// The same, as long as it was, but for the beginning of what is longer than [`LONGEST_FINAL`].
    pub(crate) final_text: String,
    /// Answers of the model, as far as the format tells; the result's own number counts more.
    pub(crate) turns: u64,
    pub(crate) usage: TokenUsage,
    pub(crate) unparsed: u64,
}

/// One run of an agent, listened to.
#[derive(Debug)]
pub(crate) struct Listener {
    reader: Box<dyn Reader>,
    partial: Vec<u8>,
    /// The rest of a line that is too long.
    skipping: bool,
    summary: Summary,
}

impl Listener {
    pub(crate) fn new(reader: Box<dyn Reader>) -> Self {
        Self { reader, partial: Vec::new(), skipping: false, summary: Summary::default() }
    }

    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Vec<AgentNews> {
        let mut news = Vec::new();
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            if self.partial.is_empty() {
                self.take(line, &mut news);
            } else if self.partial.len() + line.len() > LONGEST_LINE {
                self.partial = Vec::new();
                self.summary.unparsed += 1;
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                self.take(&whole, &mut news);
                if whole.capacity() <= KEPT_BUFFER {
                    whole.clear();
                    self.partial = whole;
                }
            }
        }
        if self.skipping {
            return news;
        }
        if self.partial.len() + bytes.len() > LONGEST_LINE {
            self.partial = Vec::new();
            self.skipping = true;
            self.summary.unparsed += 1;
        } else {
            self.partial.extend_from_slice(bytes);
        }
        news
    }

    /// A last line may have no newline.
    pub(crate) fn finish(&mut self) -> Vec<AgentNews> {
        let mut news = Vec::new();
        let rest = std::mem::take(&mut self.partial);
        if !rest.is_empty() {
            self.take(&rest, &mut news);
        }
        let before = news.len();
        self.reader.end(&mut news);
        self.note(&mut news[before..]);
        news
    }

    fn take(&mut self, line: &[u8], news: &mut Vec<AgentNews>) {
        if line.len() > LONGEST_LINE {
            self.summary.unparsed += 1;
            return;
        }
        let before = news.len();
        if self.reader.line(line, news) == Understood::No {
            self.summary.unparsed += 1;
        }
        self.note(&mut news[before..]);
    }

    fn note(&mut self, news: &mut [AgentNews]) {
        for one in news {
            self.summary.hear(one);
            shorten(one);
            self.summary.note(one);
        }
        self.summary.turns = self.reader.turns();
    }

    /// What the agent said of its whole session, for the next run in it.
    pub(crate) fn totals(&self) -> SessionTotals {
        self.reader.totals()
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.partial.capacity()
    }

    pub(crate) fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Judged as the format says; the exit code alone is not enough, and a good verdict does not outweigh a bad one.
    pub(crate) fn failure(&self, exit: Exit) -> Option<Failure> {
        match &self.summary.result {
            None if self.reader.needs_result() => Some(Failure::Exit { exit }),
            _ => self.verdict().or((exit.code != Some(0)).then_some(Failure::Exit { exit })),
        }
    }

    /// What it says of itself.
    pub(crate) fn verdict(&self) -> Option<Failure> {
        let result = self.summary.result.as_ref().filter(|result| result.is_error)?;
        Some(Failure::Said { word: result.word.clone() })
    }
}

impl Summary {
    /// Before anything is shortened: the phrase that somebody waits for may be at the very end.
    fn hear(&mut self, news: &AgentNews) {
        let said = match news {
            AgentNews::Message { role: Role::Assistant, text } => text,
            AgentNews::Result(AgentResult { text: Some(text), .. }) => text,
            _ => return,
        };
        let mut start = said.len().saturating_sub(LONGEST_FINAL);
        while !said.is_char_boundary(start) {
            start += 1;
        }
        self.final_text.clear();
        self.final_text.push_str(&said[start..]);
    }

    fn note(&mut self, news: &AgentNews) {
        match news {
            AgentNews::Message { role: Role::Assistant, text } => self.message = Some(text.clone()),
            AgentNews::Session { id, .. } => self.session = Some(id.clone()),
            AgentNews::Usage(usage) => self.usage.add(usage),
            AgentNews::Result(result) => {
                if let Some(text) = &result.text {
                    self.message = Some(text.clone());
                }
                self.result = Some(result.clone());
            }
            AgentNews::Message { .. }
            | AgentNews::ToolCall { .. }
            | AgentNews::ToolResult { .. }
            | AgentNews::Error { .. } => {}
        }
    }
}

/// No text of an agent makes an event large.
fn shorten(news: &mut AgentNews) {
    let cut = |text: &mut String| {
        if text.len() > LONGEST_TEXT {
            let mut end = LONGEST_TEXT;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
            text.shrink_to_fit();
            text.push('…');
        }
    };
    let cut_option = |text: &mut Option<String>| text.as_mut().map_or((), cut);
    match news {
        AgentNews::Message { text, .. } => cut(text),
        AgentNews::ToolCall { id, tool, input } => {
            cut_option(id);
            cut(tool);
            cut(input);
        }
        AgentNews::ToolResult { id, text, .. } => {
            cut_option(id);
            cut(text);
        }
        AgentNews::Session { id, model } => {
            cut(id);
            cut_option(model);
        }
        AgentNews::Result(result) => {
            cut_option(&mut result.word);
            cut_option(&mut result.text);
        }
        AgentNews::Error { message } => cut(message),
        AgentNews::Usage(_) => {}
    }
}

//! Tests of the adapters: parsed lines, and command lines.

mod argv;
mod formats;
mod hostile;
mod memory;

use belljar_spec::manifest::AgentKind;
use belljar_spec::{AgentEvent, Exit, ExitSource};

use super::{OutputParser, SessionTotals, adapter};

const ALL: [AgentKind; 4] =
    [AgentKind::Claude, AgentKind::Codex, AgentKind::Gemini, AgentKind::Command];

fn exit(code: i32) -> Exit {
    Exit { code: Some(code), signal: None, source: ExitSource::Command }
}

fn parser(kind: AgentKind, before: SessionTotals) -> OutputParser {
    OutputParser::new(adapter(kind).reader_after(before))
}

/// Parses the whole output at once.
fn parsed(kind: AgentKind, output: &str) -> (Vec<AgentEvent>, OutputParser) {
    let mut parser = parser(kind, SessionTotals::default());
    let mut events = parser.feed(output.as_bytes());
    events.extend(parser.finish());
    (events, parser)
}

/// Each event as one short line.
fn brief(events: &[AgentEvent]) -> Vec<String> {
    let mark = |is_error: bool| if is_error { "!" } else { "" };
    let one = |event: &AgentEvent| match event {
        AgentEvent::Message { role, text } => format!("{role:?}: {text}"),
        AgentEvent::ToolCall { id, tool, input } => {
            format!("{}> {tool} {input}", id.as_deref().unwrap_or("?"))
        }
        AgentEvent::ToolResult { id, is_error, text } => {
            format!("{}<{} {text}", id.as_deref().unwrap_or("?"), mark(*is_error))
        }
        AgentEvent::Usage(usage) => format!(
            "+{} {} ({}) {}",
            usage.input_tokens,
            usage.output_tokens,
            usage.cached_tokens,
            usage.cost_usd.micros()
        ),
        AgentEvent::Session { id, model } => {
            format!("session {} {}", &id[..4], model.as_deref().unwrap_or("-"))
        }
        AgentEvent::Result(result) => format!(
            "result{} {} {} {}",
            mark(result.is_error),
            result.code.as_deref().unwrap_or("-"),
            result.text.as_deref().unwrap_or("-"),
            result.turns.unwrap_or_default()
        ),
        AgentEvent::Error { message } => format!("error: {message}"),
    };
    events.iter().map(one).collect()
}

//! What each format's lines become, and how each agent is called.

mod argv;
mod formats;
mod hostile;
mod memory;

use belljar_spec::manifest::AgentKind;
use belljar_spec::{AgentNews, Exit, ExitSource};

use super::{Listener, SessionTotals, adapter};

const ALL: [AgentKind; 4] =
    [AgentKind::Claude, AgentKind::Codex, AgentKind::Gemini, AgentKind::Command];

fn exit(code: i32) -> Exit {
    Exit { code: Some(code), signal: None, source: ExitSource::Command }
}

fn listener(kind: AgentKind, before: SessionTotals) -> Listener {
    Listener::new(adapter(kind).reader_after(before))
}

/// All of it at once, to the end.
fn heard(kind: AgentKind, output: &str) -> (Vec<AgentNews>, Listener) {
    let mut listener = listener(kind, SessionTotals::default());
    let mut news = listener.feed(output.as_bytes());
    news.extend(listener.finish());
    (news, listener)
}

/// One line each, as short as it can be told apart.
fn brief(news: &[AgentNews]) -> Vec<String> {
    let mark = |is_error: bool| if is_error { "!" } else { "" };
    let one = |news: &AgentNews| match news {
        AgentNews::Message { role, text } => format!("{role:?}: {text}"),
        AgentNews::ToolCall { id, tool, input } => {
            format!("{}> {tool} {input}", id.as_deref().unwrap_or("?"))
        }
        AgentNews::ToolResult { id, is_error, text } => {
            format!("{}<{} {text}", id.as_deref().unwrap_or("?"), mark(*is_error))
        }
        AgentNews::Usage(usage) => format!(
            "+{} {} ({}) {}",
            usage.input_tokens,
            usage.output_tokens,
            usage.cached_tokens,
            usage.cost_usd.micros()
        ),
        AgentNews::Session { id, model } => {
            format!("session {} {}", &id[..4], model.as_deref().unwrap_or("-"))
        }
        AgentNews::Result(result) => format!(
            "result{} {} {} {}",
            mark(result.is_error),
            result.word.as_deref().unwrap_or("-"),
            result.text.as_deref().unwrap_or("-"),
            result.turns.unwrap_or_default()
        ),
        AgentNews::Error { message } => format!("error: {message}"),
    };
    news.iter().map(one).collect()
}

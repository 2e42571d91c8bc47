//! `belljar logs --agent`: prints an agent's events from the record, also while the agent runs.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use belljar::home::Home;
use belljar::record::EventReader;
use belljar::spec::text::escape;
use belljar::spec::{Event, EventKind, RunId};
use belljar::store::{self, Life};
use jiff::Timestamp;

use super::CommandResult;
use super::agent_log::{AgentLog, has_agent};
use super::descriptor::is_closed;
use super::stderr_tail::StderrTails;

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Longer lines are hard to read, even on a wider terminal.
const MAX_WIDTH: usize = 100;
const DEFAULT_WIDTH: usize = 80;

#[derive(Debug, thiserror::Error)]
#[error("run {0} has no agent; to print the output of its commands: belljar logs {0}")]
struct NoAgent(RunId);

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    /// The agent's events as they are stored, one per line.
    Json,
}

/// When to stop printing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// After the events that are in the record now.
    Now,
    /// When the run has ended.
    RunEnds,
}

/// Prints to standard output. A closed pipe is no error.
pub(super) fn print(
    home: &Home,
    run: &RunId,
    until: Until,
    form: Form,
    since: Option<Timestamp>,
) -> CommandResult {
    let directory = home.run_dir(run);
    let mut events = EventReader::open(&directory)?;
    let mut stderr_tails = StderrTails::of(&directory);
    let mut log = AgentLog::new(width());
    let mut is_first = true;
    loop {
        // Checked before reading, so that the last events are not missed.
        let live = matches!(store::life::of(home, run), Life::Live(_));
        while let Some(event) = events.next()? {
            if std::mem::take(&mut is_first) && !has_agent(&event) {
                return Err(NoAgent(*run).into());
            }
            // Also for events that are not printed: later lines depend on them.
            stderr_tails.note(&event);
            let mut lines = log.lines(&event);
            if let Some(failed) = log.take_failed() {
                lines.extend(log.last_output(&stderr_tails.last(failed)));
            }
            if since.is_some_and(|since| !is_since(&event, since)) {
                continue;
            }
            let lines = match form {
                Form::Text => lines,
                Form::Json => as_json(&event)?,
            };
            match put(&lines, form) {
                Err(error) if is_closed(&error) => return Ok(0),
                written => written?,
            }
        }
        if until == Until::Now || !live {
            return Ok(0);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

pub(super) fn width() -> usize {
    match rustix::termios::tcgetwinsize(rustix::stdio::stdout()) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col).min(MAX_WIDTH),
        _ => DEFAULT_WIDTH,
    }
}

fn is_since(event: &Event, since: Timestamp) -> bool {
    event.time.parse::<Timestamp>().is_ok_and(|time| time >= since)
}

fn is_agent_event(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::IterationStart
            | EventKind::AgentMessage
            | EventKind::AgentToolCall
            | EventKind::AgentToolResult
            | EventKind::AgentUsage
            | EventKind::AgentSession
            | EventKind::AgentResult
            | EventKind::AgentError
            | EventKind::Checkpoint
    )
}

fn as_json(event: &Event) -> serde_json::Result<Vec<String>> {
    match is_agent_event(event.kind) {
        true => Ok(vec![serde_json::to_string(event)?]),
        false => Ok(Vec::new()),
    }
}

fn put(lines: &[String], form: Form) -> io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    // JSON escapes most control characters; on a terminal, the rest is escaped too.
    let escapes = form == Form::Json && io::stdout().is_terminal();
    let line = |line: &String| if escapes { escape(line.as_bytes()) } else { line.clone() };
    let text: String = lines.iter().map(|one| line(one) + "\n").collect();
    let mut out = anstream::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}

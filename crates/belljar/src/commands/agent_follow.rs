//! `belljar logs --agent`: what an agent did, from the record, also while it does it.

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
use super::stderr_tail::Complaints;

const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// On a terminal that is wider, lines are easier to read when they are not.
const WIDEST: usize = 100;
const WITHOUT_A_TERMINAL: usize = 80;

#[derive(Debug, thiserror::Error)]
#[error("run {0} has no agent; belljar logs {0} shows what its commands put out")]
struct NoAgent(RunId);

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Words,
    /// The agent's events as they are stored, one a line.
    Json,
}

/// How long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// What there is now.
    Now,
    /// The run is over.
    TheEnd,
}

/// Prints it on standard output. A reader that went away is no error.
pub(super) fn print(
    home: &Home,
    run: &RunId,
    until: Until,
    form: Form,
    since: Option<Timestamp>,
) -> CommandResult {
    let directory = home.run_dir(run);
    let mut events = EventReader::open(&directory)?;
    let mut complaints = Complaints::of(&directory);
    let mut log = AgentLog::new(width());
    let mut is_first = true;
    loop {
        // Looked at first: what is written before the end is read after it.
        let live = matches!(store::life::of(home, run), Life::Live(_));
        while let Some(event) = events.next()? {
            if std::mem::take(&mut is_first) && !has_agent(&event) {
                return Err(NoAgent(*run).into());
            }
            // Taken in any case: later ones may need to know.
            complaints.note(&event);
            let mut lines = log.lines(&event);
            if let Some(failed) = log.take_failed() {
                lines.extend(log.complaint(&complaints.last(failed)));
            }
            if since.is_some_and(|since| !is_late(&event, since)) {
                continue;
            }
            let lines = match form {
                Form::Words => lines,
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
        std::thread::sleep(LOOK_AGAIN);
    }
}

pub(super) fn width() -> usize {
    match rustix::termios::tcgetwinsize(rustix::stdio::stdout()) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col).min(WIDEST),
        _ => WITHOUT_A_TERMINAL,
    }
}

fn is_late(event: &Event, since: Timestamp) -> bool {
    event.time.parse::<Timestamp>().is_ok_and(|time| time >= since)
}

fn is_the_agents(kind: EventKind) -> bool {
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
    match is_the_agents(event.kind) {
        true => Ok(vec![serde_json::to_string(event)?]),
        false => Ok(Vec::new()),
    }
}

fn put(lines: &[String], form: Form) -> io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    // JSON escapes most of what could drive a terminal; on one, the rest is escaped too.
    let escapes = form == Form::Json && io::stdout().is_terminal();
    let line = |line: &String| if escapes { escape(line.as_bytes()) } else { line.clone() };
    let text: String = lines.iter().map(|one| line(one) + "\n").collect();
    let mut out = anstream::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}

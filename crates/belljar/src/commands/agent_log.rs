//! Formats an agent's events as lines for the terminal.
//!
//! The texts come from the agent: they are escaped, wrapped and cut.

use std::collections::BTreeMap;

use anstyle::Style;
use belljar::spec::egress::EgressDenied;
use belljar::spec::{
    AgentEvent, AgentReport, AgentResult, AgentWork, Event, EventKind, Exit, Failure,
    IterationReport, OsText, ResumeOrigin, Role, StopReason, Until,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::agent_summary::{counted, ended, origin, result, span, used};
use super::stderr_tail::FailedExec;
use super::wrap::{Room, Shown, columns, one_line, wrapped};
use crate::report::{BAD, BOLD, DIM, GOOD, WARN};

/// Lines shown of one message. The record has the rest.
const MAX_MESSAGE_LINES: usize = 60;
/// Lines shown of a thought, a tool's input or a tool's result.
const MAX_DETAIL_LINES: usize = 3;
/// Lines shown of a failed command's stderr.
const MAX_STDERR_LINES: usize = 5;
/// A shorter wait between iterations is not mentioned.
const MIN_PAUSE_NS: u64 = 1_000_000_000;

/// Whether the run that starts with this event has an agent.
pub(super) fn has_agent(start: &Event) -> bool {
    start.kind == EventKind::RunStart && start.data.pointer("/spec/agent").is_some()
}

/// Formats a run's events, which it gets in order.
#[derive(Debug)]
pub(super) struct AgentLog {
    width: usize,
    before: Block,
    /// The commands that the run executes besides its agent.
    setup: Option<Vec<OsText>>,
    until: Option<Vec<OsText>>,
    /// Those of the two that are running, by exec number.
    helpers: BTreeMap<u64, HelperCommand>,
    /// When the last iteration ended.
    ended_at: Option<u64>,
    failed: Option<FailedExec>,
}

/// The kind of the last lines: a blank line separates different kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Nothing,
    Head,
    Message,
    Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HelperCommand {
    Setup,
    Until,
}

#[derive(Deserialize)]
struct Start {
    spec: StartSpec,
    #[serde(default)]
    resumed_from: Option<ResumeOrigin>,
}

#[derive(Deserialize)]
struct StartSpec {
    #[serde(default)]
    agent: Option<AgentWork>,
}

#[derive(Deserialize)]
struct Stop {
    reason: StopReason,
    #[serde(default)]
    agent: Option<AgentReport>,
    #[serde(default)]
    detail: Option<String>,
}

#[derive(Deserialize)]
struct ExecStart {
    exec: u64,
    #[serde(default)]
    argv: Vec<OsText>,
}

#[derive(Deserialize)]
struct ExecExit {
    exec: u64,
    exit: Exit,
}

impl AgentLog {
    pub(super) fn new(width: usize) -> Self {
        let (setup, until, ended_at) = (None, None, None);
        Self {
            width: width.max(40),
            before: Block::Nothing,
            setup,
            until,
            helpers: BTreeMap::new(),
            ended_at,
            failed: None,
        }
    }

    /// The lines for an event; none for one that users need not see. They contain styles: print them through
    /// `anstream`.
    pub(super) fn lines(&mut self, event: &Event) -> Vec<String> {
        let (block, lines) = match event.kind {
            EventKind::RunStart => (Block::Action, self.start(event)),
            EventKind::IterationStart => (Block::Head, self.head(event)),
            EventKind::AgentMessage
            | EventKind::AgentToolCall
            | EventKind::AgentToolResult
            | EventKind::AgentUsage
            | EventKind::AgentSession
            | EventKind::AgentResult
            | EventKind::AgentError => match data::<AgentEvent>(event) {
                Some(event) => self.agent_event(&event),
                None => (Block::Action, Vec::new()),
            },
            EventKind::Checkpoint => {
                self.ended_at = Some(event.mono_ns);
                let report = data::<IterationReport>(event);
                (Block::Head, report.map_or(Vec::new(), |report| self.iteration_end(&report)))
            }
            EventKind::ExecStart => (Block::Action, self.helper_start(event)),
            EventKind::ExecExit => (Block::Action, self.helper_end(event)),
            EventKind::EgressDenied => (Block::Action, self.denied(event)),
            EventKind::EgressLost => {
                (Block::Action, self.dim("the proxy died: the run has no network access"))
            }
            EventKind::LimitHit => (Block::Action, self.limit(event)),
            EventKind::RunStop => (Block::Head, self.stop(event)),
            _ => (Block::Action, Vec::new()),
        };
        self.spaced(block, lines)
    }

    fn spaced(&mut self, block: Block, mut lines: Vec<String>) -> Vec<String> {
        if lines.is_empty() {
            return lines;
        }
        let between = match (self.before, block) {
            (Block::Nothing, _) | (Block::Head, Block::Message | Block::Action) => false,
            (_, Block::Head) => true,
            (before, block) => before != block,
        };
        self.before = block;
        if between {
            lines.insert(0, String::new());
        }
        lines
    }

    fn start(&mut self, event: &Event) -> Vec<String> {
        let Some(Start { spec, resumed_from }) = data::<Start>(event) else { return Vec::new() };
        if let Some(work) = spec.agent {
            self.setup = work.setup.map(|setup| setup.command);
            self.until = match work.repeat.until {
                Some(Until::Command { argv, .. }) => Some(argv),
                _ => None,
            };
        }
        resumed_from.map_or(Vec::new(), |resumed_from| self.dim(&origin(&resumed_from)))
    }

    fn head(&mut self, event: &Event) -> Vec<String> {
        let number = event.data.get("iteration").and_then(serde_json::Value::as_u64);
        let time = event.time.parse::<jiff::Timestamp>();
        let time = time.map_or(String::new(), |time| time.strftime(" %H:%M:%S").to_string());
        let title = format!("── iteration {} ", number.unwrap_or_default());
        let rest = self.width.saturating_sub(columns(&title) + columns(&time));
        let mut lines = Vec::new();
        let waited = self.ended_at.map(|ended| event.mono_ns.saturating_sub(ended));
        if let Some(waited) = waited.filter(|waited| *waited >= MIN_PAUSE_NS) {
            lines.extend(self.dim(&format!("paused for {}", span(waited / 1_000_000))));
            lines.push(String::new());
        }
        lines.push(format!("{BOLD}{title}{}{time}{BOLD:#}", "─".repeat(rest)));
        lines
    }

    fn agent_event(&self, event: &AgentEvent) -> (Block, Vec<String>) {
        let lines = match event {
            AgentEvent::Message { role: Role::Assistant, text } => {
                let lines = self.fold(text, "", MAX_MESSAGE_LINES);
                return (Block::Message, lines.into_iter().map(unlike_headings).collect());
            }
            AgentEvent::Message { role: Role::Thinking | Role::System, text } => {
                styled(self.fold(text, "  ", MAX_DETAIL_LINES), DIM)
            }
            AgentEvent::Message { role: Role::User, text } => {
                styled(self.fold(text, "> ", MAX_DETAIL_LINES), DIM)
            }
            AgentEvent::ToolCall { tool, input, .. } => {
                let tool = one_line(tool, 30);
                let colon = if input.trim().is_empty() { "" } else { ": " };
                let called = format!("{tool}{colon}{}", input.trim_start());
                let mut lines = self.fold(&called, "● ", MAX_DETAIL_LINES);
                let name = format!("● {tool}");
                if let Some(first) = lines.first_mut()
                    && let Some(rest) = first.strip_prefix(&name)
                {
                    *first = format!("{BOLD}{name}{BOLD:#}{rest}");
                }
                lines
            }
            AgentEvent::ToolResult { is_error, text, .. } => {
                // Also without colors a failure must not look like a success.
                let (mark, style) = if *is_error { ("  ⎿ ✗ ", BAD) } else { ("  ⎿ ", DIM) };
                let text = match (text.trim().is_empty(), *is_error) {
                    (true, true) => "failed, no output",
                    (true, false) => "(empty)",
                    (false, _) => text,
                };
                styled(self.fold(text, mark, MAX_DETAIL_LINES), style)
            }
            AgentEvent::Usage(_) => Vec::new(),
            AgentEvent::Session { id, model } => {
                let model = model.as_ref().map(|model| format!(", model {}", one_line(model, 60)));
                self.dim(&format!("session {}{}", one_line(id, 60), model.unwrap_or_default()))
            }
            AgentEvent::Result(result) => self.verdict(result),
            AgentEvent::Error { message } => {
                styled(self.fold(message, "✗ ", MAX_DETAIL_LINES), BAD)
            }
        };
        (Block::Action, lines)
    }

    /// Only for errors: the text of a success repeats the last message.
    fn verdict(&self, result: &AgentResult) -> Vec<String> {
        if !result.is_error {
            return Vec::new();
        }
        let word = result.code.as_deref().filter(|word| *word != "success").unwrap_or("an error");
        let text = result.text.as_deref().unwrap_or_default();
        let colon = if text.trim().is_empty() { "" } else { ": " };
        let text = format!("the agent ended with {word}{colon}{text}");
        styled(self.fold(&text, "✗ ", MAX_DETAIL_LINES), BAD)
    }

    /// The command that failed in the last event, if its output may explain why.
    pub(super) fn take_failed(&mut self) -> Option<FailedExec> {
        self.failed.take()
    }

    /// The last lines of a failed command's output.
    pub(super) fn last_output(&self, text: &str) -> Vec<String> {
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines.get(lines.len().saturating_sub(MAX_STDERR_LINES)..).unwrap_or_default();
        let room = self.width.saturating_sub(4);
        let shown = last.iter().map(|line| format!("  │ {}", one_line(line, room)));
        styled(shown.collect(), DIM)
    }

    fn iteration_end(&mut self, report: &IterationReport) -> Vec<String> {
        if let Some(Failure::Exit { .. } | Failure::NotStarted { .. } | Failure::Oom { .. }) =
            report.failure
        {
            self.failed = Some(FailedExec { exec: report.exec, is_plain: false });
        }
        let IterationReport { iteration, turns, usage, changed, wall_ms, .. } = report;
        let mut parts = vec![result(report)];
        parts.extend(used(*turns, usage));
        parts.push(format!("{} changed", counted(*changed, "path")));
        parts.push(span(*wall_ms));
        if report.done == Some(false) {
            parts.push("not done yet".to_owned());
        }
        if report.unparsed > 0 {
            parts.push(format!("{} not parsed", counted(report.unparsed, "line")));
        }
        if report.dropped > 0 {
            parts.push(format!("{} dropped", counted(report.dropped, "event")));
        }
        let style = match (&report.failure, report.done) {
            (Some(_), _) => BAD,
            (None, Some(true)) => GOOD,
            (None, _) => Style::new(),
        };
        let text = format!("iteration {iteration} ended: {}", parts.join(", "));
        styled(self.fold(&text, "── ", MAX_DETAIL_LINES), style)
    }

    fn helper_start(&mut self, event: &Event) -> Vec<String> {
        let Some(ExecStart { exec, argv }) = data::<ExecStart>(event) else { return Vec::new() };
        let is = |other: &Option<Vec<OsText>>| other.as_ref().is_some_and(|other| *other == argv);
        let helper = match (is(&self.setup), is(&self.until)) {
            (true, _) => HelperCommand::Setup,
            (_, true) => HelperCommand::Until,
            _ => return Vec::new(),
        };
        self.helpers.insert(exec, helper);
        match helper {
            HelperCommand::Setup => {
                self.dim(&format!("set-up: {}", belljar::spec::text::quote_command(&argv)))
            }
            HelperCommand::Until => Vec::new(),
        }
    }

    fn helper_end(&mut self, event: &Event) -> Vec<String> {
        let Some(ExecExit { exec, exit }) = data::<ExecExit>(event) else { return Vec::new() };
        let succeeded = exit.process_code() == 0;
        match (self.helpers.remove(&exec), succeeded) {
            (Some(HelperCommand::Setup), true) => self.dim("set-up: done"),
            (Some(HelperCommand::Setup), false) => {
                let exec = u32::try_from(exec).unwrap_or_default();
                self.failed = Some(FailedExec { exec, is_plain: true });
                styled(self.fold(&format!("set-up failed: {}", ended(&exit)), "✗ ", 1), BAD)
            }
            (Some(HelperCommand::Until), _) => {
                let argv = self.until.as_deref().unwrap_or_default();
                self.dim(&format!(
                    "until {}: {}",
                    belljar::spec::text::quote_command(argv),
                    ended(&exit)
                ))
            }
            (None, _) => Vec::new(),
        }
    }

    fn denied(&self, event: &Event) -> Vec<String> {
        let Some(EgressDenied { host, port, method, path, count, .. }) = data(event) else {
            return Vec::new();
        };
        let method = method.map_or(String::new(), |method| format!("{method} "));
        let port = port.map_or(String::new(), |port| format!(":{port}"));
        let times = if count > 1 { format!(", {count} times") } else { String::new() };
        self.dim(&format!("denied: {method}{host}{port}{}{times}", path.unwrap_or_default()))
    }

    fn limit(&self, event: &Event) -> Vec<String> {
        let what = ["limit", "what", "clause"].iter().find_map(|key| event.data.get(key)?.as_str());
        let text = format!("a limit was reached: {}", what.unwrap_or("see belljar events"));
        styled(self.fold(&text, "  ", 1), WARN)
    }

    fn stop(&self, event: &Event) -> Vec<String> {
        let Some(Stop { reason, agent, detail }) = data(event) else { return Vec::new() };
        let mut parts = vec![reason.name().to_owned()];
        if let Some(AgentReport { totals, unfinished_iteration, .. }) = &agent {
            if totals.iterations > 0 || unfinished_iteration.is_none() {
                parts.push(counted(u64::from(totals.iterations), "iteration"));
            }
            parts.extend(unfinished_iteration.map(|_| "1 unfinished iteration".to_owned()));
            parts.extend(used(totals.turns, &totals.usage));
            parts.push(span(totals.elapsed_ms));
        }
        let style = match reason {
            StopReason::Done => GOOD,
            StopReason::Exited | StopReason::Stopped | StopReason::MaxIterations => BOLD,
            _ => WARN,
        };
        let mut lines = styled(self.fold(&format!("ended: {}", parts.join(", ")), "── ", 3), style);
        let why = agent.map(|agent| agent.why).filter(|why| !why.trim().is_empty());
        let detail = detail.filter(|detail| why.as_ref() != Some(detail)); // said once
        for text in why.into_iter().chain(detail) {
            lines.extend(styled(self.fold(&text, "   ", MAX_DETAIL_LINES), DIM));
        }
        lines
    }

    fn dim(&self, text: &str) -> Vec<String> {
        styled(self.fold(text, "  ", MAX_DETAIL_LINES), DIM)
    }

    /// Wraps a text, cuts it after `lines` lines and counts the rest.
    fn fold(&self, text: &str, first: &str, lines: usize) -> Vec<String> {
        let Shown { mut lines, more } = wrapped(text, first, Room { width: self.width, lines });
        if more > 0
            && let Some(last) = lines.last_mut()
        {
            let rest = format!("… (+{})", counted(more as u64, "line"));
            let full = last.len();
            while columns(last) + columns(&rest) > self.width && last.pop().is_some() {}
            // Cut at a blank, unless the word is long.
            if last.len() < full
                && let Some(end) = last.rfind(' ').filter(|end| *end > last.len() / 2)
            {
                last.truncate(end);
            }
            last.push_str(&rest);
        }
        lines
    }
}

/// Replaces leading symbols, so that an agent's message cannot pass for a line of belljar's.
fn unlike_headings(line: String) -> String {
    match line.chars().next() {
        Some('─') => {
            let rest = line.trim_start_matches('─');
            let dashes = line.chars().count() - rest.chars().count();
            format!("{}{rest}", "-".repeat(dashes))
        }
        Some('●') => line.replacen('●', "*", 1),
        _ => line,
    }
}

/// Styles each line separately, so that a style never continues on the next line.
fn styled(lines: Vec<String>, style: Style) -> Vec<String> {
    let one = |line: String| match line.is_empty() {
        true => line,
        false => format!("{style}{line}{style:#}"),
    };
    lines.into_iter().map(one).collect()
}

fn data<T: DeserializeOwned>(event: &Event) -> Option<T> {
    T::deserialize(&event.data).ok()
}

#[cfg(test)]
mod tests;

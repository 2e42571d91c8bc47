//! What an agent did, as a person would read it: events in, lines out. Prints nothing.
//!
//! Every text in it is the agent's: escaped, broken to the width, cut where it is long.

use std::collections::BTreeMap;

use anstyle::Style;
use belljar::spec::egress::EgressDenied;
use belljar::spec::{
    AgentNews, AgentReport, AgentResult, AgentWork, Event, EventKind, Exit, Failure,
    IterationReport, OsText, ResumeOrigin, Role, StopReason, Until,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::agent_summary::{birth, counted, ended, result, span, used};
use super::stderr_tail::Failed;
use super::wrap::{Room, Shown, columns, one_line, wrapped};
use crate::report::{BAD, BOLD, DIM, GOOD, WARN};

/// Of one message. The record has the rest.
const MOST_OF_A_MESSAGE: usize = 60;
/// Of a thought, a tool's input, a result.
const MOST_OF_THE_REST: usize = 3;
/// Lines of a command that failed.
const MOST_COMPLAINTS: usize = 5;
/// A shorter wait between iterations is none.
const A_PAUSE: u64 = 1_000_000_000;

/// Whether the events of a run are an agent's.
pub(super) fn has_agent(start: &Event) -> bool {
    start.kind == EventKind::RunStart && start.data.pointer("/spec/agent").is_some()
}

/// Takes a run's events in their order.
#[derive(Debug)]
pub(super) struct AgentLog {
    width: usize,
    before: Block,
    /// What the run does besides its agent.
    setup: Option<Vec<OsText>>,
    until: Option<Vec<OsText>>,
    /// Commands of these two that run.
    aside: BTreeMap<u64, Aside>,
    /// When the last iteration ended.
    ended_at: Option<u64>,
    failed: Option<Failed>,
}

/// What the last lines were: a blank line stands between different ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Nothing,
    Head,
    Said,
    Did,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aside {
    Setup,
    Until,
}

#[derive(Deserialize)]
struct Start {
    spec: StartSpec,
    #[serde(default)]
    birth: Option<ResumeOrigin>,
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
            aside: BTreeMap::new(),
            ended_at,
            failed: None,
        }
    }

    /// Nothing, for an event that tells a person nothing. Styles are in the lines: print them through `anstream`.
    pub(super) fn lines(&mut self, event: &Event) -> Vec<String> {
        let (block, lines) = match event.kind {
            EventKind::RunStart => (Block::Did, self.start(event)),
            EventKind::IterationStart => (Block::Head, self.head(event)),
            EventKind::AgentMessage
            | EventKind::AgentToolCall
            | EventKind::AgentToolResult
            | EventKind::AgentUsage
            | EventKind::AgentSession
            | EventKind::AgentResult
            | EventKind::AgentError => match data::<AgentNews>(event) {
                Some(news) => self.news(&news),
                None => (Block::Did, Vec::new()),
            },
            EventKind::Checkpoint => {
                self.ended_at = Some(event.mono_ns);
                let report = data::<IterationReport>(event);
                (Block::Head, report.map_or(Vec::new(), |report| self.iteration_end(&report)))
            }
            EventKind::ExecStart => (Block::Did, self.aside_start(event)),
            EventKind::ExecExit => (Block::Did, self.aside_end(event)),
            EventKind::EgressDenied => (Block::Did, self.denied(event)),
            EventKind::EgressLost => (Block::Did, self.dim("the proxy is gone: nothing gets out")),
            EventKind::LimitHit => (Block::Did, self.limit(event)),
            EventKind::RunStop => (Block::Head, self.stop(event)),
            _ => (Block::Did, Vec::new()),
        };
        self.spaced(block, lines)
    }

    fn spaced(&mut self, block: Block, mut lines: Vec<String>) -> Vec<String> {
        if lines.is_empty() {
            return lines;
        }
        let between = match (self.before, block) {
            (Block::Nothing, _) | (Block::Head, Block::Said | Block::Did) => false,
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
        let Some(Start { spec, birth: born }) = data::<Start>(event) else { return Vec::new() };
        if let Some(work) = spec.agent {
            self.setup = work.setup.map(|setup| setup.command);
            self.until = match work.repeat.until {
                Some(Until::Command { argv, .. }) => Some(argv),
                _ => None,
            };
        }
        born.map_or(Vec::new(), |born| self.dim(&birth(&born)))
    }

    fn head(&mut self, event: &Event) -> Vec<String> {
        let number = event.data.get("iteration").and_then(serde_json::Value::as_u64);
        let time = event.time.parse::<jiff::Timestamp>();
        let time = time.map_or(String::new(), |time| time.strftime(" %H:%M:%S").to_string());
        let title = format!("── iteration {} ", number.unwrap_or_default());
        let rest = self.width.saturating_sub(columns(&title) + columns(&time));
        let mut lines = Vec::new();
        let waited = self.ended_at.map(|ended| event.mono_ns.saturating_sub(ended));
        if let Some(waited) = waited.filter(|waited| *waited >= A_PAUSE) {
            lines.extend(self.dim(&format!("paused for {}", span(waited / 1_000_000))));
            lines.push(String::new());
        }
        lines.push(format!("{BOLD}{title}{}{time}{BOLD:#}", "─".repeat(rest)));
        lines
    }

    fn news(&self, news: &AgentNews) -> (Block, Vec<String>) {
        let lines = match news {
            AgentNews::Message { role: Role::Assistant, text } => {
                let lines = self.fold(text, "", MOST_OF_A_MESSAGE);
                return (Block::Said, lines.into_iter().map(own_voice).collect());
            }
            AgentNews::Message { role: Role::Thinking | Role::System, text } => {
                styled(self.fold(text, "  ", MOST_OF_THE_REST), DIM)
            }
            AgentNews::Message { role: Role::User, text } => {
                styled(self.fold(text, "> ", MOST_OF_THE_REST), DIM)
            }
            AgentNews::ToolCall { tool, input, .. } => {
                let tool = one_line(tool, 30);
                let colon = if input.trim().is_empty() { "" } else { ": " };
                let called = format!("{tool}{colon}{}", input.trim_start());
                let mut lines = self.fold(&called, "● ", MOST_OF_THE_REST);
                let name = format!("● {tool}");
                if let Some(first) = lines.first_mut()
                    && let Some(rest) = first.strip_prefix(&name)
                {
                    *first = format!("{BOLD}{name}{BOLD:#}{rest}");
                }
                lines
            }
            AgentNews::ToolResult { is_error, text, .. } => {
                let text = if text.trim().is_empty() { "(nothing)" } else { text };
                let style = if *is_error { BAD } else { DIM };
                styled(self.fold(text, "  ⎿ ", MOST_OF_THE_REST), style)
            }
            AgentNews::Usage(_) => Vec::new(),
            AgentNews::Session { id, model } => {
                let model = model.as_ref().map(|model| format!(", model {}", one_line(model, 60)));
                self.dim(&format!("session {}{}", one_line(id, 60), model.unwrap_or_default()))
            }
            AgentNews::Result(result) => self.verdict(result),
            AgentNews::Error { message } => styled(self.fold(message, "✗ ", MOST_OF_THE_REST), BAD),
        };
        (Block::Did, lines)
    }

    /// What it said at the end of a success was its last message already.
    fn verdict(&self, result: &AgentResult) -> Vec<String> {
        if !result.is_error {
            return Vec::new();
        }
        let word = result.word.as_deref().filter(|word| *word != "success").unwrap_or("an error");
        let text = result.text.as_deref().unwrap_or_default();
        let colon = if text.trim().is_empty() { "" } else { ": " };
        let said = format!("the agent ended with {word}{colon}{text}");
        styled(self.fold(&said, "✗ ", MOST_OF_THE_REST), BAD)
    }

    /// The command that the last event told to have failed, where its output may say why.
    pub(super) fn take_failed(&mut self) -> Option<Failed> {
        self.failed.take()
    }

    /// The end of what a command put out before it failed.
    pub(super) fn complaint(&self, text: &str) -> Vec<String> {
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines.get(lines.len().saturating_sub(MOST_COMPLAINTS)..).unwrap_or_default();
        let room = self.width.saturating_sub(4);
        let shown = last.iter().map(|line| format!("  │ {}", one_line(line, room)));
        styled(shown.collect(), DIM)
    }

    fn iteration_end(&mut self, report: &IterationReport) -> Vec<String> {
        if let Some(Failure::Exit { .. } | Failure::NotStarted { .. }) = report.failure {
            self.failed = Some(Failed { exec: report.exec, is_plain: false });
        }
        let IterationReport { iteration, turns, usage, changed, wall_ms, .. } = report;
        let mut said = vec![result(report)];
        said.extend(used(*turns, usage));
        said.push(format!("{} changed", counted(*changed, "path")));
        said.push(span(*wall_ms));
        if report.done == Some(false) {
            said.push("not done yet".to_owned());
        }
        if report.unparsed > 0 {
            said.push(format!("{} not understood", counted(report.unparsed, "line")));
        }
        if report.dropped > 0 {
            said.push(format!("{} left out", counted(report.dropped, "event")));
        }
        let style = match (&report.failure, report.done) {
            (Some(_), _) => BAD,
            (None, Some(true)) => GOOD,
            (None, _) => Style::new(),
        };
        let text = format!("iteration {iteration} ended: {}", said.join(", "));
        styled(self.fold(&text, "── ", MOST_OF_THE_REST), style)
    }

    fn aside_start(&mut self, event: &Event) -> Vec<String> {
        let Some(ExecStart { exec, argv }) = data::<ExecStart>(event) else { return Vec::new() };
        let is = |words: &Option<Vec<OsText>>| words.as_ref().is_some_and(|words| *words == argv);
        let aside = match (is(&self.setup), is(&self.until)) {
            (true, _) => Aside::Setup,
            (_, true) => Aside::Until,
            _ => return Vec::new(),
        };
        self.aside.insert(exec, aside);
        match aside {
            Aside::Setup => {
                self.dim(&format!("set-up: {}", belljar::spec::text::quote_command(&argv)))
            }
            Aside::Until => Vec::new(),
        }
    }

    fn aside_end(&mut self, event: &Event) -> Vec<String> {
        let Some(ExecExit { exec, exit }) = data::<ExecExit>(event) else { return Vec::new() };
        let succeeded = exit.process_code() == 0;
        match (self.aside.remove(&exec), succeeded) {
            (Some(Aside::Setup), true) => self.dim("set-up: done"),
            (Some(Aside::Setup), false) => {
                let exec = u32::try_from(exec).unwrap_or_default();
                self.failed = Some(Failed { exec, is_plain: true });
                styled(self.fold(&format!("set-up failed: {}", ended(&exit)), "✗ ", 1), BAD)
            }
            (Some(Aside::Until), _) => {
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
        let mut said = vec![reason.name().to_owned()];
        if let Some(AgentReport { tally, .. }) = &agent {
            said.push(counted(u64::from(tally.iterations), "iteration"));
            said.extend(used(tally.turns, &tally.usage));
            said.push(span(tally.elapsed_ms));
        }
        let style = match reason {
            StopReason::Done => GOOD,
            StopReason::Exited | StopReason::Stopped | StopReason::MaxIterations => BOLD,
            _ => WARN,
        };
        let mut lines = styled(self.fold(&format!("ended: {}", said.join(", ")), "── ", 3), style);
        let why = agent.map(|agent| agent.why).filter(|why| !why.trim().is_empty());
        for text in why.into_iter().chain(detail) {
            lines.extend(styled(self.fold(&text, "   ", MOST_OF_THE_REST), DIM));
        }
        lines
    }

    fn dim(&self, text: &str) -> Vec<String> {
        styled(self.fold(text, "  ", MOST_OF_THE_REST), DIM)
    }

    /// Cut after so many lines, with a word on how many more there are.
    fn fold(&self, text: &str, first: &str, lines: usize) -> Vec<String> {
        let Shown { mut lines, more } = wrapped(text, first, Room { width: self.width, lines });
        if more > 0
            && let Some(last) = lines.last_mut()
        {
            let rest = format!("… (+{})", counted(more as u64, "line"));
            let full = last.len();
            while columns(last) + columns(&rest) > self.width && last.pop().is_some() {}
            // Not in the middle of a word, unless it is a long one.
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

/// What an agent says does not begin as the lines that belljar writes itself.
fn own_voice(line: String) -> String {
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

/// Each line by itself, so that a style never outlives the line.
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

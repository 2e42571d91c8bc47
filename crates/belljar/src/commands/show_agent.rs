//! The agent's part of `belljar show`: its settings and its iterations, over every run that was resumed.

use belljar::lineage::{Child, LineIteration, Lineage};
use belljar::spec::text::quote_command;
use belljar::spec::{AgentWork, ResumeKind};
use serde_json::{Value, json};

use super::agent_follow::width;
use super::agent_summary::{agent, counted, limits, origin, result, short, span, used};
use super::show::{INDENT, Page};
use super::wrap::{columns, one_line};
use crate::report::{BAD, BOLD, DIM, GOOD, folded};

/// Iterations on the page; `--json` has all of them.
const MAX_ITERATIONS: usize = 30;
/// Length of one value on the page.
const MAX_LENGTH: usize = 400;
const MAX_RESULT_WIDTH: usize = 16;
/// A narrower column of messages is left out.
const MIN_MESSAGE_WIDTH: usize = 8;

/// The agent, its prompt and its limits.
pub(super) fn settings(page: &mut Page, work: &AgentWork) {
    let spec = &work.agent;
    page.row("agent", &folded(&agent(spec), INDENT));
    let first = spec.prompt.lines().find(|line| !line.trim().is_empty());
    page.rows("prompt", first.map(|line| one_line(line, width().saturating_sub(INDENT))));
    page.rows(
        "set-up",
        work.setup
            .as_ref()
            .map(|setup| folded(&one_line(&quote_command(&setup.command), MAX_LENGTH), INDENT)),
    );
    if !work.repeat.is_once() {
        page.row("loop", &folded(&one_line(&limits(&work.repeat), MAX_LENGTH), INDENT));
    }
}

/// The run that it was resumed from, and the runs that were resumed from it.
pub(super) fn ancestry(page: &mut Page, line: &Lineage) {
    let parent = line.last().and_then(|member| member.origin.as_ref());
    page.rows("origin", parent.map(|parent| folded(&origin(parent), INDENT)));
    page.rows("broken", line.broken.as_ref().map(|why| folded(&why.to_string(), INDENT)));
    let child = |Child { run, kind, iteration }: &Child| {
        let verb = match kind {
            ResumeKind::Resume => "continues it",
            ResumeKind::Fork => "is a fork",
        };
        format!("{run} {verb} after iteration {iteration}")
    };
    page.rows("children", line.children.iter().map(child));
}

/// The agent's totals and iterations.
pub(super) fn results(page: &mut Page, line: &Lineage) {
    let member = line.last();
    let why = member.and_then(|member| member.agent.as_ref()).map(|agent| &agent.why);
    page.rows("ended", why.map(|why| folded(&one_line(why, MAX_LENGTH), INDENT)));
    let totals = line.totals();
    let mut parts = vec![counted(u64::from(totals.iterations), "iteration")];
    parts.extend(used(totals.turns, &totals.usage));
    parts.push(span(totals.elapsed_ms));
    page.row("agent used", &folded(&parts.join(", "), INDENT));
    if !line.iterations.is_empty() {
        page.text("\n");
        page.text(&table(line, width()));
    }
    let open = member.and_then(|member| member.last_started);
    if let Some(open) = open.filter(|number| line.iteration(*number).is_none()) {
        let is_live = member.is_some_and(|member| member.reason.is_none());
        let how = if is_live { "is running" } else { "did not finish" };
        page.text(&format!("{DIM}iteration {open} {how}{DIM:#}\n"));
    }
}

fn table(line: &Lineage, most: usize) -> String {
    let left_out = line.iterations.len().saturating_sub(MAX_ITERATIONS);
    let listed = &line.iterations[left_out..];
    let several = line.runs.len() > 1;
    let head = ["#", "RUN", "RESULT", "TURNS", "TOKENS", "COST", "CHANGED", "TIME"];
    let rows: Vec<[String; 8]> = listed.iter().map(cells).collect();
    let widths: Vec<usize> = (0..head.len())
        .map(|at| match at {
            1 if !several => 0,
            _ => {
                rows.iter().map(|row| columns(&row[at])).chain([head[at].len()]).max().unwrap_or(0)
            }
        })
        .collect();
    let fixed: usize = widths.iter().filter(|width| **width > 0).map(|width| width + 2).sum();
    let room = most.saturating_sub(fixed);
    let one = |cells: [&str; 8], message: &str| {
        let mut text = String::new();
        for (at, cell) in cells.into_iter().enumerate().filter(|(at, _)| widths[*at] > 0) {
            let pad = " ".repeat(widths[at].saturating_sub(columns(cell)));
            // Text to the left, numbers to the right.
            text.push_str(&match at {
                1 | 2 => format!("{cell}{pad}  "),
                _ => format!("{pad}{cell}  "),
            });
        }
        if room >= MIN_MESSAGE_WIDTH {
            text.push_str(&one_line(message, room));
        }
        text.trim_end().to_owned()
    };
    let mut text = format!("{BOLD}{}{BOLD:#}\n", one(head, "LAST MESSAGE"));
    if left_out > 0 {
        let count = counted(left_out as u64, "earlier one");
        text.push_str(&format!("{DIM}… {count}: belljar show --json has all{DIM:#}\n"));
    }
    for (iteration, cells) in listed.iter().zip(&rows) {
        let message = iteration.report.message.as_deref().unwrap_or_default();
        let row = one(cells.each_ref().map(String::as_str), message);
        let style = match (&iteration.report.failure, iteration.report.done) {
            (Some(_), _) => BAD,
            (None, Some(true)) => GOOD,
            (None, _) => anstyle::Style::new(),
        };
        text.push_str(&format!("{style}{row}{style:#}\n"));
    }
    if listed.iter().any(|one| one.kept) {
        text.push_str(&format!("{DIM}* checkpoint kept: belljar resume --from N{DIM:#}\n"));
    }
    text
}

fn cells(one: &LineIteration) -> [String; 8] {
    let LineIteration { run, report, kept } = one;
    let cost = report.usage.cost_usd;
    [
        format!("{}{}", report.iteration, if *kept { "*" } else { " " }),
        run.tail().to_owned(),
        one_line(&result(report), MAX_RESULT_WIDTH),
        report.turns.to_string(),
        short(report.usage.tokens()),
        if cost.micros() == 0 { "-".to_owned() } else { cost.to_string() },
        report.changed.to_string(),
        span(report.wall_ms),
    ]
}

/// Adds the agent's data for `--json`.
pub(super) fn add_data(shown: &mut Value, line: &Lineage) -> serde_json::Result<()> {
    let member = line.last();
    shown["iterations"] = serde_json::to_value(&line.iterations)?;
    shown["agent"] = json!(member.and_then(|member| member.agent.as_ref()));
    shown["resumed_from"] = json!(member.and_then(|member| member.origin.as_ref()));
    shown["children"] = serde_json::to_value(&line.children)?;
    shown["totals"] = serde_json::to_value(line.totals())?;
    if let Some(broken) = &line.broken {
        shown["broken"] = serde_json::to_value(broken)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use belljar::spec::{IterationReport, RunId};

    use super::*;

    fn iteration(number: u32, change: impl FnOnce(&mut Value)) -> LineIteration {
        let mut report = json!({
            "iteration": number, "exec": number, "wall_ms": 1500, "turns": 3, "changed": 0,
            "usage": { "input_tokens": 1_200, "output_tokens": 0 },
            "checkpoint": { "files": 0, "bytes": 0, "new_files": 0, "new_bytes": 0, "took_ms": 0 },
            "totals": { "iterations": number, "turns": 0, "elapsed_ms": 0, "failures_in_a_row": 0,
                "unchanged_in_a_row": 0, "usage": { "input_tokens": 0, "output_tokens": 0 } },
            "message": "a\nlong \u{1b}[2J\u{202e} tale ".repeat(50),
        });
        change(&mut report);
        let report: IterationReport = serde_json::from_value(report).unwrap();
        let run = RunId::from_parts(1_700_000_000_000, 7);
        LineIteration { run, report, kept: number.is_multiple_of(2) }
    }

    fn shown(iterations: Vec<LineIteration>, width: usize) -> Vec<String> {
        let line = Lineage { runs: Vec::new(), iterations, broken: None, children: Vec::new() };
        let text = anstream::adapter::strip_str(&table(&line, width)).to_string();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_table_fits_whatever_is_in_it() {
        let hostile = "\u{1b}]0;x\u{7}\u{202e}".repeat(100);
        let iterations = vec![
            iteration(1, |_| {}),
            iteration(2, |report| {
                report["failure"] = json!({ "kind": "reported", "code": hostile })
            }),
            iteration(3, |report| report["failure"] = json!({ "kind": "idle" })),
            iteration(10, |report| report["done"] = json!(true)),
        ];
        for width in [60, 80, 100] {
            let lines = shown(iterations.clone(), width);
            for line in &lines {
                assert!(columns(line) <= width, "{width}: {line}");
                assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'), "{line:?}");
            }
            assert_eq!(lines.len(), 1 + 4 + 1, "{lines:?}");
            assert!(lines[1].contains(" 1   ok") && lines[2].contains("2*  failed"), "{lines:?}");
            assert!(lines[3].contains("idle") && lines[4].contains("10*  done"), "{lines:?}");
        }
    }

    #[test]
    fn many_iterations_are_the_last_ones() {
        let lines = shown((1..=35).map(|number| iteration(number, |_| {})).collect(), 80);
        assert_eq!(lines.len(), 1 + 1 + MAX_ITERATIONS + 1);
        assert!(lines[1].starts_with("… 5 earlier ones"), "{}", lines[1]);
        assert!(lines[2].starts_with(" 6* "), "{}", lines[2]);
    }
}

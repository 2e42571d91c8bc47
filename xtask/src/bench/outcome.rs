//! What a part found, for people and for programs.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::bench::rounds::Times;

/// One number, with what it counts.
pub(crate) struct Figure {
    name: &'static str,
    unit: &'static str,
    value: f64,
}

pub(crate) struct Row {
    what: String,
    found: Result<Vec<Figure>, String>,
}

struct Target {
    what: String,
    value: String,
    held: bool,
}

pub(crate) struct Part {
    name: &'static str,
    title: String,
    rows: Vec<Row>,
    notes: Vec<String>,
    targets: Vec<Target>,
    failure: Option<String>,
}

pub(crate) fn figure(name: &'static str, value: f64, unit: &'static str) -> Figure {
    Figure { name, unit, value }
}

/// The percentiles that describe a latency.
pub(crate) fn latency(times: &Times) -> Vec<Figure> {
    [("p50", 50), ("p10", 10), ("p99", 99)]
        .map(|(name, percent)| figure(name, times.percentile(percent), "ms"))
        .into()
}

impl Part {
    pub(crate) fn new(name: &'static str, title: impl Into<String>) -> Self {
        let title = title.into();
        Self { name, title, rows: vec![], notes: vec![], targets: vec![], failure: None }
    }

    pub(crate) fn failed(name: &'static str, error: &anyhow::Error) -> Self {
        let failure = Some(format!("{error:#}"));
        Self { failure, ..Self::new(name, name) }
    }

    pub(crate) fn is_failed(&self) -> bool {
        self.failure.is_some()
    }

    pub(crate) fn row(&mut self, what: impl Into<String>, figures: Vec<Figure>) {
        self.rows.push(Row { what: what.into(), found: Ok(figures) });
    }

    pub(crate) fn missing(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.rows.push(Row { what: what.into(), found: Err(why.into()) });
    }

    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    pub(crate) fn at_most(&mut self, what: &str, value: f64, most: f64, unit: &str) {
        self.target(format!("{what}, at most {most} {unit}"), value, unit, value <= most);
    }

    pub(crate) fn at_least(&mut self, what: &str, value: f64, least: f64, unit: &str) {
        self.target(format!("{what}, at least {least} {unit}"), value, unit, value >= least);
    }

    fn target(&mut self, what: String, value: f64, unit: &str, held: bool) {
        let digits = digits(value);
        self.targets.push(Target { what, value: format!("{value:.digits$} {unit}"), held });
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!("\n{}: {}\n", self.name, self.title);
        if let Some(why) = &self.failure {
            let _ = writeln!(text, "  FAILED: {why}");
        }
        let width = self.rows.iter().map(|row| row.what.chars().count()).max().unwrap_or(0);
        for row in &self.rows {
            let _ = match &row.found {
                Ok(figures) => writeln!(text, "  {:<width$}  {}", row.what, words(figures)),
                Err(why) => writeln!(text, "  {:<width$}  not measured: {why}", row.what),
            };
        }
        for note in &self.notes {
            let _ = writeln!(text, "  {note}");
        }
        for target in &self.targets {
            let word = if target.held { "held" } else { "MISSED" };
            let _ = writeln!(text, "  {word:<7} {}: {}", target.what, target.value);
        }
        text
    }

    fn json(&self) -> Value {
        let row = |row: &Row| match &row.found {
            Ok(figures) => {
                let mut all = Map::from_iter([("what".to_owned(), json!(row.what))]);
                let named = |one: &Figure| (format!("{} {}", one.name, one.unit), json!(one.value));
                all.extend(figures.iter().map(named));
                Value::Object(all)
            }
            Err(why) => json!({ "what": row.what, "not_measured": why }),
        };
        let target =
            |one: &Target| json!({ "what": one.what, "value": one.value, "held": one.held });
        json!({
            "part": self.name, "title": self.title, "failure": self.failure, "notes": self.notes,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "targets": self.targets.iter().map(target).collect::<Vec<_>>(),
        })
    }
}

fn words(figures: &[Figure]) -> String {
    let word = |one: &Figure| {
        let digits = digits(one.value);
        format!("{} {:.digits$} {}", one.name, one.value, one.unit).trim_end().to_owned()
    };
    figures.iter().map(word).collect::<Vec<_>>().join("  ")
}

/// Three that count, as far as a measurement has them.
fn digits(value: f64) -> usize {
    match value.abs() {
        large if large >= 100.0 => 0,
        middle if middle >= 10.0 => 1,
        _ => 2,
    }
}

/// The first line of the kernel's report on its load.
pub(crate) fn load() -> Option<String> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    Some(text.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
}

pub(crate) fn heading(title: &str, load: Option<&str>) -> String {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "{title}: {processors} processors, load before it began {}\n\
         compare ratios, which were taken in the same minutes; times and rates are this machine's,\n\
         and a machine that is busy (a load near or above {processors}) has no good p99\n",
        load.unwrap_or("not known")
    )
}

/// Writes it down where that was asked for. A part that failed is a failure of all.
pub(crate) fn conclude(
    parts: &[Part],
    json_file: Option<&Path>,
    load: Option<&str>,
) -> Result<ExitCode> {
    if let Some(path) = json_file {
        fs::write(path, json(parts, load)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(if parts.iter().any(Part::is_failed) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn json(parts: &[Part], load: Option<&str>) -> Result<String> {
    let parts: Vec<Value> = parts.iter().map(Part::json).collect();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let all = json!({ "load_before": load, "processors": processors, "parts": parts });
    serde_json::to_string_pretty(&all).context("cannot write the result as JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_says_whether_it_was_held() {
        let mut part = Part::new("x", "a part");
        part.at_most("memory", 65.0, 64.0, "MiB");
        part.at_least("ratio", 0.51, 0.5, "x");
        let text = part.text();
        assert!(text.contains("MISSED  memory, at most 64 MiB: 65.0 MiB"), "{text}");
        assert!(text.contains("held    ratio, at least 0.5 x: 0.51 x"), "{text}");
        assert!(!part.is_failed());
    }

    #[test]
    fn what_was_not_measured_is_not_a_number() {
        let mut part = Part::new("x", "a part");
        part.missing("docker exec", "no engine");
        part.row("ours", vec![figure("p50", 1.234, "ms")]);
        assert!(part.text().contains("not measured: no engine"));
        let all: Value = serde_json::from_str(&json(&[part], None).unwrap()).unwrap();
        assert_eq!(all["parts"][0]["rows"][0]["not_measured"], "no engine");
        assert!((all["parts"][0]["rows"][1]["p50 ms"].as_f64().unwrap() - 1.234).abs() < 1e-9);
    }
}

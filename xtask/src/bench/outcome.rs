//! The result of one part of a benchmark: rows of figures and targets, as text and as JSON.

use std::fmt::Write;

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

/// On which side of a target a value must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    AtMost,
    AtLeast,
}

/// What a value must hold, and what it should come to some day.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    bound: Bound,
    limit: f64,
    aim: Option<f64>,
    unit: &'static str,
}

pub(crate) const fn at_most(limit: f64, unit: &'static str) -> Target {
    Target { bound: Bound::AtMost, limit, aim: None, unit }
}

pub(crate) const fn at_least(limit: f64, unit: &'static str) -> Target {
    Target { bound: Bound::AtLeast, limit, aim: None, unit }
}

impl Target {
    pub(crate) const fn aim(self, aim: f64) -> Self {
        Self { aim: Some(aim), ..self }
    }

    fn is_held_by(&self, value: f64) -> bool {
        match self.bound {
            Bound::AtMost => value <= self.limit,
            Bound::AtLeast => value >= self.limit,
        }
    }

    fn words(&self) -> [String; 2] {
        let sign = match self.bound {
            Bound::AtMost => "≤",
            Bound::AtLeast => "≥",
        };
        let aim = self.aim.map_or_else(|| "-".to_owned(), |aim| format!("{sign} {aim}"));
        [format!("{sign} {}", self.limit), aim]
    }
}

/// A value beside its target.
struct Compared {
    what: String,
    value: f64,
    target: Target,
}

pub(crate) struct Part {
    name: &'static str,
    title: String,
    rows: Vec<Row>,
    notes: Vec<String>,
    targets: Vec<Compared>,
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

    pub(crate) fn compare(&mut self, what: impl Into<String>, value: f64, target: Target) {
        self.targets.push(Compared { what: what.into(), value, target });
    }

    /// Where the value could be measured; a row says why it could not.
    pub(crate) fn compare_found(
        &mut self,
        what: impl Into<String>,
        value: Option<f64>,
        target: Target,
    ) {
        if let Some(value) = value {
            self.compare(what, value, target);
        }
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
        text.push_str(&compared_text(&self.targets));
        text
    }

    pub(crate) fn json(&self) -> Value {
        let row = |row: &Row| match &row.found {
            Ok(figures) => {
                let mut all = Map::from_iter([("what".to_owned(), json!(row.what))]);
                let named = |one: &Figure| (format!("{} {}", one.name, one.unit), json!(one.value));
                all.extend(figures.iter().map(named));
                Value::Object(all)
            }
            Err(why) => json!({ "what": row.what, "not_measured": why }),
        };
        let target = |one: &Compared| {
            let Target { limit, aim, unit, .. } = one.target;
            let held = one.target.is_held_by(one.value);
            json!({
                "what": one.what, "value": one.value, "unit": unit, "target": limit, "aim": aim,
                "held": held,
            })
        };
        json!({
            "part": self.name, "title": self.title, "failure": self.failure, "notes": self.notes,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "targets": self.targets.iter().map(target).collect::<Vec<_>>(),
        })
    }
}

/// A table, if there is a target.
fn compared_text(targets: &[Compared]) -> String {
    if targets.is_empty() {
        return String::new();
    }
    let width = targets.iter().map(|one| one.what.chars().count()).max().unwrap_or(0);
    let mut text = format!("  {:<7} {:<width$} {:>16} {:>8} {:>8}\n", "", "", "", "target", "aim");
    for one in targets {
        let word = if one.target.is_held_by(one.value) { "held" } else { "MISSED" };
        let value = format!("{:.*} {}", digits(one.value), one.value, one.target.unit);
        let [limit, aim] = one.target.words();
        let _ = writeln!(
            text,
            "  {word:<7} {:<width$} {:>16} {limit:>8} {aim:>8}",
            one.what,
            value.trim_end()
        );
    }
    text
}

fn words(figures: &[Figure]) -> String {
    let word = |one: &Figure| {
        // What has no unit is a count.
        let digits = if one.unit.is_empty() { 0 } else { digits(one.value) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_says_whether_it_was_held() {
        let mut part = Part::new("x", "a part");
        part.compare("memory", 65.0, at_most(64.0, "MiB"));
        part.compare("ratio", 0.51, at_least(0.5, "x").aim(0.8));
        part.compare_found("docker", None, at_least(0.5, "x"));
        let text = part.text();
        let line = |word: &str| {
            let found = text.lines().find(|line| line.contains(word)).unwrap_or_default();
            found.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("memory"), "MISSED memory 65.0 MiB ≤ 64 -");
        assert_eq!(line("ratio"), "held ratio 0.51 x ≥ 0.5 ≥ 0.8");
        assert!(!text.contains("docker"), "{text}");
        assert_eq!(part.json()["targets"][1]["aim"], 0.8);
        assert!(!part.is_failed());
    }

    #[test]
    fn what_was_not_measured_is_not_a_number() {
        let mut part = Part::new("x", "a part");
        part.missing("docker exec", "no engine");
        part.row("ours", vec![figure("p50", 1.234, "ms")]);
        assert!(part.text().contains("not measured: no engine"));
        let part = part.json();
        assert_eq!(part["rows"][0]["not_measured"], "no engine");
        assert!((part["rows"][1]["p50 ms"].as_f64().unwrap() - 1.234).abs() < 1e-9);
    }
}

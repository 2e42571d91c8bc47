//! How fast agents' output becomes events, beside a parser that discards its result.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use belljar::agent;
use belljar::spec::manifest::AgentKind;
use serde_json::{Value, json};

use super::LoopSizes;
use crate::bench::outcome::{Part, Target, at_least, figure};
use crate::bench::rounds::Times;
use crate::command;
use crate::scratch::Scratch;

/// Of the same bytes into values and nothing more.
const TO_VALUES: Target = at_least(0.5, "x");
const A_LONG_TEXT: usize = 16 << 10;
const VERSION_LIMIT: Duration = Duration::from_secs(10);

macro_rules! fixture {
    ($name:literal) => {
        include_bytes!(concat!("../../../../crates/belljar-run/src/agent/fixtures/", $name))
    };
}

/// One format's output, as long as it is measured.
struct OutputSample {
    name: &'static str,
    kind: AgentKind,
    bytes: Vec<u8>,
    lines: u64,
}

impl OutputSample {
    fn new(name: &'static str, kind: AgentKind, recorded: &[u8], length: usize) -> Self {
        let bytes = recorded.repeat(length.div_ceil(recorded.len()).max(1));
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        Self { name, kind, bytes, lines }
    }
}

pub(super) fn measure(sizes: LoopSizes) -> Result<Part> {
    let mib = sizes.output >> 20;
    let mut part = Part::new("parsing", format!("{mib} MiB of agents' output, as events"));
    let jq = command::succeeds(Command::new("jq").arg("--version"), VERSION_LIMIT);
    if !jq {
        eprintln!("jq is not here, and not measured");
        part.missing("jq -c .type", "jq is not here");
    }
    let scratch = Scratch::new("bench-parsing")?;
    for sample in samples(sizes.output) {
        let file = scratch.path().join("output");
        File::create(&file)
            .and_then(|mut file| file.write_all(&sample.bytes))
            .with_context(|| format!("cannot write {}", file.display()))?;
        let mut times: [Vec<Duration>; 3] = Default::default();
        for reading in 0..=sizes.readings {
            let took = [
                Some(as_news(&sample)?),
                Some(as_values(&sample)?),
                if jq { Some(by_jq(&sample, &file)?) } else { None },
            ];
            if reading > 0 {
                times.iter_mut().zip(took).for_each(|(all, took)| all.extend(took));
            }
        }
        let [events, values, jq] = times.map(Times::new);
        let rate = |times: &Times| sample.bytes.len() as f64 / 1e3 / times.percentile(50);
        let row = |times: &Times| vec![figure("p50", rate(times), "MB/s")];
        let mut ours = row(&events);
        let lines = sample.lines as f64 / events.percentile(50);
        ours.push(figure("", lines, "thousand lines/s"));
        part.row(sample.name, ours);
        part.row("  serde_json, into values", row(&values));
        if !jq.percentile(50).is_nan() {
            part.row("  jq -c .type", row(&jq));
        }
        let what = format!("{} to serde_json's values", sample.name);
        part.compare(what, rate(&events) / rate(&values), TO_VALUES);
    }
    Ok(part)
}

fn samples(length: usize) -> Vec<OutputSample> {
    let result = json!({ "type": "tool_result", "tool_use_id": "toolu_1", "is_error": false,
        "content": "a line that a tool printed\n".repeat(A_LONG_TEXT / 27) });
    let long = json!({ "type": "user", "message": { "role": "user", "content": [result] },
        "parent_tool_use_id": null });
    let long = format!("{long}\n");
    vec![
        OutputSample::new("claude", AgentKind::Claude, fixture!("claude.jsonl"), length),
        OutputSample::new("codex", AgentKind::Codex, fixture!("codex.jsonl"), length),
        OutputSample::new("gemini", AgentKind::Gemini, fixture!("gemini.jsonl"), length),
        OutputSample::new("claude, lines of 16 KiB", AgentKind::Claude, long.as_bytes(), length),
    ]
}

fn as_news(sample: &OutputSample) -> Result<Duration> {
    let begun = Instant::now();
    let found = agent::count_output(sample.kind, &sample.bytes);
    let took = begun.elapsed();
    ensure!(
        found.lines == sample.lines && found.unparsed == 0 && found.events > 0,
        "{}: {found:?} of {} lines",
        sample.name,
        sample.lines
    );
    Ok(took)
}

fn as_values(sample: &OutputSample) -> Result<Duration> {
    let begun = Instant::now();
    let mut objects = 0;
    for line in sample.bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let value: Value = serde_json::from_slice(line).context("a line that is no JSON")?;
        objects += u64::from(value.is_object());
    }
    let took = begun.elapsed();
    ensure!(objects == sample.lines, "{}: {objects} objects", sample.name);
    Ok(took)
}

fn by_jq(sample: &OutputSample, file: &Path) -> Result<Duration> {
    let input = File::open(file).with_context(|| format!("cannot open {}", file.display()))?;
    let begun = Instant::now();
    let output = Command::new("jq")
        .args(["-c", ".type"])
        .stdin(input)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start jq")?;
    let took = begun.elapsed();
    let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count() as u64;
    ensure!(output.status.success() && lines == sample.lines, "jq found {lines} lines");
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_reads_every_line_of_every_format() {
        for sample in samples(100_000) {
            assert!(sample.bytes.len() >= 100_000, "{}", sample.name);
            as_news(&sample).unwrap();
            as_values(&sample).unwrap();
        }
    }

    #[test]
    fn a_line_that_makes_no_sense_is_an_error() {
        let sample = OutputSample::new("claude", AgentKind::Claude, b"{oops\n", 1);
        assert!(as_news(&sample).is_err());
        assert!(as_values(&sample).is_err());
    }
}

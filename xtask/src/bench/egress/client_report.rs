//! Reads the report of the measuring client: one line of JSON.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::command::line;

pub(super) struct ClientReport(BTreeMap<String, String>);

impl ClientReport {
    pub(super) fn number(&self, name: &str) -> Result<f64> {
        let text = self.0.get(name).with_context(|| format!("the client did not report {name}"))?;
        text.parse().with_context(|| format!("the client reported {text:?} as {name}"))
    }

    pub(super) fn milliseconds(&self, name: &str) -> Result<f64> {
        self.number(name).map(|nanoseconds| nanoseconds / 1e6)
    }
}

/// To its end.
pub(super) fn run(command: &mut Command) -> Result<ClientReport> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{}`", line(command)))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "`{}` ended with {}: {}",
        line(command),
        output.status,
        errors.trim()
    );
    parse(&String::from_utf8_lossy(&output.stdout))
        .with_context(|| format!("`{}` reported nothing: {}", line(command), errors.trim()))
}

pub(super) fn parse(output: &str) -> Option<ClientReport> {
    let object = output.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok())?;
    let facts = object["facts"].as_object()?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some(ClientReport(facts.iter().map(|(name, value)| (name.clone(), text(value))).collect()))
}

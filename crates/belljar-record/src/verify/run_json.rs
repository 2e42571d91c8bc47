//! Compares `run.json` with the log. What is in both must be the same.

use std::io::{self, Read};
use std::path::Path;

use belljar_spec::{Attestation, EventKind, WorkspaceReport};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::walk::Walk;
use super::{LogState, Verdict};
use crate::file;
use crate::recorder::{INCOMPLETE, large_as_text};
use crate::upgrade;

const NAME: &str = "run.json";
const MAX_SIZE: u64 = 16 << 20;

/// A run of a belljar that wrote no log.
pub(super) fn is_format_1(directory: &Path) -> bool {
    matches!(read(directory), Ok(Some(run)) if run.get("v").is_some_and(|v| v == 1))
}

pub(super) fn check(directory: &Path, walk: &Walk<'_>) -> Option<Verdict> {
    let mut run = match read(directory) {
        Ok(Some(run)) => run,
        Ok(None) => return changed("it is no JSON"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return if walk.life == LogState::Live { None } else { changed("it is not there") };
        }
        Err(error) => return Some(Verdict::unreadable(NAME, &error)),
    };
    // The signed start has the version. In a record of this version an old name is a change: its readers would find
    // nothing under it. In an old one both names occur, where another version wrote the end of a lost run.
    let is_old = upgrade::has_old_names(walk.start.as_ref()?);
    let present = |kind, data: &Value| {
        let mut data = data.clone();
        if is_old {
            upgrade::event(kind, &mut data);
        }
        data
    };
    if is_old {
        upgrade::run_json(&mut run);
    }
    let start = &present(EventKind::RunStart, walk.start.as_ref()?);
    if let Some(name) = top_difference(start, &run) {
        return changed(&name);
    }
    if attestation_differs(&run, walk) {
        return changed("attestation");
    }
    let stop = &present(EventKind::RunStop, walk.stop.as_ref()?);
    let workspace = walk.workspace.as_ref().map(|data| present(EventKind::WorkspaceChanged, data));
    let stopped = run.get("stopped_ms").filter(|stopped| !stopped.is_null());
    if stopped.is_some_and(|stopped| stopped.as_u64() != walk.stop_ms) {
        return changed("stopped_ms");
    }
    match run.get("outcome").filter(|outcome| !outcome.is_null()) {
        Some(outcome) => {
            let expected = expected_outcome(start, stop.get("outcome").unwrap_or(stop));
            let name = outcome_difference(expected, workspace.as_ref(), outcome)?;
            changed(&format!("outcome.{name}"))
        }
        // The end is written to the log first.
        None if walk.life == LogState::Live => None,
        None => Some(Verdict::Restored { at: walk.seq }),
    }
}

/// Only in the log: where it was written.
const OF_THE_LOG: [&str; 2] = ["boot", "build"];
/// Only in `run.json`: what was not known when the run began.
const OF_THE_END: [&str; 3] = ["attestation", "outcome", "stopped_ms"];

fn top_difference(start: &Value, run: &Value) -> Option<String> {
    let mut logged = start.clone();
    let mut written = large_as_text(run);
    for (value, others) in [(&mut logged, &OF_THE_LOG[..]), (&mut written, &OF_THE_END[..])] {
        if let Some(fields) = value.as_object_mut() {
            others.iter().for_each(|name| drop(fields.remove(*name)));
        }
    }
    difference(&logged, &written)
}

/// What was read back at the gate stands in the log too. A run that was lost or never let go may have it there only.
fn attestation_differs(run: &Value, walk: &Walk<'_>) -> bool {
    let written = run.get("attestation").filter(|found| !found.is_null()).map(large_as_text);
    let logged = walk.attestation.as_ref().map(large_as_text);
    let was_let_go = walk.stop.as_ref().is_some_and(|stop| {
        let reason = stop.get("reason").and_then(Value::as_str).unwrap_or_default();
        !matches!(reason, "lost" | "error" | "refused" | "tampered")
    });
    match (written, logged) {
        (Some(written), logged) => Some(written) != logged,
        // The end is written to the log first.
        (None, Some(_)) if walk.life == LogState::Live => false,
        // Where it cannot be read as one, reconcile could not write it either.
        (None, Some(logged)) => was_let_go && Attestation::deserialize(&logged).is_ok(),
        (None, None) => false,
    }
}

/// The end as `run.json` has it, from what the log has.
fn expected_outcome(start: &Value, stop: &Value) -> Value {
    let mut expected = stop.clone();
    if let Some(fields) = expected.as_object_mut() {
        if let Some(run) = fields.remove("run") {
            fields.insert("id".to_owned(), run);
        }
        fields.remove(INCOMPLETE);
        for name in ["backend", "posture"] {
            fields.insert(name.to_owned(), start.get(name).cloned().unwrap_or_default());
        }
    }
    expected
}

/// The end that was logged and the one in `run.json`. The log has the list of files in an event of its own, so that
/// its last line stays short, and numbers that JSON cannot hold exactly as text.
fn outcome_difference(
    mut logged: Value,
    workspace: Option<&Value>,
    written: &Value,
) -> Option<String> {
    let mut written = large_as_text(written);
    let brief = logged_workspace(&written);
    let last = logged.as_object_mut().and_then(|fields| fields.remove("workspace"));
    if last.filter(|last| !last.is_null()) != brief {
        return Some("workspace".to_owned());
    }
    let full = written.as_object_mut().and_then(|fields| fields.remove("workspace"));
    // Where the disk was full the event is missing, and the numbers above are all that is known.
    if full.zip(workspace).is_some_and(|(full, event)| full != *event) {
        return Some("workspace".to_owned());
    }
    if let Some(fields) = written.as_object_mut() {
        fields.remove("failure"); // why nothing was executed: with the exit code, which is compared
    }
    difference(&logged, &written)
}

/// The trees of `run.stop`, from those of `run.json`.
fn logged_workspace(written: &Value) -> Option<Value> {
    let report = WorkspaceReport::deserialize(written.get("workspace")?).ok()?;
    Some(large_as_text(&report.brief()))
}

/// The first name that differs, or that only one of them has. `null` is as good as nothing.
fn difference(logged: &Value, written: &Value) -> Option<String> {
    let (logged, written) = (large_as_text(logged), large_as_text(written));
    let (Some(logged), Some(written)) = (logged.as_object(), written.as_object()) else {
        return (logged != written).then(|| "it is no object".to_owned());
    };
    let value = |of: &Map<String, Value>, name: &str| {
        of.get(name).filter(|value| !value.is_null()).cloned()
    };
    let mut names = logged.keys().chain(written.keys());
    names.find(|name| value(logged, name) != value(written, name)).cloned()
}

fn changed(what: &str) -> Option<Verdict> {
    Some(Verdict::RecordChanged { what: what.to_owned() })
}

/// Nothing if it is no JSON.
fn read(directory: &Path) -> io::Result<Option<Value>> {
    let mut text = Vec::new();
    file::open(&directory.join(NAME))?.take(MAX_SIZE).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text).ok())
}

//! Reads records of version 2 with the names of this version.
//!
//! A log is chained, so its lines are never rewritten: names change when an event is read. [`RENAMES`] is the complete
//! list of names that differ.

use belljar_spec::EventKind;
use serde_json::Value;

/// The last version with the old names.
const OLD_VERSION: u64 = 2;

/// What a row of [`RENAMES`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// `run.start`, and the same fields at the top of `run.json`.
    Start,
    /// `run.stop`, and the `outcome` of `run.json`.
    Stop,
    /// The `outcome` of `run.json` only.
    Outcome,
    Planned,
    Agent,
    Checkpoint,
    Workspace,
}

/// The object at a path, its old field name, its new one. `*` is every element of a list or object.
type Rename = (Place, &'static str, &'static str, &'static str);

/// In this order: a path has the new names of the rows above it.
const RENAMES: &[Rename] = &[
    (Place::Start, "", "birth", "resumed_from"),
    (Place::Start, "resumed_from", "how", "kind"),
    (Place::Start, "resumed_from", "tally", "totals"),
    (Place::Start, "resumed_from.unchanged.sources.*", "born", "created"),
    (Place::Start, "", "not_taken", "skipped_backends"),
    (Place::Start, "sources.*", "born", "created"),
    (Place::Start, "posture.*", "is", "status"),
    (Place::Start, "spec.rootfs", "is", "type"),
    (Place::Start, "spec.egress.secrets.*.place", "is", "type"),
    (Place::Start, "spec.agent", "repeat", "loop"),
    (Place::Start, "spec.agent.loop.until", "is", "type"),
    (Place::Planned, "plan.posture.*", "is", "status"),
    (Place::Planned, "plan.mounts.*.what.source", "is", "type"),
    (Place::Agent, "", "is", "type"),
    (Place::Agent, "", "word", "code"),
    (Place::Checkpoint, "", "tally", "totals"),
    (Place::Checkpoint, "failure", "why", "kind"),
    (Place::Checkpoint, "failure", "word", "code"),
    (Place::Workspace, "", "later", "autorun"),
    (Place::Workspace, "", "later_more", "autorun_more"),
    (Place::Workspace, "", "new_control", "new_control_files"),
    (Place::Workspace, "", "new_control_more", "new_control_files_more"),
    (Place::Stop, "workspace", "later", "autorun"),
    (Place::Stop, "workspace", "later_more", "autorun_more"),
    (Place::Stop, "workspace", "new_control", "new_control_files"),
    (Place::Stop, "workspace", "new_control_more", "new_control_files_more"),
    (Place::Stop, "agent", "tally", "totals"),
    (Place::Stop, "agent", "own_iterations", "run_iterations"),
    (Place::Stop, "usage", "memory_peak", "memory_peak_bytes"),
    (Place::Stop, "usage", "written", "written_bytes"),
    (Place::Outcome, "posture.*", "is", "status"),
];

/// Whether records of this version have the old names.
pub(crate) fn is_old(version: u64) -> bool {
    version <= OLD_VERSION
}

/// Whether a record whose `run.start` this is has the old names.
pub(crate) fn has_old_names(start: &Value) -> bool {
    start.get("v").and_then(Value::as_u64).is_some_and(is_old)
}

/// Gives the data of one event of an old record its present names.
pub(crate) fn event(kind: EventKind, data: &mut Value) {
    let place = match kind {
        EventKind::RunStart => Place::Start,
        EventKind::RunStop => Place::Stop,
        EventKind::SandboxPlanned => Place::Planned,
        EventKind::Checkpoint => Place::Checkpoint,
        EventKind::WorkspaceChanged => Place::Workspace,
        EventKind::AgentMessage
        | EventKind::AgentToolCall
        | EventKind::AgentToolResult
        | EventKind::AgentUsage
        | EventKind::AgentSession
        | EventKind::AgentResult
        | EventKind::AgentError => Place::Agent,
        _ => return,
    };
    rename_at(&[place], data);
}

/// The same for a whole `run.json`.
pub(crate) fn run_json(run: &mut Value) {
    rename_at(&[Place::Start], run);
    if let Some(outcome) = run.get_mut("outcome") {
        rename_at(&[Place::Stop, Place::Outcome], outcome);
    }
}

fn rename_at(places: &[Place], value: &mut Value) {
    for (place, path, old, new) in RENAMES {
        if places.contains(place) {
            rename(value, path, old, new);
        }
    }
}

/// Leaves alone what has no such path or name. A value under the new name stays.
fn rename(value: &mut Value, path: &str, old: &str, new: &str) {
    if path.is_empty() {
        if let Some(fields) = value.as_object_mut()
            && !fields.contains_key(new)
            && let Some(moved) = fields.remove(old)
        {
            fields.insert(new.to_owned(), moved);
        }
        return;
    }
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    match value {
        Value::Array(items) if first == "*" => {
            items.iter_mut().for_each(|item| rename(item, rest, old, new));
        }
        Value::Object(fields) if first == "*" => {
            fields.values_mut().for_each(|item| rename(item, rest, old, new));
        }
        Value::Object(fields) => {
            if let Some(item) = fields.get_mut(first) {
                rename(item, rest, old, new);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_named_places_are_renamed() {
        let mut start = json!({
            "v": 2, "birth": { "how": "fork", "tally": { "iterations": 1 } },
            "spec": { "env": { "is": "a variable", "birth": "another" }, "rootfs": { "is": "host" } },
            "posture": { "fs.mounts": { "is": "enforced", "how": "by mounts" } },
        });
        assert!(has_old_names(&start));
        event(EventKind::RunStart, &mut start);
        let expected = json!({
            "v": 2, "resumed_from": { "kind": "fork", "totals": { "iterations": 1 } },
            "spec": { "env": { "is": "a variable", "birth": "another" }, "rootfs": { "type": "host" } },
            "posture": { "fs.mounts": { "status": "enforced", "how": "by mounts" } },
        });
        assert_eq!(start, expected);
    }

    #[test]
    fn what_has_the_new_name_stays() {
        let mut stop = json!({ "usage": { "written": 1, "written_bytes": 2 }, "agent": 7 });
        let before = stop.clone();
        event(EventKind::RunStop, &mut stop);
        assert_eq!(stop, before);
        assert!(!has_old_names(&json!({ "v": 3 })));
    }
}

//! Compares the ledger's row with the log. Listings are made from the row.

use belljar_spec::wire::control::StopReport;
use belljar_spec::{RunId, RunState};
use serde::Deserialize;

use super::Verdict;
use super::walk::Walk;
use crate::ledger::{LedgerRow, work_line};
use crate::run_json::RunRecord;

/// Whether the run's `home/` is there; nothing where removing it was cut short.
pub(super) type Sandbox = Option<crate::ledger::SandboxKept>;

pub(super) fn check(
    row: &LedgerRow,
    id: &RunId,
    walk: &Walk<'_>,
    sandbox: Sandbox,
) -> Option<Verdict> {
    // Signed data of another shape would be another version's, which is not ours to judge.
    let start = RunRecord::deserialize(walk.start.as_ref()?).ok()?;
    let stop = StopReport::deserialize(walk.stop.as_ref()?).ok()?;
    let workspace = start.spec.workspace.as_ref().map(|mount| &mount.source);
    let is_as_logged = [
        ("id", row.id == *id),
        ("name", row.name == start.spec.name),
        ("backend", row.backend == start.backend),
        ("state", row.state == RunState::Stopped),
        ("command", row.command == work_line(&start.spec)),
        ("workspace", row.workspace.as_ref() == workspace),
        ("created_ms", row.created_ms == id.unix_millis()),
        ("stopped_ms", row.stopped_ms == walk.stop_ms),
        ("reason", row.reason == Some(stop.reason)),
        ("exit", row.exit == Some(stop.exit)),
        ("usage", row.usage == stop.usage),
        ("sandbox", sandbox.is_none_or(|sandbox| sandbox == row.sandbox)),
    ];
    let (what, _) = is_as_logged.into_iter().find(|(_, same)| !same)?;
    Some(Verdict::LedgerChanged { what: what.to_owned() })
}

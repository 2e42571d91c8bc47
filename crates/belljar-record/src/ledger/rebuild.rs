//! Rebuilds the ledger from the run directories.

use std::io;
use std::path::PathBuf;

use belljar_spec::{RunState, StopReason};

use super::{Ledger, LedgerError, LedgerRow, RowOrigin};
use crate::home::Home;
use crate::store::{self, Summary, life};

/// What a rebuild did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuilt {
    /// Rows that were missing.
    pub added: usize,
    /// Where the damaged file was put, if it was one. The anchors in it are lost: a record that was cut
    /// before this cannot be distinguished from a whole one.
    pub damaged: Option<PathBuf>,
}

/// Adds a row for each run directory that has none, and is not live. Rows that are there stay as they are.
pub fn rebuild(home: &Home) -> Result<Rebuilt, LedgerError> {
    let (mut ledger, damaged) = match sound(home) {
        Ok(ledger) => (ledger, None),
        Err(LedgerError::Corrupt { .. }) => {
            let moved = set_aside(home);
            let damaged =
                moved.map_err(|error| LedgerError::Open { path: home.ledger_path(), error })?;
            (Ledger::open(home)?, Some(damaged))
        }
        Err(error) => return Err(error),
    };
    let known = ledger.ids()?;
    let directories = store::run_directories(home)
        .map_err(|error| LedgerError::Open { path: home.runs(), error })?;
    let missing = directories.into_iter().filter(|id| known.binary_search(id).is_err());
    let rows: Vec<LedgerRow> = missing
        .filter(|id| !matches!(life::of(home, id), life::Life::Live(_)))
        .filter_map(|id| {
            let summary = Summary::read(home, &id).ok()?;
            Some(row(home, &summary))
        })
        .collect();
    let added = ledger.add_missing(&rows)?;
    Ok(Rebuilt { added, damaged })
}

/// A ledger whose every page can be read, and every row.
fn sound(home: &Home) -> Result<Ledger, LedgerError> {
    let ledger = Ledger::open(home)?;
    let found: String = ledger.read(|connection| {
        connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
    })?;
    if found != "ok" {
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
        let error = rusqlite::Error::SqliteFailure(code, Some(found));
        return Err(ledger.failed(error));
    }
    ledger.list(&super::Filter::default())?;
    Ok(ledger)
}

/// Kept for inspection; only the last one.
fn set_aside(home: &Home) -> io::Result<PathBuf> {
    let _lock = home.lock()?;
    let path = home.ledger_path();
    let beside = |suffix: &str| {
        let mut name = path.clone().into_os_string();
        name.push(suffix);
        PathBuf::from(name)
    };
    let damaged = beside(".damaged");
    for suffix in ["-wal", "-shm"] {
        gone_is_fine(std::fs::remove_file(beside(suffix)))?;
    }
    gone_is_fine(std::fs::rename(&path, &damaged))?;
    Ok(damaged)
}

fn gone_is_fine(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn row(home: &Home, summary: &Summary) -> LedgerRow {
    let outcome = summary.outcome.as_ref();
    LedgerRow {
        id: summary.id,
        name: summary.name.clone(),
        backend: summary.backend,
        // No process holds its lock: it is over, whatever was written last.
        state: RunState::Stopped,
        command: summary.command.clone(),
        workspace: summary.workspace.clone(),
        created_ms: summary.id.unix_millis(),
        stopped_ms: outcome.and(summary.stopped_ms),
        reason: Some(outcome.map_or(StopReason::Lost, |outcome| outcome.reason)),
        exit: outcome.map(|outcome| outcome.exit),
        usage: outcome.map(|outcome| outcome.usage).unwrap_or_default(),
        sandbox: store::kept(home, &summary.id),
        anchor: None,
        origin: RowOrigin::Rebuilt,
    }
}

//! The summary of one run that listings and lookups return.

use belljar_spec::{BackendName, Exit, OsText, RunId, RunState, StopReason, Usage};
use serde::Serialize;

use super::summary::End;
use super::{Life, Summary};
use crate::home::Home;
use crate::index;
use crate::ledger::{LedgerRow, SandboxKept};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunInfo {
    pub id: RunId,
    pub name: Option<String>,
    pub state: RunState,
    /// Not known of a run that has just begun, or whose record cannot be read.
    pub backend: Option<BackendName>,
    /// Escaped, and cut where it is long.
    pub command: String,
    pub workspace: Option<OsText>,
    pub created_ms: u64,
    pub stopped_ms: Option<u64>,
    pub reason: Option<StopReason>,
    pub exit: Option<Exit>,
    pub usage: Usage,
    pub sandbox: SandboxKept,
    #[serde(skip)]
    pub life: Life,
}

impl RunInfo {
    pub fn is_live(&self) -> bool {
        matches!(self.life, Life::Live(_))
    }

    pub(super) fn from_row(home: &Home, row: LedgerRow, life: Life) -> Self {
        // Its supervisor was killed after the row was written: the record may know more.
        if row.state.is_live() && !matches!(life, Life::Live(_)) {
            let ended = Summary::read(home, &row.id).ok().filter(|record| record.outcome.is_some());
            if let Some(summary) = ended {
                return Self::from_summary(home, summary, life);
            }
        }
        let info = Self {
            id: row.id,
            name: row.name,
            state: row.state,
            backend: Some(row.backend),
            command: row.command,
            workspace: row.workspace,
            created_ms: row.created_ms,
            stopped_ms: row.stopped_ms,
            reason: row.reason,
            exit: row.exit,
            usage: row.usage,
            sandbox: row.sandbox,
            life,
        };
        info.settled()
    }

    /// From the run's own record. `None` if there is neither a directory nor a liveness lock.
    pub(super) fn from_directory(home: &Home, id: &RunId, life: Life) -> Option<Self> {
        let unreadable = match Summary::read(home, id) {
            Ok(summary) => return Some(Self::from_summary(home, summary, life)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => "(no record)",
            Err(_) => "(its record cannot be read)",
        };
        let is_live = matches!(life, Life::Live(_));
        if !is_live && std::fs::symlink_metadata(home.run_dir(id)).is_err() {
            return None;
        }
        let info = Self {
            id: *id,
            name: None,
            state: RunState::Stopped,
            backend: None,
            // A live one has not come to writing its record yet.
            command: if is_live { String::new() } else { unreadable.to_owned() },
            workspace: None,
            created_ms: id.unix_millis(),
            stopped_ms: None,
            reason: None,
            exit: None,
            usage: Usage::default(),
            sandbox: kept(home, id),
            life,
        };
        Some(info.settled())
    }

    pub(super) fn from_summary(home: &Home, mut summary: Summary, life: Life) -> Self {
        if summary.outcome.is_none() && life == Life::Unfinished {
            // Its end is in the log, and could not be written anywhere else yet.
            summary.outcome = index::end_in_log(home, &summary.id).map(End::from);
        }
        let outcome = summary.outcome.as_ref();
        let info = Self {
            id: summary.id,
            name: summary.name,
            state: RunState::Stopped,
            backend: Some(summary.backend),
            command: summary.command,
            workspace: summary.workspace,
            created_ms: summary.id.unix_millis(),
            stopped_ms: outcome.and(summary.stopped_ms),
            reason: outcome.map(|outcome| outcome.reason),
            exit: outcome.map(|outcome| outcome.exit),
            usage: outcome.map(|outcome| outcome.usage).unwrap_or_default(),
            sandbox: kept(home, &summary.id),
            life,
        };
        info.settled()
    }

    /// The liveness lock has the last word on the state.
    fn settled(mut self) -> Self {
        match self.life {
            Life::Live(state) => {
                self.state = state;
                (self.reason, self.exit, self.stopped_ms) = (None, None, None);
            }
            Life::Unfinished | Life::Over => {
                self.state = RunState::Stopped;
                self.reason = self.reason.or(Some(StopReason::Lost)); // as reconcile will write it
            }
        }
        self
    }
}

pub(crate) fn kept(home: &Home, id: &RunId) -> SandboxKept {
    match std::fs::symlink_metadata(home.run_dir(id).join("home")) {
        Ok(_) => SandboxKept::Yes,
        Err(_) => SandboxKept::No,
    }
}

//! Writes what listings are made from, `run.json` and the ledger's row, for a run whose log has its end.
//!
//! Nobody waits for it when a run ends: the log on disk is the record, and both are made from it. A process that dies
//! before it has written them leaves that to the next one that looks at the run ([`crate::store::life`]).

use std::path::PathBuf;

use belljar_spec::wire::control::StopReport;
use belljar_spec::{Attestation, EventKind, RunId, WorkspaceReport};
use serde::Deserialize;

use crate::home::Home;
use crate::ledger::{Ledger, LedgerError, RowOrigin};
use crate::{
    Anchor, EventLog, EventReader, Head, HomeKey, KeyError, LogError, Outcome, Recovered,
    RunRecord, ballast,
};

#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    #[error("cannot write {}", .path.display())]
    RunJson {
        path: PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("run {run} has no end in its log, or one of another version")]
    NoEnd { run: RunId },
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// `run.json` and the ledger's row of a run that has stopped, not written yet.
#[derive(Debug)]
pub struct RunIndex {
    record: RunRecord,
    anchor: Option<Anchor>,
    origin: RowOrigin,
}

impl RunIndex {
    /// By the run's own supervisor.
    pub fn of_supervisor(record: RunRecord, anchor: Option<Anchor>) -> Self {
        Self { record, anchor, origin: RowOrigin::Supervisor }
    }

    /// From the log of a run whose supervisor is gone. `report` is the end that the log has, or was just given.
    pub fn of_log(
        home: &Home,
        mut record: RunRecord,
        mut report: StopReport,
        log: (&EventLog, &Recovered),
        origin: RowOrigin,
    ) -> Result<Self, LogError> {
        let (log, recovered) = log;
        let changed = recovered.workspace.as_ref().map(WorkspaceReport::deserialize);
        report.workspace = changed.and_then(Result::ok).or(report.workspace);
        let written = RunRecord::read(&home.run_dir(&record.id)).ok();
        // `run.json` may never have been written after the gate: the log has what was read back there.
        let attested = recovered.attestation.as_ref().map(Box::<Attestation>::deserialize);
        let before = written.as_ref().and_then(|record| record.attestation.clone());
        record.attestation = attested.and_then(Result::ok).or(before);
        // Where the end was there already, the log that was read again knows when that was.
        record.stopped_ms = recovered.stop_ms.or(Some(log.last_ms()));
        // The log decides; `run.json` alone knows why a command could not be executed.
        let failure = written.and_then(|record| record.outcome).and_then(|outcome| outcome.failure);
        let outcome = Outcome::from_report(report, record.backend, record.posture.clone());
        record.outcome = Some(Outcome { failure, ..outcome });
        let Head { seq, hash } = log.head();
        let anchor = Anchor { seq, hash, inode: log.inode()?, durable: Vec::new() };
        Ok(Self { record, anchor: Some(anchor), origin })
    }

    /// Where the disk is full, the room that is kept for it is used.
    pub fn write(&self, home: &Home) -> Result<(), IndexError> {
        let directory = home.run_dir(&self.record.id);
        ballast::or_give_up(home, || self.record.write(&directory), ballast::is_no_space)
            .map_err(|error| IndexError::RunJson { path: RunRecord::path(&directory), error })?;
        let mut row = self.record.ledger_row(self.anchor.clone());
        row.origin = self.origin;
        Ok(Ledger::write(home, |ledger| ledger.upsert(&row))?)
    }
}

/// Finishes a run that has stopped, after the process that should have done it died. The caller holds its liveness lock.
/// The log is not changed: where it does not end with `run.stop`, it is not for a look to repair.
pub(crate) fn write_from_log(home: &Home, id: &RunId) -> Result<(), IndexError> {
    let key = HomeKey::load(home.path())?.for_run(id);
    let (log, recovered) = EventLog::reopen_ended(&home.run_dir(id), key)?;
    let start = recovered.start_data.as_ref().map(RunRecord::deserialize);
    let stop = recovered.stop_data.as_ref().map(StopReport::deserialize);
    let (Some(Ok(mut record)), Some(Ok(report))) = (start, stop) else {
        return Err(IndexError::NoEnd { run: *id });
    };
    record.id = *id; // whatever is written in it, this is the run that is finished
    let index = RunIndex::of_log(home, record, report, (&log, &recovered), RowOrigin::Supervisor)?;
    index.write(home)
}

/// How a run ended, from its log, which is only read. `None`: it has no end.
pub(crate) fn end_in_log(home: &Home, id: &RunId) -> Option<StopReport> {
    let mut events = EventReader::open(&home.run_dir(id)).ok()?;
    let mut end = None;
    while let Ok(Some(event)) = events.next() {
        end = (event.kind == EventKind::RunStop).then_some(event.data);
    }
    StopReport::deserialize(end?).ok()
}

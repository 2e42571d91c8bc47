//! Finishes what dead supervisors left: compares the records with the liveness locks.
//!
//! Looks at `live/` only: an entry whose lock is free has lost its supervisor. Whatever a run leaves
//! behind is found by the run's own id, never by a process number, so a stranger is never touched.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use belljar_backend::{DestroyError, SandboxId, destroy_leftovers};
use belljar_bind::placeholder::{self, PlaceholderError};
use belljar_spec::wire::control::StopReport;
use belljar_spec::{EXIT_NOT_STARTED, EventKind, Exit, ExitSource, RunId, StopReason, Usage};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::log::boot_id;
use belljar_record::home::Home;
use belljar_record::ledger::RowOrigin;
use belljar_record::run_json::RunRecord;
use belljar_record::store::life;
use belljar_record::store::trash::{self, TrashError};
use belljar_record::{
    EVENTS, EventLog, HomeKey, IndexError, KeyError, LogError, Recovered, RunIndex,
};
use belljar_tree::{RemoveAllError, remove_all};
use belljar_workspace::Recovery;

#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    #[error("cannot read {}", .path.display())]
    Read {
        path: PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("cannot remove {}", .path.display())]
    Remove {
        path: PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("something of run {run} is still there; the next command tries again")]
    Destroy {
        run: RunId,
        #[source]
        error: DestroyError,
    },
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Tree(#[from] RemoveAllError),
    #[error(transparent)]
    Trash(#[from] TrashError),
    #[error(transparent)]
    Placeholder(#[from] PlaceholderError),
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reconciled {
    /// Their supervisor was gone; their record has its end now.
    pub lost: Vec<RunId>,
    /// They had their end, and something was still missing after it.
    pub finished: Vec<RunId>,
    /// Never accepted: nothing of them stays.
    pub discarded: Vec<RunId>,
    /// Their logs were not written with this home's key, or were changed; they were left as they are.
    pub unreadable: Vec<RunId>,
    /// Taking over their changes was cut short; the trees are as they were before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub undone: Vec<RunId>,
    /// What could not be finished now.
    pub left: Vec<String>,
}

impl Reconciled {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Idempotent; never touches a live run; cheap when there is nothing to do.
pub fn reconcile(home: &Home) -> Result<Reconciled, ReconcileError> {
    let mut done = Reconciled::default();
    // First: the changes of a run are read from its trees, which must not be half applied.
    for recovered in belljar_workspace::recover_all(home) {
        match recovered {
            Ok((run, Recovery::Undone)) => done.undone.push(run),
            Ok((_, Recovery::Nothing | Recovery::Finished)) => {}
            Err(error) => done.left.push(belljar_spec::text::error_chain(&error)),
        }
    }
    for (id, path) in entries(home)? {
        let taken = match take_over(&path) {
            Ok(None) => continue,
            // Listings show its end: the log and the row stay as they are.
            Ok(Some(lock)) if life::is_closed(&lock) => Ok((FinishedRun::WasOver, lock)),
            Ok(Some(lock)) => finish(home, &id).map(|finished| (finished, lock)),
            Err(error) => Err(error),
        };
        let (finished, _lock) = match taken {
            Ok(taken) => taken,
            // One run that cannot be finished does not keep the others from it.
            Err(error) => {
                let left = belljar_spec::text::error_chain(&error);
                tracing::debug!(run = %id, left, "run not finished");
                done.left.push(left);
                continue;
            }
        };
        tracing::debug!(run = %id, ?finished, "run without a supervisor");
        match finished {
            FinishedRun::Lost => done.lost.push(id),
            FinishedRun::WasOver => done.finished.push(id),
            FinishedRun::NeverAccepted => done.discarded.push(id),
            FinishedRun::Unreadable => done.unreadable.push(id),
        }
        remove(&home.socket_path(&id))?;
        remove(&path)?;
    }
    release_the_dead(home, &mut done)?;
    trash::empty(home)?;
    belljar_record::writable_trees::remove_draft(home)
        .map_err(|error| ReconcileError::Remove { path: home.path().to_owned(), error })?;
    // Of homes that were removed while a run lived: nothing else would ever find them.
    belljar_backend::remove_orphans();
    Ok(done)
}

/// What runs of earlier versions left in their trees to hold the place of files.
fn release_the_dead(home: &Home, done: &mut Reconciled) -> Result<(), ReconcileError> {
    let list = home.placeholders();
    let runs = placeholder::runs(&list)
        .map_err(|error| ReconcileError::Read { path: list.clone(), error })?;
    for run in runs.iter().filter(|run| !home.live().join(run).exists()) {
        if let Err(error) = placeholder::release(&list, run) {
            done.left.push(belljar_spec::text::error_chain(&error));
        }
    }
    Ok(())
}

/// A run without a supervisor, locked so that no other process finishes it.
pub(crate) struct Unfinished {
    _lock: File,
    sign: PathBuf,
    socket: PathBuf,
}

impl Unfinished {
    /// Nothing of it is left but its directory, which goes its own way.
    pub(crate) fn forget(self) -> std::io::Result<()> {
        for path in [&self.socket, &self.sign] {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Takes over a run whose supervisor is gone, and removes what it left on the host. `None`: another process has it.
pub(crate) fn take(home: &Home, id: &RunId) -> Result<Option<Unfinished>, ReconcileError> {
    let sign = home.live_path(id);
    let Some(lock) = take_over(&sign)? else { return Ok(None) };
    destroy(&home.run_dir(id), id)?;
    Ok(Some(Unfinished { _lock: lock, sign, socket: home.socket_path(id) }))
}

fn entries(home: &Home) -> Result<Vec<(RunId, PathBuf)>, ReconcileError> {
    let live = home.live();
    let failed = |error| ReconcileError::Read { path: live.clone(), error };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&live).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // Sockets have other names.
        let id = entry.file_name().to_str().and_then(|name| name.parse().ok());
        found.extend(id.map(|id| (id, entry.path())));
    }
    Ok(found)
}

/// The lock, if its supervisor is gone. Two commands that come here at once do not do it twice.
fn take_over(path: &Path) -> Result<Option<File>, ReconcileError> {
    use std::os::unix::fs::MetadataExt;
    let failed = |error| ReconcileError::Read { path: path.to_owned(), error };
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed)?,
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(failed(errno.into())),
    }
    // Whoever held it before us may have finished and removed it.
    let here = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        here => here.map_err(failed)?,
    };
    let ours = file.metadata().map_err(failed)?;
    Ok(((here.dev(), here.ino()) == (ours.dev(), ours.ino())).then_some(file))
}

fn remove(path: &Path) -> Result<(), ReconcileError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(ReconcileError::Remove { path: path.to_owned(), error })
        }
        _ => Ok(()),
    }
}

#[derive(Debug)]
enum FinishedRun {
    Lost,
    WasOver,
    NeverAccepted,
    /// Its log was not written with this home's key, or was changed: it stays as it is, for `verify` to tell.
    Unreadable,
}

fn finish(home: &Home, id: &RunId) -> Result<FinishedRun, ReconcileError> {
    let directory = home.run_dir(id);
    destroy(&directory, id)?;
    placeholder::release(&home.placeholders(), id.as_str())?;
    // Empty: the supervisor died before it had written anything.
    let log = match std::fs::symlink_metadata(directory.join(EVENTS)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Ok(found) if found.len() == 0 => None,
        // Without its key nothing can be said about the log: that waits until the key is back.
        _ => match EventLog::reopen(&directory, HomeKey::load(home.path())?.for_run(id)) {
            Err(LogError::NotOurs { .. }) => return Ok(FinishedRun::Unreadable),
            log => Some(log?),
        },
    };
    let Some((mut log, recovered)) = log.filter(|(_, recovered)| recovered.has_start) else {
        remove_all(&directory)?;
        return Ok(FinishedRun::NeverAccepted);
    };
    let record = recovered.start_data.as_ref().and_then(|data| RunRecord::deserialize(data).ok());
    let mut record = match record.map_or_else(|| RunRecord::read(&directory), Ok) {
        Ok(record) => record,
        Err(error) => return Err(ReconcileError::Read { path: directory, error }),
    };
    record.id = *id; // whatever is written in it, this is the run that is closed
    let (report, finished) = match recovered.stop_data.as_ref().map(StopReport::deserialize) {
        Some(Ok(report)) => (report, FinishedRun::WasOver),
        // Of another version; there is never a second one.
        Some(Err(_)) => (lost(id, &recovered), FinishedRun::WasOver),
        None => {
            let mut report = lost(id, &recovered);
            // What cannot be read cannot be reviewed, and `diff` says why.
            let layered = belljar_workspace::read_layers(&directory).unwrap_or_default();
            report.workspace = belljar_workspace::report_of_layers(&directory, id, &layered);
            let mut last = report.clone();
            last.workspace = last.workspace.map(|workspace| workspace.brief());
            log.append(EventKind::RunStop, &last).and_then(|()| log.sync()).or_else(|error| {
                if error.is_no_space() {
                    log.append_last(EventKind::RunStop, &last)
                } else {
                    Err(error)
                }
            })?;
            (report, FinishedRun::Lost)
        }
    };
    let origin = match report.reason {
        StopReason::Lost => RowOrigin::Reconcile,
        _ => RowOrigin::Supervisor,
    };
    RunIndex::of_log(home, record, report, (&log, &recovered), origin)?.write(home)?;
    Ok(finished)
}

/// Control groups and the like, whatever the record says about the run.
fn destroy(directory: &Path, id: &RunId) -> Result<(), ReconcileError> {
    let sandbox = SandboxId { run: id.to_string(), directory: directory.to_owned() };
    let failed = |error| ReconcileError::Destroy { run: *id, error };
    destroy_leftovers(&sandbox).map_err(failed)
}

fn lost(id: &RunId, recovered: &Recovered) -> StopReport {
    let start = recovered.start_data.as_ref();
    let boot = start.and_then(|data| data.get("boot")).and_then(|boot| boot.as_str());
    let mut detail = match boot {
        Some(boot) if boot != boot_id() => "the machine was started again meanwhile".to_owned(),
        _ => "its supervisor died".to_owned(),
    };
    if recovered.cut_bytes > 0 {
        detail.push_str(&format!("; {} bytes of its log were no events", recovered.cut_bytes));
    }
    StopReport {
        run: *id,
        reason: StopReason::Lost,
        exit: Exit::of_belljar(EXIT_NOT_STARTED, ExitSource::Sandbox),
        detail: Some(detail),
        usage: Usage::default(),
        leak: None,
        workspace: None,
        agent: None,
    }
}

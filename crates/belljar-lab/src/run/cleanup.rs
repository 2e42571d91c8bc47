//! What a launcher that was killed leaves behind: an entry in `live/`, a record without an end, empty
//! control groups. Everything else went with it.

use std::fs::OpenOptions;
use std::path::Path;

use belljar_backend::{SandboxId, by_name};
use belljar_spec::{BackendName, Exit, ExitSource, RunId, StopReason, Usage};
use rustix::fs::{FlockOperation, flock};

use super::record::RunRecord;
use super::{LaunchError, Outcome};
use crate::block_on;
use crate::home::Home;

/// Finishes the runs whose supervisor is gone. Idempotent; never touches a live one. Returns how many
/// there were.
pub fn remove_leftovers(home: &Home) -> Result<usize, LaunchError> {
    let live = home.live();
    let entries = match std::fs::read_dir(&live) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        entries => entries.map_err(|error| LaunchError::Record { path: live.clone(), error })?,
    };
    let mut finished = 0;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse::<RunId>().ok()) else {
            continue;
        };
        let path = entry.path();
        let Ok(file) = OpenOptions::new().write(true).open(&path) else {
            continue;
        };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue; // its supervisor lives
        }
        finish(home, &id)?;
        std::fs::remove_file(&path).map_err(|error| LaunchError::Record { path, error })?;
        finished += 1;
    }
    Ok(finished)
}

fn finish(home: &Home, id: &RunId) -> Result<(), LaunchError> {
    let directory = home.run_dir(id);
    let record = RunRecord::read(&directory).ok();
    let backend = record.as_ref().map_or(BackendName::Jail, |record| record.backend);
    if let Ok(backend) = by_name(backend) {
        let id = SandboxId(id.to_string());
        // A group that is still busy is tried again by the next command: the entry stays.
        block_on(backend.destroy(&id))
            .map_err(|error| LaunchError::Start(belljar_backend::StartError(error.0)))?;
    }
    match record {
        Some(record) if record.outcome.is_none() => close_record(&directory, record, id),
        Some(_) => Ok(()),
        // Killed before anything was decided: there is nothing to keep.
        None => match std::fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(LaunchError::Record { path: directory, error })
            }
            _ => Ok(()),
        },
    }
}

fn close_record(directory: &Path, mut record: RunRecord, id: &RunId) -> Result<(), LaunchError> {
    record.outcome = Some(Outcome {
        id: *id,
        backend: record.backend,
        reason: StopReason::Lost,
        exit: Exit::of_belljar(belljar_spec::EXIT_NOT_STARTED, ExitSource::Sandbox),
        failure: None,
        posture: record.posture.clone(),
        usage: Usage::default(),
        stdout: Default::default(),
        stderr: Default::default(),
        attestation: None,
        leak: None,
    });
    record.write(directory)
}

//! Reads a run's `run.json`.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use belljar::home::Home;
use belljar::record::{Outcome, run_json};
use belljar::spec::{PlannedImage, Posture, RunId, RunSpec, SkippedBackend};
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;

/// Far more than arguments, variables and an attestation need.
const MAX_BYTES: u64 = 64 << 20;

#[derive(Debug, thiserror::Error)]
#[error("cannot read the record {}: {error}; to check it: belljar verify {run}", .path.display())]
pub(super) struct RunFileError {
    path: PathBuf,
    run: RunId,
    error: io::Error,
}

/// The settings, the plan and the outcome of a run.
#[derive(Debug, Deserialize)]
pub(super) struct RunFile {
    pub(super) spec: RunSpec,
    pub(super) plan_hash: String,
    #[serde(default)]
    pub(super) image: Option<PlannedImage>,
    pub(super) posture: Posture,
    #[serde(default)]
    pub(super) skipped_backends: Vec<SkippedBackend>,
    #[serde(default)]
    pub(super) outcome: Option<Outcome>,
}

pub(super) fn read(home: &Home, run: &RunId) -> Result<RunFile, RunFileError> {
    let path = home.run_dir(run).join("run.json");
    let parsed = bytes(&path).and_then(|bytes| Ok(run_json::parse(&bytes)?));
    parsed.map_err(|error| RunFileError { path, run: *run, error })
}

pub(super) fn read_value(home: &Home, run: &RunId) -> Result<serde_json::Value, RunFileError> {
    let path = home.run_dir(run).join("run.json");
    let parsed = bytes(&path).and_then(|bytes| Ok(run_json::parse(&bytes)?));
    parsed.map_err(|error| RunFileError { path, run: *run, error })
}

fn bytes(path: &PathBuf) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

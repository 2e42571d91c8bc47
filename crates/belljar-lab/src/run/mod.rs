//! A run, from a decided specification to its outcome.

mod cleanup;
mod launch;
mod place;
mod record;
mod writable;

use std::os::fd::OwnedFd;

use belljar_backend::{BindError, DestroyError, PlanError, StartError, Unavailable};
use belljar_spec::{
    Attestation, BackendName, ExecFailure, Exit, OsText, Plan, Posture, RunId, StopReason, Unmet,
    Usage,
};
use serde::{Deserialize, Serialize};

pub use cleanup::remove_leftovers;
pub use launch::{Prepared, launch, prepare};

use crate::supervise::SuperviseError;

/// Where the command's streams go.
#[derive(Debug)]
pub enum Output {
    /// To descriptors of the caller, byte by byte as they come.
    Passed { stdout: OwnedFd, stderr: OwnedFd },
    /// Kept, as far as `limits.output` goes.
    Captured,
}

/// The caller's side of a run's streams.
#[derive(Debug)]
pub struct Streams {
    /// Read only if the spec passes standard input.
    pub stdin: Option<OwnedFd>,
    pub output: Output,
    /// The caller's terminal, where the command gets one of its own.
    pub terminal: Option<OwnedFd>,
}

/// Told when the sandbox has been attested and the command is let go.
pub trait Observer {
    fn started(&mut self, run: &RunId, backend: BackendName, posture: &Posture);
}

/// Bytes of one stream: the first and the last of them if there were too many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    pub head: Vec<u8>,
    pub tail: Vec<u8>,
    /// Bytes between them that were not kept.
    pub lost: u64,
}

/// How a run ended, and what is known about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub id: RunId,
    pub backend: BackendName,
    pub reason: StopReason,
    pub exit: Exit,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failure: Option<ExecFailure>,
    pub posture: Posture,
    pub usage: Usage,
    #[serde(skip)]
    pub stdout: Captured,
    #[serde(skip)]
    pub stderr: Captured,
    #[serde(skip)]
    pub attestation: Option<Box<Attestation>>,
    /// Something of the run that could not be taken away.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub leak: Option<String>,
}

/// Why nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("the {backend} backend cannot be used here")]
    Unavailable {
        backend: BackendName,
        #[source]
        reason: Unavailable,
    },
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("{} required {} not hold on the {backend} backend", missing.len(), if missing.len() == 1 { "clause does" } else { "clauses do" })]
    NotGuaranteed { backend: BackendName, missing: Vec<Unmet> },
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("start failed, and so did the cleanup: {cleanup}")]
    AndCleanup {
        #[source]
        start: Box<LaunchError>,
        cleanup: DestroyError,
    },
    #[error("the sandbox is not what was planned, so nothing was started")]
    NotAsPlanned { differences: Vec<String> },
    #[error(transparent)]
    Supervise(#[from] SuperviseError),
    #[error("cannot write the record {}", .path.display())]
    Record {
        path: std::path::PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("run {run} is over, and its end could not be recorded")]
    EndNotRecorded {
        run: RunId,
        #[source]
        error: Box<LaunchError>,
    },
    #[error("there is no command to run")]
    NoCommand,
    #[error("{option} needs {needs}")]
    Conflict { option: String, needs: String },
}

/// A plan and what it means, without having started anything.
#[derive(Clone, Debug, Serialize)]
pub struct DryRun {
    pub spec_hash: String,
    pub plan_hash: String,
    pub plan: Plan,
    pub missing: Vec<Unmet>,
}

/// Shown in messages: the command, quoted where a shell would need it.
pub fn shown(command: &[OsText]) -> String {
    let words = command.iter().map(|word| {
        let text = word.to_string();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:@%+,".contains(c);
        if !text.is_empty() && text.chars().all(plain) { text } else { format!("'{text}'") }
    });
    words.collect::<Vec<_>>().join(" ")
}

//! `run.json`: what was decided, what holds, how it ended. Written whole or not at all.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use belljar_spec::{
    Attestation, BackendName, MountMode, PlannedImage, Posture, ResumeOrigin, RunId, RunSpec,
    RunState, SkippedBackend, SourceIdentity, Waiver,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ledger::{AnchorRow, LedgerRow, RowOrigin, SandboxKept, work_line};
use crate::{Anchor, Outcome, upgrade};

/// What stands in `run.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunRecord {
    pub v: u32,
    pub id: RunId,
    pub backend: BackendName,
    pub spec: RunSpec,
    pub spec_hash: String,
    pub plan_hash: String,
    /// Only with an engine: what the container was started from.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub image: Option<PlannedImage>,
    pub posture: Posture,
    pub waivers: Vec<Waiver>,
    /// Of the plan without what is different in every run: what a run that continues this one must have too.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub policy_hash: Option<String>,
    /// The trees of the host that it was given, as they were then.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub sources: Vec<SourceIdentity>,
    /// The checkpoint of another run that it began with.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub resumed_from: Option<Box<ResumeOrigin>>,
    /// Backends that come before this one in the operator's order, and why they were not taken.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub skipped_backends: Vec<SkippedBackend>,
    /// What the command's process read back before it was let go.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub attestation: Option<Box<Attestation>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub outcome: Option<Outcome>,
    /// When `run.stop` was written: milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stopped_ms: Option<u64>,
}

/// Reads the text of a `run.json` that this version or an older one wrote.
pub fn parse<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    #[derive(Deserialize)]
    struct Version {
        #[serde(default)]
        v: Option<u64>,
    }
    let Version { v } = serde_json::from_slice(text)?;
    if !v.is_some_and(upgrade::is_old) {
        return serde_json::from_slice(text);
    }
    let mut record: serde_json::Value = serde_json::from_slice(text)?;
    upgrade::run_json(&mut record);
    serde_json::from_value(record)
}

/// The trees of the host that a run can write, without links; nothing while its record is not there.
pub fn written_trees(directory: &Path) -> Option<Vec<PathBuf>> {
    let record = RunRecord::read(directory).ok()?;
    let trees = record.spec.workspace.iter().chain(&record.spec.mounts);
    let writable = trees.filter(|mount| mount.mode == MountMode::Rw);
    let real = |mount: &belljar_spec::Mount| {
        let path = mount.source.as_path();
        path.canonicalize().unwrap_or_else(|_| path.to_owned())
    };
    Some(writable.map(real).collect())
}

impl RunRecord {
    /// Not synced: everything in it stands in the log too, from where it is written again.
    pub fn write(&self, directory: &Path) -> std::io::Result<()> {
        let new = directory.join("run.json.new");
        let mut file =
            OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        file.write_all(&text)?;
        std::fs::rename(&new, Self::path(directory))
    }

    /// The run's row, now that it is over.
    pub fn ledger_row(&self, anchor: Option<Anchor>) -> LedgerRow {
        let outcome = self.outcome.as_ref();
        LedgerRow {
            id: self.id,
            name: self.spec.name.clone(),
            backend: self.backend,
            state: RunState::Stopped,
            command: work_line(&self.spec),
            workspace: self.spec.workspace.as_ref().map(|mount| mount.source.clone()),
            created_ms: self.id.unix_millis(),
            stopped_ms: self.stopped_ms,
            reason: outcome.map(|outcome| outcome.reason),
            exit: outcome.map(|outcome| outcome.exit),
            usage: outcome.map(|outcome| outcome.usage).unwrap_or_default(),
            sandbox: SandboxKept::Yes,
            anchor: anchor.map(|Anchor { seq, hash, inode, durable }| AnchorRow {
                seq,
                hash,
                inode,
                durable,
            }),
            origin: RowOrigin::Supervisor,
        }
    }

    pub fn path(directory: &Path) -> PathBuf {
        directory.join("run.json")
    }

    pub fn read(directory: &Path) -> std::io::Result<Self> {
        let text = std::fs::read(directory.join("run.json"))?;
        Ok(parse(&text)?)
    }
}

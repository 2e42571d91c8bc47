//! `run.json`: what was decided, what holds, how it ended. Written whole or not at all.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use belljar_spec::{
    AgentWork, Attestation, BackendName, Birth, MountMode, NotTaken, OsText, Plan, PlannedImage,
    Posture, RECORD_VERSION, RunId, RunSpec, RunState, SourceIdentity, Until, Waiver,
};
use serde::{Deserialize, Serialize};

use super::choose::Prepared;
use super::foundation::{policy_hash, sources_of};
use super::{LaunchError, Outcome};
use crate::ledger::{AnchorRow, LedgerRow, RowOrigin, SandboxKept, work_line};
use crate::record::{Anchor, Secrets, looks_secret};

/// What stands in `run.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RunRecord {
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
    pub birth: Option<Box<Birth>>,
    /// Backends that come before this one in the operator's order, and why they were not taken.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub not_taken: Vec<NotTaken>,
    /// What the command's process read back before it was let go.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub attestation: Option<Box<Attestation>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub outcome: Option<Outcome>,
    /// When `run.stop` was written: milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stopped_ms: Option<u64>,
}

/// The trees of the host that a run can write, without links; nothing while its record is not there.
pub(crate) fn written_trees(directory: &Path) -> Option<Vec<PathBuf>> {
    let text = std::fs::read(directory.join("run.json")).ok()?;
    let record: RunRecord = serde_json::from_slice(&text).ok()?;
    let trees = record.spec.workspace.iter().chain(&record.spec.mounts);
    let writable = trees.filter(|mount| mount.mode == MountMode::Rw);
    let real = |mount: &belljar_spec::Mount| {
        let path = mount.source.as_path();
        path.canonicalize().unwrap_or_else(|_| path.to_owned())
    };
    Some(writable.map(real).collect())
}

impl RunRecord {
    pub(super) fn new(
        id: RunId,
        prepared: &Prepared<'_>,
        posture: &Posture,
        secrets: &Secrets,
    ) -> Self {
        let Prepared { spec, plan, .. } = prepared;
        let shown = without_secret_values(spec, secrets);
        // Hashes of what is recorded: one over a secret would let it be found by trying.
        let spec_hash = shown.hash();
        Self {
            v: RECORD_VERSION,
            id,
            backend: plan.backend,
            spec: shown,
            spec_hash,
            plan_hash: plan_without_secret_values(plan, secrets).hash(),
            image: plan.image.clone(),
            posture: posture.clone(),
            waivers: spec.waivers.clone(),
            policy_hash: spec.agent.as_ref().map(|_| policy_hash(plan, spec)),
            sources: if spec.agent.is_some() { sources_of(spec) } else { Vec::new() },
            birth: prepared.birth.clone(),
            not_taken: prepared.not_taken().to_vec(),
            attestation: None,
            outcome: None,
            stopped_ms: None,
        }
    }

    /// Not synced: everything in it stands in the log too, from where it is written again.
    pub(super) fn write(&self, directory: &Path) -> Result<(), LaunchError> {
        let path = directory.join("run.json");
        self.write_to(directory, &path).map_err(|error| LaunchError::Record { path, error })
    }

    fn write_to(&self, directory: &Path, path: &PathBuf) -> std::io::Result<()> {
        let new = directory.join("run.json.new");
        let mut file =
            OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        file.write_all(&text)?;
        std::fs::rename(&new, path)
    }

    /// The run's row, now that it is over.
    pub(super) fn ledger_row(&self, anchor: Option<Anchor>) -> LedgerRow {
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

    pub(crate) fn read(directory: &Path) -> std::io::Result<Self> {
        let text = std::fs::read(directory.join("run.json"))?;
        Ok(serde_json::from_slice(&text)?)
    }
}

/// Stands for the value of a variable whose name looks secret.
pub(crate) const NOT_RECORDED: &str = "(not recorded)";

/// What of a run must not be recorded: values of variables whose names look secret.
pub(crate) fn secrets_of(spec: &RunSpec) -> Secrets {
    let values = spec.env.iter().filter(|(name, _)| looks_secret(name));
    Secrets::new(values.map(|(_, value)| value.as_bytes().to_vec()))
}

/// Such a variable is recorded by name only, and its value nowhere else either.
pub(crate) fn without_secret_values(spec: &RunSpec, secrets: &Secrets) -> RunSpec {
    let mut spec = spec.clone();
    hide_values(&mut spec.env, secrets);
    spec.command = spec.command.iter().map(|word| secrets.mask_word(word)).collect();
    spec.workdir = secrets.mask_word(&spec.workdir);
    for value in spec.labels.values_mut() {
        *value = secrets.mask_words_of(value);
    }
    if let Some(work) = spec.agent.as_deref_mut() {
        hide_in_work(work, secrets);
    }
    spec
}

fn hide_in_work(work: &mut AgentWork, secrets: &Secrets) {
    for text in std::iter::once(&mut work.agent.prompt).chain(&mut work.agent.args) {
        if secrets.mask_words_of(text) != *text {
            *text = NOT_RECORDED.to_owned();
        }
    }
    let setup = work.setup.iter_mut().flat_map(|setup| &mut setup.command);
    let check = match &mut work.repeat.until {
        Some(Until::Command { argv, .. }) => argv.as_mut_slice(),
        _ => &mut [],
    };
    for word in work.agent.program.iter_mut().chain(setup).chain(check) {
        *word = whole_or_nothing(word, secrets);
    }
}

fn whole_or_nothing(word: &OsText, secrets: &Secrets) -> OsText {
    match secrets.mask_word(word) == *word {
        true => word.clone(),
        false => NOT_RECORDED.into(),
    }
}

/// The same for a plan, which holds the command too.
pub(super) fn plan_without_secret_values(plan: &Plan, secrets: &Secrets) -> Plan {
    let mut plan = plan.clone();
    hide_values(&mut plan.command.env, secrets);
    plan.command.argv = plan.command.argv.iter().map(|word| secrets.mask_word(word)).collect();
    plan.command.workdir = secrets.mask_word(&plan.command.workdir);
    plan
}

/// A value may also stand in that of another variable: a password in an address.
fn hide_values(env: &mut BTreeMap<String, OsText>, secrets: &Secrets) {
    for (name, value) in env {
        *value = match looks_secret(name) {
            true => NOT_RECORDED.into(),
            // A part of it would be of no use, and who resumes the run must know that it is missing.
            false => whole_or_nothing(value, secrets),
        };
    }
}

//! `run.json`: what was decided, what holds, how it ended. Written whole or not at all.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use belljar_spec::{
    Attestation, BackendName, Plan, Posture, RECORD_VERSION, RunId, RunSpec, Waiver,
};
use serde::{Deserialize, Serialize};

use super::{LaunchError, Outcome};

/// What stands in `run.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RunRecord {
    pub v: u32,
    pub id: RunId,
    pub backend: BackendName,
    pub spec: RunSpec,
    pub spec_hash: String,
    pub plan_hash: String,
    pub posture: Posture,
    pub waivers: Vec<Waiver>,
    /// What the command's process read back before it was let go.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub attestation: Option<Box<Attestation>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub outcome: Option<Outcome>,
}

impl RunRecord {
    pub(super) fn new(id: RunId, spec: &RunSpec, plan: &Plan, posture: &Posture) -> Self {
        Self {
            v: RECORD_VERSION,
            id,
            backend: plan.backend,
            spec: without_secret_values(spec),
            spec_hash: spec.hash(),
            plan_hash: plan.hash(),
            posture: posture.clone(),
            waivers: spec.waivers.clone(),
            attestation: None,
            outcome: None,
        }
    }

    /// Its content is on disk when this returns.
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
        file.sync_data()?;
        // The name may lag behind the content: after a power cut the record then says how the run began
        // and not how it ended, which is read as `lost`.
        std::fs::rename(&new, path)
    }

    pub(super) fn read(directory: &Path) -> std::io::Result<Self> {
        let text = std::fs::read(directory.join("run.json"))?;
        Ok(serde_json::from_slice(&text)?)
    }
}

/// A variable whose name looks like a secret's is recorded by name only.
fn without_secret_values(spec: &RunSpec) -> RunSpec {
    const SECRET_WORDS: &[&str] = &[
        "SECRET",
        "TOKEN",
        "PASSWORD",
        "PASSWD",
        "APIKEY",
        "API_KEY",
        "CREDENTIAL",
        "PRIVATE_KEY",
        "AUTH",
    ];
    let mut spec = spec.clone();
    for (name, value) in &mut spec.env {
        let upper = name.to_uppercase();
        if SECRET_WORDS.iter().any(|word| upper.contains(word)) {
            *value = "(not recorded)".into();
        }
    }
    spec
}

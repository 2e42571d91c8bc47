//! How a run ended: the outcome in `run.stop` and `run.json`.

use belljar_spec::wire::control::StopReport;
use belljar_spec::{
    AgentReport, Attestation, BackendName, ExecFailure, Exit, Posture, RunId, SkippedBackend,
    StopReason, Usage, WorkspaceReport,
};
use serde::{Deserialize, Serialize};

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
    /// Backends that were tried before it; the record has them beside this.
    #[serde(skip)]
    pub skipped_backends: Vec<SkippedBackend>,
    /// What went wrong, where belljar itself ended it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub detail: Option<String>,
    /// Something of the run that could not be taken away.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub leak: Option<String>,
    /// What it changed, where it could change anything of the host's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub workspace: Option<WorkspaceReport>,
    /// What came of its agent, where it had one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub agent: Option<Box<AgentReport>>,
}

impl Outcome {
    /// As it stands in `run.stop`, and as clients that follow the run receive it.
    pub fn report(&self) -> StopReport {
        StopReport {
            run: self.id,
            reason: self.reason,
            exit: self.exit,
            detail: self.detail.clone(),
            usage: self.usage,
            leak: self.leak.clone(),
            workspace: self.workspace.clone(),
            agent: self.agent.clone(),
        }
    }

    /// From a `run.stop` event.
    pub fn from_report(report: StopReport, backend: BackendName, posture: Posture) -> Self {
        Self {
            id: report.run,
            backend,
            reason: report.reason,
            exit: report.exit,
            failure: None,
            posture,
            usage: report.usage,
            stdout: Captured::default(),
            stderr: Captured::default(),
            attestation: None,
            skipped_backends: Vec::new(),
            detail: report.detail,
            leak: report.leak,
            workspace: report.workspace,
            agent: report.agent,
        }
    }
}

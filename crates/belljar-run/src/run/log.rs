//! The record of one run while it is written: the log, `run.json`, and the ledger's row at the end.

use std::path::PathBuf;

use belljar_backend::Started;
use belljar_spec::{
    BackendName, EventKind, PlannedImage, Posture, ResumeOrigin, RunId, RunSpec, SkippedBackend,
    SourceIdentity, Waiver,
};
use serde_json::json;

use super::run_dir::RunDir;
use super::select_backend::Prepared;
use belljar_record::Outcome;
use belljar_record::RunRecord;
use belljar_record::redact::plan_without_secret_values;

use super::LaunchError;
use super::run_record::{new_record, write_record};
use super::timings;
use belljar_record::home::Home;
use belljar_record::{HomeKey, Recorder, RunIndex, Secrets};

pub(super) struct RunLog {
    pub(super) recorder: Recorder,
    record: RunRecord,
    directory: PathBuf,
}

impl RunLog {
    /// Writes `run.start`. It is on disk before the command is released, not before this returns: the
    /// sandbox is built meanwhile.
    pub(super) fn begin(
        home: &Home,
        run_dir: &RunDir,
        (prepared, posture): (&Prepared<'_>, &Posture),
        secrets: Secrets,
    ) -> Result<Self, LaunchError> {
        timings::mark(timings::Phase::Bind);
        let key = HomeKey::load_or_make(home.path())?;
        let record = new_record(run_dir.id, prepared, posture, &secrets);
        let plan = plan_without_secret_values(&prepared.plan, &secrets);
        let output = prepared.plan.limits.output;
        let key = key.for_run(&run_dir.id);
        let mut recorder = Recorder::create(&run_dir.directory, key, secrets, output)?;
        recorder.event(EventKind::RunStart, &Start::of(&record))?;
        recorder.event(EventKind::SandboxPlanned, &json!({ "plan": plan }))?;
        recorder.flush()?;
        timings::mark(timings::Phase::Record);
        Ok(Self { recorder, record, directory: run_dir.directory.clone() })
    }

    /// What is written so far is on disk when this returns.
    pub(super) fn sync(&mut self) -> Result<(), LaunchError> {
        Ok(self.recorder.barrier()?)
    }

    /// The sandbox stands.
    pub(super) fn started(&mut self, started: &Started) -> Result<(), LaunchError> {
        self.recorder
            .event(EventKind::SandboxStarted, &json!({ "command_uid": started.command_uid }))?;
        write_record(&self.record, &self.directory)
    }

    /// Writes the end: durable when this returns. What listings are made from follows.
    pub(super) fn stop(mut self, outcome: &Outcome) -> Result<RunIndex, LaunchError> {
        if self.recorder.is_sound() {
            let gone = match &outcome.leak {
                None => self.recorder.event(EventKind::SandboxDestroyed, &json!({})),
                Some(leak) => self.recorder.event(EventKind::SandboxLeak, &json!({ "what": leak })),
            };
            gone?;
            if let Some(report) = &outcome.workspace {
                // Where the disk is full, `run.stop` says that something is missing.
                let _ = self.recorder.event(EventKind::WorkspaceChanged, report);
            }
        }
        let mut report = outcome.report();
        report.workspace = report.workspace.map(|workspace| workspace.brief());
        self.recorder.stop(&report)?;
        self.record.stopped_ms = Some(self.recorder.last_ms());
        self.record.attestation = outcome.attestation.clone();
        let mut outcome = outcome.clone();
        outcome.failure =
            outcome.failure.map(|failure| self.recorder.secrets().mask_failure(&failure));
        self.record.outcome = Some(outcome);
        Ok(RunIndex::of_supervisor(self.record, self.recorder.anchor()))
    }
}

/// The data of `run.start`: `run.json` as it was decided, and where it was written.
#[derive(Debug, serde::Serialize)]
struct Start<'a> {
    boot: String,
    build: &'static str,
    v: u32,
    id: RunId,
    backend: BackendName,
    spec: &'a RunSpec,
    spec_hash: &'a str,
    plan_hash: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<&'a PlannedImage>,
    posture: &'a Posture,
    waivers: &'a [Waiver],
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_hash: Option<&'a str>,
    #[serde(skip_serializing_if = "<[SourceIdentity]>::is_empty")]
    sources: &'a [SourceIdentity],
    #[serde(skip_serializing_if = "Option::is_none")]
    resumed_from: Option<&'a ResumeOrigin>,
    #[serde(skip_serializing_if = "<[SkippedBackend]>::is_empty")]
    skipped_backends: &'a [SkippedBackend],
}

impl<'a> Start<'a> {
    fn of(record: &'a RunRecord) -> Self {
        let RunRecord { v, id, backend, spec, spec_hash, plan_hash, image, posture, .. } = record;
        Self {
            boot: boot_id(),
            build: belljar_spec::BUILD,
            v: *v,
            id: *id,
            backend: *backend,
            spec,
            spec_hash,
            plan_hash,
            image: image.as_ref(),
            posture,
            waivers: &record.waivers,
            policy_hash: record.policy_hash.as_deref(),
            sources: &record.sources,
            resumed_from: record.resumed_from.as_deref(),
            skipped_backends: &record.skipped_backends,
        }
    }
}

/// Tells one start of the machine from the next.
pub(super) fn boot_id() -> String {
    let id =
        belljar_sys::kernel_file::read_text("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

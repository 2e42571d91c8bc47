//! The record of one run while it is written: the log, `run.json`, and the ledger's row at the end.

use std::path::PathBuf;

use belljar_backend::Started;
use belljar_spec::{
    BackendName, EventKind, ExecFailure, Plan, PlannedImage, Posture, ResumeOrigin, RunId, RunSpec,
    SkippedBackend, SourceIdentity, Waiver,
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
use belljar_record::{Anchor, HomeKey, Recorder, RunIndex, Secrets};

/// A log in which nothing is written yet.
pub(super) struct NewLog {
    recorder: Recorder,
    run: RunId,
    directory: PathBuf,
}

impl NewLog {
    /// Makes the file. A supervisor that dies before [`Self::begin`] has accepted nothing, and `reconcile` removes what
    /// it left.
    pub(super) fn create(
        home: &Home,
        run_dir: &RunDir,
        prepared: &Prepared<'_>,
        secrets: Secrets,
    ) -> Result<Self, LaunchError> {
        timings::mark(timings::Phase::Bind);
        let key = HomeKey::load_or_make(home.path())?.for_run(&run_dir.id);
        let (directory, output) = (run_dir.directory.clone(), prepared.plan.limits.output);
        let recorder = Recorder::create(&directory, key, secrets, output)?;
        timings::mark(timings::Phase::Record);
        Ok(Self { recorder, run: run_dir.id, directory })
    }

    /// Writes `run.start`. It is on disk after [`RunLog::sync`].
    pub(super) fn begin(
        self,
        prepared: &Prepared<'_>,
        posture: &Posture,
    ) -> Result<RunLog, LaunchError> {
        let Self { mut recorder, run, directory } = self;
        let record = new_record(run, prepared, posture, recorder.secrets());
        let plan = plan_without_secret_values(&prepared.plan, recorder.secrets());
        recorder.event(EventKind::RunStart, &Start::of(&record))?;
        recorder.event(EventKind::SandboxPlanned, &Planned { plan: &plan })?;
        recorder.flush()?;
        Ok(RunLog { recorder, record, directory })
    }
}

/// A log that has its `run.start`: from here on it gets exactly one `run.stop`.
pub(super) struct RunLog {
    pub(super) recorder: Recorder,
    record: RunRecord,
    directory: PathBuf,
}

impl RunLog {
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
    pub(super) fn stop(mut self, outcome: &Outcome) -> Result<StoppedLog, LaunchError> {
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
        let failure = outcome.failure.as_ref();
        let failure = failure.map(|failure| self.recorder.secrets().mask_failure(failure));
        Ok(StoppedLog { record: self.record, anchor: self.recorder.anchor(), failure })
    }
}

/// A log that has its `run.stop`, on disk. Whoever ends the run does not wait for more.
#[derive(Debug)]
pub(super) struct StoppedLog {
    record: RunRecord,
    anchor: Option<Anchor>,
    /// That of the outcome, without secrets.
    failure: Option<ExecFailure>,
}

impl StoppedLog {
    pub(super) fn index(self, outcome: &Outcome) -> RunIndex {
        let Self { mut record, anchor, failure } = self;
        record.attestation = outcome.attestation.clone();
        record.outcome = Some(Outcome { failure, ..outcome.clone() });
        RunIndex::of_supervisor(record, anchor)
    }
}

/// The data of `sandbox.planned`.
#[derive(Debug, serde::Serialize)]
struct Planned<'a> {
    plan: &'a Plan,
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

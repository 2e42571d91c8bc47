//! Makes and writes the `run.json` of a prepared run.

use std::path::Path;

use belljar_record::redact::{plan_without_secret_values, without_secret_values};
use belljar_record::{RunRecord, Secrets};
use belljar_spec::wire::control::Keep;
use belljar_spec::{Posture, RECORD_VERSION, RunId};

use super::LaunchError;
use super::resume_check::{policy_hash, sources_of};
use super::select_backend::Prepared;

pub(super) fn new_record(
    id: RunId,
    prepared: &Prepared<'_>,
    posture: &Posture,
    secrets: &Secrets,
) -> RunRecord {
    let Prepared { spec, plan, .. } = prepared;
    let shown = without_secret_values(&plan.settle(spec), secrets);
    // Hashes of what is recorded: one over a secret would let it be found by trying.
    let spec_hash = shown.hash();
    // What a resumed or forked run is compared with.
    let has_checkpoints = spec.agent.is_some() || prepared.keep == Keep::UntilStopped;
    RunRecord {
        v: RECORD_VERSION,
        id,
        backend: plan.backend,
        spec: shown,
        spec_hash,
        plan_hash: plan_without_secret_values(plan, secrets).hash(),
        image: plan.image.clone(),
        posture: posture.clone(),
        waivers: spec.waivers.clone(),
        policy_hash: has_checkpoints.then(|| policy_hash(plan, spec)),
        sources: if has_checkpoints { sources_of(spec) } else { Vec::new() },
        resumed_from: prepared.resumed_from.clone(),
        skipped_backends: prepared.skipped_backends().to_vec(),
        attestation: None,
        outcome: None,
        stopped_ms: None,
    }
}

pub(super) fn write_record(record: &RunRecord, directory: &Path) -> Result<(), LaunchError> {
    record
        .write(directory)
        .map_err(|error| LaunchError::Record { path: RunRecord::path(directory), error })
}

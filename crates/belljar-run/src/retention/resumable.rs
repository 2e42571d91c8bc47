//! Finds the checkpoints that resumable runs need, so that retention does not remove them.

use std::collections::{BTreeMap, BTreeSet};

use belljar_spec::{ResumeKind, ResumeOrigin, RunId};

use crate::lineage;
use belljar_record::HomeKey;
use belljar_record::home::Home;
use belljar_record::store::{Life, life, run_directories};
use belljar_workspace::checkpoint;

/// The newest resumable runs that are protected.
const MAX_RESUMABLE: usize = 20;

/// Of `candidates`, those whose checkpoints may still be needed: the newest runs that no other run resumes, and the
/// runs that those and live runs were resumed from. Reads nothing if no candidate has a checkpoint.
pub(super) fn needed(home: &Home, candidates: &[RunId]) -> BTreeSet<RunId> {
    let has_any = |run: &RunId| checkpoint::has_any(&home.run_dir(run));
    let mut with_checkpoint: BTreeSet<RunId> =
        candidates.iter().copied().filter(|run| has_any(run)).collect();
    if with_checkpoint.is_empty() {
        return with_checkpoint;
    }
    // If the runs cannot be read, every candidate may be needed.
    let (Ok(runs), Ok(key)) = (run_directories(home), HomeKey::load(home.path())) else {
        return with_checkpoint;
    };
    let origins: BTreeMap<RunId, ResumeOrigin> = runs
        .iter()
        .filter_map(|run| Some((*run, lineage::resume_origin(home, &key, run).ok().flatten()?)))
        .collect();
    // A run without a checkpoint is resumed from the run before it.
    let continued: BTreeSet<RunId> = origins
        .iter()
        .filter(|(run, origin)| origin.kind == ResumeKind::Resume && has_any(run))
        .map(|(_, origin)| origin.from)
        .collect();
    let resumable = runs.iter().rev().filter(|run| !continued.contains(run) && has_any(run));
    let mut needed: BTreeSet<RunId> = resumable.take(MAX_RESUMABLE).copied().collect();
    let is_live = |run: &RunId| life::of(home, run) != Life::Over;
    let resumed = origins.iter().filter(|(run, _)| needed.contains(run) || is_live(run));
    let parents: Vec<RunId> = resumed.map(|(_, origin)| origin.from).collect();
    needed.extend(parents);
    with_checkpoint.retain(|run| needed.contains(run));
    with_checkpoint
}

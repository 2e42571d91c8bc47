//! Runs that can still be gone on with: nothing takes away by itself what that needs.

use std::collections::{BTreeMap, BTreeSet};

use belljar_spec::{ResumeKind, ResumeOrigin, RunId};

use crate::lineage;
use belljar_record::HomeKey;
use belljar_record::home::Home;
use belljar_record::store::{Life, life, run_directories};
use belljar_workspace::checkpoint;

/// As many of the newest are waited for.
const MOST: usize = 20;

/// Of `candidates`, those whose checkpoints somebody may still need: the newest runs that no other continues, and
/// whatever those and the live ones were born from. Reads nothing where no candidate has a checkpoint.
pub(super) fn needed(home: &Home, candidates: &[RunId]) -> BTreeSet<RunId> {
    let has_any = |run: &RunId| checkpoint::has_any(&home.run_dir(run));
    let mut asked: BTreeSet<RunId> =
        candidates.iter().copied().filter(|run| has_any(run)).collect();
    if asked.is_empty() {
        return asked;
    }
    // Where nobody can tell, everything may be needed.
    let (Ok(runs), Ok(key)) = (run_directories(home), HomeKey::load(home.path())) else {
        return asked;
    };
    let births: BTreeMap<RunId, ResumeOrigin> = runs
        .iter()
        .filter_map(|run| Some((*run, lineage::birth(home, &key, run).ok().flatten()?)))
        .collect();
    // One that came to no checkpoint of its own is gone on with from the one before it.
    let continued: BTreeSet<RunId> = births
        .iter()
        .filter(|(run, birth)| birth.how == ResumeKind::Resume && has_any(run))
        .map(|(_, birth)| birth.from)
        .collect();
    let resumable = runs.iter().rev().filter(|run| !continued.contains(run) && has_any(run));
    let mut needed: BTreeSet<RunId> = resumable.take(MOST).copied().collect();
    let is_live = |run: &RunId| life::of(home, run) != Life::Over;
    let heirs = births.iter().filter(|(run, _)| needed.contains(run) || is_live(run));
    let parents: Vec<RunId> = heirs.map(|(_, birth)| birth.from).collect();
    needed.extend(parents);
    asked.retain(|run| needed.contains(run));
    asked
}

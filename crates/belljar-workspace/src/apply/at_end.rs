//! Applies the changes to `rw` trees that were sent, when their run ends. What somebody else changed meanwhile is never
//! overwritten: then nothing is applied, and the changes wait for `belljar diff` and `apply`.

use std::path::Path;

use belljar_record::home::Home;
use belljar_spec::text::error_chain;
use belljar_spec::{AppliedReport, ApplyMoment, LayeredTree, RunId};

use super::{ApplyError, Draft, OnConflict, apply, leaves_nothing_undecided};
use crate::open::OpenTree;
use crate::reviewed::{Reviewed, mark_reviewed};
use crate::select::Selection;

/// `None` where the run has no such tree. Called once nothing of the run can change its trees any more; an error is
/// part of the report.
pub fn apply_at_end(home: &Home, run: &RunId, layered: &[LayeredTree]) -> Option<AppliedReport> {
    if !layered.iter().any(|tree| tree.apply == ApplyMoment::AtEnd) {
        return None;
    }
    let report = apply_all(home, run).unwrap_or_else(|error| AppliedReport {
        failed: Some(error_chain(&error)),
        ..AppliedReport::default()
    });
    Some(report)
}

fn apply_all(home: &Home, run: &RunId) -> Result<AppliedReport, ApplyError> {
    let draft = Draft::make(home, run, selection, OnConflict::Refuse)?;
    let count = |of: &dyn Fn(&super::TreeDraft) -> usize| draft.trees.iter().map(of).sum::<usize>();
    let mut report = AppliedReport {
        changes: 0,
        held_back: count(&|tree| tree.withheld.len()) as u64,
        conflicts: count(&|tree| tree.conflicts.len()) as u64,
        failed: None,
    };
    if draft.has_conflicts() {
        return Ok(report);
    }
    if !draft.is_empty() {
        report.changes = apply(home, &draft)?.changes as u64;
    }
    if leaves_nothing_undecided(&draft) {
        mark_reviewed(&home.run_dir(run), Reviewed::Applied);
    }
    Ok(report)
}

fn selection(tree: &OpenTree) -> Selection {
    match tree.note.apply {
        ApplyMoment::AtEnd => Selection::Everything,
        ApplyMoment::OnRequest => Selection::Paths(Vec::new()),
    }
}

/// Whether this tree of the host, which its run may write, gets the run's changes only when it ends.
pub(super) fn is_written_at_end(directory: &Path, tree: &Path) -> bool {
    let layers = crate::open::read_layers(directory).unwrap_or_default();
    layers.iter().any(|note| note.apply == ApplyMoment::AtEnd && note.source.as_path() == tree)
}

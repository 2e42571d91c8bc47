//! Reports what a run changed when it ends.

use std::path::Path;
use std::time::{Duration, Instant};

use belljar_spec::{AutorunChange, AutorunFile, LayeredTree, Moment, RunId, WorkspaceReport};

use super::autorun_scan::{self, WrittenTree};
use super::change::{Change, Changes, What};
use super::open::{OpenTree, ReviewError};

/// What the end of a run has to look at.
#[derive(Debug)]
pub struct AtEnd<'a> {
    pub run: &'a RunId,
    /// The run's own.
    pub directory: &'a Path,
    pub layered: &'a [LayeredTree],
    /// Trees that it could write themselves.
    pub written: &'a [WrittenTree],
    /// Before it could write anything.
    pub since: Moment,
    pub lasted: Duration,
}

/// What the run changed, where it could change anything. It cannot fail the run: an error is part of the report.
pub fn report_at_end(end: &AtEnd<'_>) -> Option<WorkspaceReport> {
    if end.layered.is_empty() && end.written.is_empty() {
        return None;
    }
    let layers = report_of_layers(end.directory, end.run, end.layered);
    let mut report = layers.unwrap_or_default();
    let until = Instant::now() + autorun_scan::time_limit(end.lasted);
    for tree in end.written {
        if let Err(error) = autorun_scan::look(tree, end.since, until, &mut report) {
            report.failed = Some(format!("cannot look at {}: {error}", tree.target));
        }
    }
    // A tree that could be written needs no report; a layered one in which nothing was written does.
    (!end.layered.is_empty() || report != WorkspaceReport::default()).then_some(report)
}

/// The same for a run whose end was not observed: only its layered trees, since others may have written the rest.
pub fn report_of_layers(
    directory: &Path,
    run: &RunId,
    layered: &[LayeredTree],
) -> Option<WorkspaceReport> {
    let mut report = WorkspaceReport::default();
    for note in layered {
        if let Err(error) = add_tree(directory, run, note, &mut report) {
            report.failed = Some(belljar_spec::text::error_chain(&error));
        }
    }
    if layered.is_empty() {
        return None;
    }
    if report.changes() == 0 && !report.cut && report.failed.is_none() {
        super::mark_reviewed(directory, super::Reviewed::NothingChanged);
    }
    Some(report)
}

fn add_tree(
    directory: &Path,
    run: &RunId,
    note: &LayeredTree,
    report: &mut WorkspaceReport,
) -> Result<(), ReviewError> {
    let tree = OpenTree::open(directory, run, note.clone())?;
    let found = tree.changes()?;
    // Without it the next look only knows less.
    let _ = super::capture(directory, &tree, &found);
    let Changes { changes, cut } = found;
    report.cut |= cut;
    for change in &changes {
        let kind = match change.what {
            What::Created => (&mut report.created, AutorunChange::Created),
            What::Modified | What::Mode | What::Replaced => {
                (&mut report.modified, AutorunChange::Modified)
            }
            What::Deleted => (&mut report.deleted, AutorunChange::Deleted),
            What::Renamed { .. } => (&mut report.renamed, AutorunChange::Created),
        };
        let (count, how) = kind;
        *count += 1;
        let size = change.after.as_ref().map_or(0, |after| after.size);
        report.bytes = report.bytes.saturating_add(size);
        report_later(note, change, how, report);
    }
    Ok(())
}

fn report_later(
    note: &LayeredTree,
    change: &Change,
    how: AutorunChange,
    report: &mut WorkspaceReport,
) {
    let Some(mark) = &change.autorun else { return };
    report.add_autorun(AutorunFile {
        target: note.target.clone(),
        path: change.path.clone(),
        class: mark.class,
        why: mark.why.to_owned(),
        change: how,
    });
}

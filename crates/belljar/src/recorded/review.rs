//! Reviews what a run changed in its overlay trees: diff, apply, discard.

use std::path::{Path, PathBuf};

use belljar_record::home::Home;
use belljar_spec::{OsText, RunId};
use belljar_workspace::{
    self as workspace, ApplyError, Change, Changes, Conflict, Draft, OnConflict, OpenTree,
    Recovery, Review, ReviewError, Selection, TreeDraft, What, below_root,
};

use super::RecordedRun;
use crate::sandbox::Error;

/// The largest patch that [`RecordedRun::patch`] returns.
pub const MAX_PATCH: usize = 64 << 20;

/// Everything that a run changed in its overlay trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diff {
    pub run: RunId,
    pub trees: Vec<TreeChanges>,
}

/// The changes of one tree. Paths and link targets were chosen by the run: show them escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeChanges {
    /// Where the tree is inside.
    pub target: OsText,
    /// Where it is on the host.
    pub source: OsText,
    /// By path, relative to the tree.
    pub changes: Vec<Change>,
    /// There are too many changes to list them all.
    pub truncated: bool,
}

impl Diff {
    pub fn changes(&self) -> impl Iterator<Item = &Change> {
        self.trees.iter().flat_map(|tree| &tree.changes)
    }

    pub fn is_empty(&self) -> bool {
        self.changes().next().is_none()
    }
}

/// Whether [`RecordedRun::apply`] writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DryRun {
    #[default]
    No,
    /// Only report what would be applied.
    Yes,
}

/// What to apply. The default is every change that is not withheld, and a conflict is an error.
#[derive(Clone, Debug, Default)]
pub struct ApplyOptions {
    paths: Vec<PathBuf>,
    use_the_runs: bool,
    dry_run: DryRun,
}

impl ApplyOptions {
    /// Applies this path and what is below it, and no other that is not named. A path that is withheld, such as a
    /// file that the host executes (`.git/hooks/pre-commit`), is applied only if that very path is named.
    pub fn path(mut self, path: impl Into<PathBuf>) -> Self {
        self.paths.push(path.into());
        self
    }

    /// Uses the run's version where the tree has changed too.
    pub fn overwrite_conflicts(mut self) -> Self {
        self.use_the_runs = true;
        self
    }

    pub fn dry_run(mut self) -> Self {
        self.dry_run = DryRun::Yes;
        self
    }
}

/// What was applied, or would be.
#[derive(Clone, Debug, Default)]
pub struct ApplyReport {
    /// How many changes were written; 0 after a dry run.
    pub changes: usize,
    pub trees: Vec<ApplyTree>,
    /// Directories that the run removed and that stay, because they hold other files.
    pub not_empty: Vec<OsText>,
    /// An earlier apply was interrupted, and was undone first.
    pub undone_before: bool,
    /// Why temporary files could not be removed. The changes are applied.
    pub untidy: Option<String>,
}

#[derive(Clone, Debug)]
pub struct ApplyTree {
    pub target: OsText,
    pub source: OsText,
    pub applied: Vec<Change>,
    /// Paths of `applied` that hold both the run's changes and those of the tree.
    pub merged: Vec<OsText>,
    /// Withheld, each with its reason.
    pub withheld: Vec<Change>,
    /// The tree's version stays: the run did not change it, or made the same change.
    pub unchanged: Vec<OsText>,
}

/// Why changes were not listed, applied or discarded.
#[derive(Debug, thiserror::Error)]
pub enum ChangesError {
    #[error(transparent)]
    Review(#[from] ReviewError),
    #[error(transparent)]
    Recover(#[from] workspace::RecoverError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error(transparent)]
    Discard(#[from] workspace::DiscardError),
    #[error("{}", conflicting(conflicts))]
    Conflicts { conflicts: Vec<Conflict> },
    #[error("{path} was not changed; belljar diff {run} lists the changes")]
    NotChanged { path: OsText, run: String },
    #[error("the patch is larger than {MAX_PATCH} bytes; look at single files")]
    PatchTooLarge,
}

fn conflicting(conflicts: &[Conflict]) -> String {
    let first = conflicts.first().map(|one| format!("{}: {}", one.path, one.what.words()));
    let more = match conflicts.len() {
        0 | 1 => String::new(),
        count => format!(", and {} more", count - 1),
    };
    format!(
        "the tree has changed since the run started, so nothing was applied: {}{more}; apply other paths by name, or \
         overwrite conflicts",
        first.unwrap_or_default()
    )
}

/// A tree of a run with its changes.
pub type Reviewed = (OpenTree, Changes);

/// Opens every overlay tree of a run and lists its changes.
pub fn changed_trees(home: &Home, run: &RunId) -> Result<Vec<Reviewed>, ChangesError> {
    workspace::settle(home, run)?;
    let review = Review::open(home, run)?;
    let mut trees = Vec::new();
    for tree in review.trees {
        let found = tree.changes()?;
        workspace::keep_baseline(home, run, &tree, &found);
        trees.push((tree, found));
    }
    Ok(trees)
}

/// What of a tree is meant by these paths; all of it if there are none.
pub fn selection(tree: &OpenTree, paths: &[PathBuf]) -> Selection {
    if paths.is_empty() {
        return Selection::Everything;
    }
    let (source, target) = (tree.note.source.as_path(), tree.note.target.as_path());
    Selection::Paths(paths.iter().filter_map(|path| below_root(path, source, target)).collect())
}

/// Refuses a path that names no change: a mistyped path must not look like an applied one.
pub fn refuse_unknown(draft: &Draft, paths: &[PathBuf], run: &str) -> Result<(), ChangesError> {
    for path in paths {
        let known = draft.trees.iter().any(|tree| {
            let note = &tree.tree.note;
            let below = below_root(path, note.source.as_path(), note.target.as_path());
            below.is_some_and(|below| every_path(tree).any(|path| path.starts_with(&below)))
        });
        if !known {
            let path = OsText::from(path.as_path());
            return Err(ChangesError::NotChanged { path, run: run.to_owned() });
        }
    }
    Ok(())
}

fn every_path(tree: &TreeDraft) -> impl Iterator<Item = &Path> {
    let changes = tree.todo.iter().map(|todo| &todo.change).chain(&tree.withheld);
    let named = changes.flat_map(|change| {
        let from = match &change.what {
            What::Renamed { from } => Some(from),
            _ => None,
        };
        [Some(&change.path), from].into_iter().flatten()
    });
    let conflicts = tree.conflicts.iter().map(|conflict| &conflict.path);
    named.chain(conflicts).chain(&tree.stays).map(OsText::as_path)
}

fn apply(home: &Home, run: &RunId, options: &ApplyOptions) -> Result<ApplyReport, ChangesError> {
    let on_conflict = match options.use_the_runs {
        true => OnConflict::TakeTheRuns,
        false => OnConflict::Refuse,
    };
    let select = |tree: &OpenTree| selection(tree, &options.paths);
    let draft = Draft::make(home, run, select, on_conflict)?;
    refuse_unknown(&draft, &options.paths, run.as_str())?;
    if draft.has_conflicts() {
        let conflicts = draft.trees.iter().flat_map(|tree| tree.conflicts.iter().cloned());
        return Err(ChangesError::Conflicts { conflicts: conflicts.collect() });
    }
    let mut report = ApplyReport {
        trees: draft.trees.iter().map(of_tree).collect(),
        undone_before: draft.recovery == Recovery::Undone,
        ..ApplyReport::default()
    };
    match options.dry_run {
        DryRun::Yes => {}
        DryRun::No if draft.is_empty() => workspace::note_reviewed(home, &draft),
        DryRun::No => {
            let applied = workspace::apply(home, &draft)?;
            report.changes = applied.changes;
            report.not_empty = applied.not_empty;
            report.untidy =
                applied.untidy.as_ref().map(|error| belljar_spec::text::error_chain(error));
        }
    }
    Ok(report)
}

fn of_tree(tree: &TreeDraft) -> ApplyTree {
    let merged = tree.todo.iter().filter(|todo| todo.merged);
    ApplyTree {
        target: tree.tree.note.target.clone(),
        source: tree.tree.note.source.clone(),
        applied: tree.todo.iter().map(|todo| todo.change.clone()).collect(),
        merged: merged.map(|todo| todo.change.path.clone()).collect(),
        withheld: tree.withheld.clone(),
        unchanged: tree.stays.clone(),
    }
}

impl RecordedRun {
    /// What the run changed in its overlay trees, so far. An error for a run without one.
    pub async fn diff(&self) -> Result<Diff, Error> {
        self.read(|home, run| {
            let trees = changed_trees(home, run)?.into_iter().map(|(tree, found)| TreeChanges {
                target: tree.note.target.clone(),
                source: tree.note.source.clone(),
                changes: found.changes,
                truncated: found.cut,
            });
            Ok(Diff { run: *run, trees: trees.collect() })
        })
        .await
    }

    /// The changes as a unified diff with git's headers, of at most [`MAX_PATCH`] bytes.
    pub async fn patch(&self) -> Result<Vec<u8>, Error> {
        self.read(|home, run| {
            let mut patch = Vec::new();
            for (tree, found) in changed_trees(home, run)? {
                for change in &found.changes {
                    patch.extend(tree.patch(change).map_err(ChangesError::from)?);
                    if patch.len() > MAX_PATCH {
                        return Err(ChangesError::PatchTooLarge.into());
                    }
                }
            }
            Ok(patch)
        })
        .await
    }

    /// Writes the run's changes to the host's tree: all of them or, after an error, none. Refuses what `belljar
    /// apply` refuses; [`ApplyTree::withheld`] lists what it left out.
    pub async fn apply(&self, options: ApplyOptions) -> Result<ApplyReport, Error> {
        self.read(move |home, run| Ok(apply(home, run, &options)?)).await
    }

    /// Deletes the changes of a run that has ended, for good. Its record stays.
    pub async fn discard(&self) -> Result<(), Error> {
        self.read(|home, run| Ok(workspace::discard(home, run).map_err(ChangesError::from)?)).await
    }
}

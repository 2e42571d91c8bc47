//! Applies what a run changed: all of it or nothing, whatever dies in between.
//!
//! New content is staged on the tree's file system, out of every run's reach where possible; the journal records what is about to happen; then come only renames and
//! modes; then the mark that it is done. Before that mark everything is undone by the next command, after it only
//! tidied up.

mod at_end;
mod build;
mod conflict;
mod draft;
mod fault;
#[cfg(test)]
mod hostile_tests;
pub(crate) mod journal;
mod judge;
mod recover;
mod stage;
mod staged;
mod staging_place;
mod step;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;

use belljar_spec::{OsText, RunId};
use belljar_tree::{Dir, OpenDirError};
use rustix::io::Errno;

pub use at_end::apply_at_end;
pub use conflict::{Clashing, Conflict};
pub use draft::{Draft, OnConflict, Todo, TreeDraft};
pub(crate) use journal::ApplyLock;
pub(crate) use recover::recover;
pub use recover::recover_all;
pub use recover::{LeftStep, RecoverError, Recovery, settle};

use crate::baseline::{Baseline, BaselineError};
use crate::change::{Change, Facts, HowFar, Kind, What};
use crate::dir_renames::{self, Renamed};
use crate::fingerprint::Identity;
use crate::open::{OpenTree, Review, ReviewError};
use crate::reviewed::{Reviewed, mark_reviewed};
use belljar_record::home::Home;
use belljar_record::store::{Life, life};
use build::{Builder, Built};
use journal::{Journal, JournalStep, JournalTree, Rebase};
use staged::Staged;
use staging_place::LiveWriters;
use step::StepError;

/// Prefix of the directory that new content is staged in.
const STAGING_PREFIX: &str = ".belljar-apply.";

/// Directories that are brought to disk one by one; beyond, the whole file system is.
const MAX_SYNCED: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("cannot take the lock in {}", .path.display())]
    Lock {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error(transparent)]
    Recover(#[from] RecoverError),
    #[error(transparent)]
    Review(#[from] ReviewError),
    #[error(transparent)]
    Baseline(#[from] BaselineError),
    #[error(
        "there are too many changes in {tree} to list them all, and so to apply them; name the files you want"
    )]
    TooMany { tree: OsText },
    #[error("cannot read the metadata of {path}")]
    Look {
        path: OsText,
        #[source]
        error: io::Error,
    },
    #[error("{path} is not a file, link or directory; other kinds are not applied")]
    Special { path: OsText },
    #[error(
        "the run changed {path} while it was read; nothing was applied; try again, or stop the run"
    )]
    ChangedByTheRun { path: OsText },
    #[error(
        "{path} could execute something as it is now, and could not when it was looked at; nothing was applied; \
         stop the run and look again, or name that path to apply it as it is"
    )]
    NotWhatWasJudged { path: OsText },
    #[error(
        "another process wrote to the copy of {path} before it was in its place; nothing was applied; stop other \
         runs that may write to the tree, and try again"
    )]
    StagedChanged { path: OsText },
    #[error(
        "{path} was changed by another process meanwhile; nothing was applied; look again with: belljar diff"
    )]
    ChangedHere { path: OsText },
    #[error("{path} cannot be replaced: the directory still holds what the run did not remove")]
    NotEmpty { path: OsText },
    #[error(
        "the run has renamed the directory {from} to {path} and still reads its files from {from}; apply that once \
         it has stopped, or other paths by name"
    )]
    StillRead { path: OsText, from: OsText },
    #[error("cannot store the renames of the run in {tree}; nothing was applied")]
    Whole {
        tree: OsText,
        #[source]
        error: io::Error,
    },
    #[error("cannot copy {path} into the tree; nothing was applied")]
    Stage {
        path: OsText,
        #[source]
        error: io::Error,
    },
    #[error("cannot make a directory for new files in {root}; nothing was applied")]
    Staging {
        root: OsText,
        #[source]
        error: io::Error,
    },
    #[error(
        "run {run} is alive and can write to {root}, so it could change the files before they are in place; nothing \
         was applied; stop it first: belljar stop {run}"
    )]
    OtherWriter { root: OsText, run: RunId },
    #[error("cannot write the journal of the apply in {}; nothing was applied", .path.display())]
    Journal {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("cannot apply {path}: {doing}; nothing was applied")]
    Step {
        path: OsText,
        doing: &'static str,
        #[source]
        error: io::Error,
    },
    #[error("cannot sync the changes to disk; nothing was applied")]
    Sync(#[source] io::Error),
    #[error("{apply}; and undoing it failed, which the next command tries again: {undo}")]
    AndUndo { apply: Box<ApplyError>, undo: RecoverError },
}

/// What was done.
#[derive(Debug)]
pub struct Applied {
    /// Paths, counted.
    pub changes: usize,
    /// Directories that the run removed and that stay, since they hold something else.
    pub not_empty: Vec<OsText>,
    /// It is done, and something could not be tidied up yet.
    pub untidy: Option<RecoverError>,
}

/// Once nothing is left to decide about, and the run can change nothing any more.
pub fn note_reviewed(home: &Home, draft: &Draft) {
    if !leaves_nothing_undecided(draft) || life::of(home, &draft.run) != Life::Over {
        return;
    }
    // While it was live it may have gone on after it was looked at.
    if draft.made_of == Life::Over || has_no_changes(home, &draft.run) {
        mark_reviewed(&home.run_dir(&draft.run), Reviewed::Applied);
    }
}

/// Whether everything that the run changed is applied with this draft, or can never be.
fn leaves_nothing_undecided(draft: &Draft) -> bool {
    draft.trees.iter().all(|tree| {
        let waits = |change: &Change| !is_decided(&tree.tree, change);
        tree.not_selected == 0 && !tree.withheld.iter().any(waits) && tree.all_was_chosen()
    })
}

/// Withheld, and naming it does not help: it cannot leave the run, or goes against what the run may see.
fn is_decided(tree: &OpenTree, change: &Change) -> bool {
    let is_special = |facts: &Facts| match facts.kind {
        Kind::Fifo | Kind::Socket | Kind::Device => true,
        Kind::File | Kind::Directory | Kind::Link => false,
    };
    let never = change.withheld.as_ref().is_some_and(|held| held.how_far == HowFar::Always);
    never
        && (tree.is_hidden(change.path.as_path())
            || change.what == What::Deleted
            || change.after.as_ref().is_some_and(is_special))
}

fn has_no_changes(home: &Home, run: &RunId) -> bool {
    let Ok(review) = Review::open(home, run) else { return false };
    review.trees.iter().all(|tree| {
        tree.changes().is_ok_and(|found| {
            !found.cut && found.changes.iter().all(|change| is_decided(tree, change))
        })
    })
}

struct Site {
    root: Dir,
    staging: Dir,
    staged: HashMap<u32, Vec<Staged>>,
}

/// All or nothing. Conflicts are the caller's to have looked at.
pub fn apply(home: &Home, draft: &Draft) -> Result<Applied, ApplyError> {
    let _apply = tracing::debug_span!("apply", run = %draft.run).entered();
    let lock =
        ApplyLock::take(home).map_err(|error| ApplyError::Lock { path: home.applying(), error })?;
    recover(home, &draft.run, &lock)?;
    make_whole(home, draft)?;
    let mut journal = Journal::new(draft.run);
    match prepare_and_perform(home, draft, &mut journal) {
        Ok(not_empty) => {
            let changes = draft.trees.iter().map(|tree| tree.todo.len()).sum();
            let untidy = recover::finish(home, &journal).err();
            tracing::debug!(changes, is_tidy = untidy.is_none(), "applied");
            note_reviewed(home, draft);
            Ok(Applied { changes, not_empty, untidy })
        }
        Err(error) => match recover::roll_back(home, &journal) {
            Ok(()) => Err(error),
            Err(undo) => Err(ApplyError::AndUndo { apply: Box::new(error), undo }),
        },
    }
}

/// What the run's tree shows of the real one under another name must not go with it.
fn make_whole(home: &Home, draft: &Draft) -> Result<(), ApplyError> {
    let is_over = life::of(home, &draft.run) == Life::Over;
    for TreeDraft { tree, todo, .. } in &draft.trees {
        let failed = |errno: Errno| ApplyError::Whole {
            tree: tree.note.source.clone(),
            error: errno.into(),
        };
        let renamed = match todo.is_empty() {
            true => Vec::new(),
            false => dir_renames::find(tree).map_err(failed)?,
        };
        if is_over && !renamed.is_empty() {
            dir_renames::make_whole(tree).map_err(failed)?;
            continue;
        }
        for Renamed { path, from } in renamed {
            let touches = |todo: &Todo| {
                let old = match &todo.change.what {
                    What::Renamed { from } => Some(from),
                    _ => None,
                };
                let mut paths = [Some(&todo.change.path), old].into_iter().flatten();
                paths.any(|path| dir_renames::touches(path, &from))
            };
            if todo.iter().any(touches) {
                let (path, from) = (path.into(), from.into());
                return Err(ApplyError::StillRead { path, from });
            }
        }
    }
    Ok(())
}

fn prepare_and_perform(
    home: &Home,
    draft: &Draft,
    journal: &mut Journal,
) -> Result<Vec<OsText>, ApplyError> {
    let journal_failed = |error| ApplyError::Journal { path: home.applying(), error };
    let trees: Vec<&TreeDraft> = draft.trees.iter().filter(|tree| !tree.todo.is_empty()).collect();
    let writers = LiveWriters::now(home).map_err(journal_failed)?;
    for draft in &trees {
        let note = &draft.tree.note;
        let root = draft.tree.lower();
        journal.trees.push(JournalTree {
            number: note.number,
            root: note.source.clone(),
            identity: Identity { device: note.device, inode: note.inode },
            staging: stage::staging_name().map_err(journal_failed)?,
            staged_in: staging_place::choose(home, root, &note.source, &writers)?,
        });
    }
    // What comes into the tree now is a run's work: nothing there decides about a run before it was checked.
    let roots: Vec<PathBuf> =
        trees.iter().map(|draft| draft.tree.note.source.as_path().to_owned()).collect();
    belljar_record::writable_trees::note(home, &roots).map_err(journal_failed)?;
    journal.write(home).map_err(journal_failed)?; // so that a staging directory is never forgotten
    let mut sites = Vec::new();
    let mut not_empty = Vec::new();
    for (at, draft) in trees.iter().enumerate() {
        let failed = |errno: Errno| ApplyError::Staging {
            root: draft.tree.note.source.clone(),
            error: errno.into(),
        };
        let root = draft.tree.lower().try_clone().map_err(|error| failed(error.errno()))?;
        let tree = &journal.trees[at];
        let staged_in = tree.open_staged_in(&root).map_err(|error| failed(error.errno()))?;
        let staging = stage::make_staging(&staged_in, &tree.staging);
        let staging = staging.map_err(|error| failed(error.errno()))?;
        let mut baseline = Baseline::open(&home.run_dir(&journal.run), draft.tree.note.number)?;
        let built = Builder::new(draft, &staging, &mut baseline).build()?;
        baseline.write()?;
        let Built { steps, rebase, staged, not_empty: full } = built;
        journal.steps.extend(steps.into_iter().map(|step| JournalStep { tree: at, step }));
        journal.rebase.extend(rebase.into_iter().map(|(path, to)| Rebase { tree: at, path, to }));
        not_empty.extend(full);
        // What was staged is on disk before anything can point to it.
        rustix::fs::syncfs(&staging).map_err(|errno| ApplyError::Sync(errno.into()))?;
        sites.push(Site { root, staging, staged });
    }
    journal.write(home).map_err(journal_failed)?;
    perform(&sites, journal)?;
    sync(&sites, journal).map_err(|errno| ApplyError::Sync(errno.into()))?;
    journal.commit(home).map_err(journal_failed)?;
    Ok(not_empty)
}

fn perform(sites: &[Site], journal: &Journal) -> Result<(), ApplyError> {
    for JournalStep { tree, step } in &journal.steps {
        let Some(site) = sites.get(*tree) else { continue };
        let path = || step.path().clone();
        let staged = step.staged().and_then(|number| site.staged.get(&number));
        let staged = staged.map(Vec::as_slice).unwrap_or_default();
        step.perform(&site.root, &site.staging, staged).map_err(|error| match error {
            StepError::StagedChanged => ApplyError::StagedChanged { path: path() },
            StepError::Changed => ApplyError::ChangedHere { path: path() },
            StepError::Call { doing, errno } => {
                ApplyError::Step { path: path(), doing, error: errno.into() }
            }
        })?;
    }
    Ok(())
}

/// Every directory in which something changed is on disk before the mark is.
fn sync(sites: &[Site], journal: &Journal) -> Result<(), Errno> {
    for (at, site) in sites.iter().enumerate() {
        fault::point();
        let steps = journal.steps.iter().filter(|step| step.tree == at);
        let parents: BTreeSet<PathBuf> = steps
            .filter_map(|step| step.step.path().as_path().parent().map(PathBuf::from))
            .collect();
        if parents.len() > MAX_SYNCED {
            rustix::fs::syncfs(&site.root)?;
            continue;
        }
        for parent in parents {
            match site.root.open_dir(&parent) {
                // Removed with the rest, perhaps with a file or a link in its place; where its new mode does not let it be
                // read, all is synced.
                Err(
                    OpenDirError::Missing { .. }
                    | OpenDirError::NotDirectory { .. }
                    | OpenDirError::Link { .. },
                ) => {}
                Err(OpenDirError::System { error: Errno::ACCESS, .. }) => {
                    rustix::fs::syncfs(&site.root)?;
                }
                directory => rustix::fs::fsync(directory?)?,
            }
        }
        rustix::fs::fsync(&site.staging)?;
    }
    Ok(())
}

//! Finishes an `apply` that was interrupted: everything is undone, or the rest is done.

use std::io;
use std::path::PathBuf;

use belljar_spec::{OsText, RunId};
use rustix::io::Errno;

use super::fault;
use super::journal::{ApplyLock, Journal, JournalTree, Phase};
use super::step::{self, Inside, Undone};
use crate::baseline;
use crate::fingerprint::Identity;
use crate::reviewed::unmark_reviewed;
use belljar_record::home::Home;
use belljar_tree::{Dir, FinalLink, OpenDirError, RemoveAllError};

#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    #[error("cannot read what an earlier apply of run {run} was doing, in {}", .path.display())]
    Journal {
        run: RunId,
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error(
        "an earlier apply of run {run} was interrupted, and the tree {root} is not there to undo it; \
         bring it back and run: belljar reconcile"
    )]
    TreeGone {
        run: RunId,
        root: OsText,
        #[source]
        error: io::Error,
    },
    #[error(
        "an earlier apply of run {run} was interrupted, and {root} is another directory by now"
    )]
    OtherTree { run: RunId, root: OsText },
    #[error(
        "an earlier apply of run {run} was interrupted, and could not be undone everywhere: {}; then run: belljar \
         reconcile", describe(.left)
    )]
    Left { run: RunId, left: Vec<LeftStep> },
    #[error(
        "an earlier apply of run {run} was interrupted, and {staging}, which held what was there before, is gone; not \
         as they were: {}; put them right, and remove {}", listed(.paths), .journal.display()
    )]
    StagingGone { run: RunId, staging: OsText, paths: Vec<OsText>, journal: PathBuf },
    #[error("an earlier apply of run {run} was interrupted, and undoing it failed at {path}")]
    Undo {
        run: RunId,
        path: OsText,
        #[source]
        error: io::Error,
    },
    #[error(transparent)]
    Tree(#[from] RemoveAllError),
}

/// A path that stays as it is.
#[derive(Debug)]
pub struct LeftStep {
    pub path: OsText,
    pub why: String,
    /// Where that lies which was there before, if anything was.
    pub before: Option<OsText>,
}

fn describe(left: &[LeftStep]) -> String {
    let steps = left.iter().map(|LeftStep { path, why, before }| match before {
        Some(before) => {
            format!("{path}: {why}, and what was there before is {before}; move it back")
        }
        None => format!("{path}: {why}; move it away"),
    });
    steps.collect::<Vec<_>>().join("; ")
}

fn listed(paths: &[OsText]) -> String {
    paths.iter().map(OsText::to_string).collect::<Vec<_>>().join(", ")
}

/// What there was to finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    Nothing,
    /// The trees are as they were before.
    Undone,
    /// It was done, and only not tidied up.
    Finished,
}

/// All runs. What another process is applying at this moment is left to it.
pub fn recover_all(home: &Home) -> Vec<Result<(RunId, Recovery), RecoverError>> {
    let runs = match Journal::runs(home) {
        Ok(runs) if runs.is_empty() => return Vec::new(),
        Ok(runs) => runs,
        Err(_) => return Vec::new(), // the home itself cannot be read, which is reported elsewhere
    };
    match ApplyLock::try_take(home) {
        Ok(Some(lock)) => {
            runs.into_iter().map(|run| Ok((run, recover(home, &run, &lock)?))).collect()
        }
        Ok(None) | Err(_) => Vec::new(),
    }
}

/// Called before the changes of a run are read: what an apply that was cut short has left is finished. Waits for
/// one that goes on.
pub fn settle(home: &Home, run: &RunId) -> Result<Recovery, RecoverError> {
    let failed = |error| RecoverError::Journal { run: *run, path: home.applying(), error };
    if !Journal::runs(home).map_err(failed)?.contains(run) {
        return Ok(Recovery::Nothing);
    }
    let lock = ApplyLock::take(home).map_err(failed)?;
    recover(home, run, &lock)
}

/// One run. Nothing else may be done with its changes before this has succeeded.
pub(crate) fn recover(
    home: &Home,
    run: &RunId,
    _lock: &ApplyLock,
) -> Result<Recovery, RecoverError> {
    let failed = |error| RecoverError::Journal { run: *run, path: home.applying(), error };
    let Some((journal, phase)) = Journal::read(home, run).map_err(failed)? else {
        Journal::remove(home, run).map_err(failed)?; // a draft at most
        return Ok(Recovery::Nothing);
    };
    match phase {
        Phase::Open => {
            roll_back(home, &journal)?;
            Ok(Recovery::Undone)
        }
        Phase::Committed => {
            finish(home, &journal)?;
            Ok(Recovery::Finished)
        }
    }
}

/// Undoes every step that was done, last first, and takes the staging directories away. What cannot be undone stays,
/// and keeps no other step from it.
pub(super) fn roll_back(home: &Home, journal: &Journal) -> Result<(), RecoverError> {
    let run = journal.run;
    let roots = open_roots(journal)?;
    unmark_reviewed(&home.run_dir(&run)).map_err(|error| RecoverError::Journal {
        run,
        path: home.run_dir(&run),
        error,
    })?;
    let mut left = Vec::new();
    let mut lost: Vec<(usize, OsText)> = Vec::new();
    let inside = Inside::of(journal);
    for step in journal.steps.iter().rev() {
        let Some(root) = roots.get(step.tree) else { continue };
        let path = step.step.path().clone();
        let Some(staging) = &root.staging else {
            if !step.step.is_undone(&root.root).unwrap_or(false) {
                lost.push((step.tree, path));
            }
            continue;
        };
        let known = inside.below(step.tree, step.step.path());
        let why = match step.step.undo(&root.root, staging, known) {
            Ok(Undone::Yes) => continue,
            Ok(Undone::Left { why }) => why,
            Err(errno) => io::Error::from(errno).to_string(),
        };
        let before = step
            .step
            .keeps()
            .map(|number| OsText::from(root.tree.staging_path().join(step::name(number))));
        left.push(LeftStep { path, why, before });
    }
    if let Some((tree, _)) = lost.first() {
        let tree = &journal.trees[*tree];
        let staging = OsText::from(tree.staging_path());
        let paths = lost.into_iter().map(|(_, path)| path).collect();
        return Err(RecoverError::StagingGone { run, staging, paths, journal: journal.path(home) });
    }
    if !left.is_empty() {
        return Err(RecoverError::Left { run, left });
    }
    // What was put back is on disk before its journal is removed.
    for root in &roots {
        rustix::fs::syncfs(&root.root).map_err(|errno| RecoverError::Undo {
            run,
            path: root.tree.root.clone(),
            error: errno.into(),
        })?;
        baseline::refresh(home, journal, root.tree.number, &root.root);
    }
    // From here on what was staged is not needed.
    let undone = Journal { steps: Vec::new(), rebase: Vec::new(), ..journal.clone() };
    undone.write(home).map_err(|error| RecoverError::Journal {
        run,
        path: home.applying(),
        error,
    })?;
    tidy_up(home, journal, &roots)
}

/// After the commit: nothing can fail any more that would matter to the trees.
pub(super) fn finish(home: &Home, journal: &Journal) -> Result<(), RecoverError> {
    let roots = match open_roots(journal) {
        Ok(roots) => roots,
        // It is done, and the tree has gone since: so has its staging directory.
        Err(RecoverError::TreeGone { .. } | RecoverError::OtherTree { .. }) => Vec::new(),
        Err(error) => return Err(error),
    };
    for root in &roots {
        baseline::rebase(home, journal, root.tree.number, &root.root);
        fault::point();
    }
    tidy_up(home, journal, &roots)
}

fn tidy_up(home: &Home, journal: &Journal, roots: &[Root<'_>]) -> Result<(), RecoverError> {
    for root in roots {
        fault::point();
        match root.tree.open_staged_in(&root.root) {
            Ok(staged_in) => remove_staging(&staged_in, root.tree)?,
            // The directory that held it is gone, and so is what was in it.
            Err(_) => continue,
        }
    }
    Journal::remove(home, &journal.run).map_err(|error| RecoverError::Journal {
        run: journal.run,
        path: home.applying(),
        error,
    })
}

/// By way of the open root: its path may lead elsewhere by now.
fn remove_staging(staged_in: &Dir, tree: &JournalTree) -> Result<(), RemoveAllError> {
    staged_in.remove_all(&tree.staging).map_err(|error| match error {
        RemoveAllError::Entry { action, name, error, .. } => {
            RemoveAllError::Entry { path: tree.staging_path(), action, name, error }
        }
        other => other,
    })
}

struct Root<'a> {
    tree: &'a JournalTree,
    root: Dir,
    staging: Option<Dir>,
}

fn open_roots(journal: &Journal) -> Result<Vec<Root<'_>>, RecoverError> {
    let run = journal.run;
    let open = |tree: &'_ JournalTree| {
        let gone = |error: Errno| RecoverError::TreeGone {
            run,
            root: tree.root.clone(),
            error: error.into(),
        };
        let root = open_root(&tree.root).map_err(|error| gone(error.errno()))?;
        let found = root.stat("").map_err(|error| gone(error.errno()))?;
        if Identity::of(&found) != tree.identity {
            return Err(RecoverError::OtherTree { run, root: tree.root.clone() });
        }
        let staged_in = match tree.open_staged_in(&root) {
            Err(OpenDirError::Missing { .. }) => return Ok((root, None)),
            staged_in => staged_in.map_err(|error| gone(error.errno()))?,
        };
        let staging = match staged_in.open_dir(&tree.staging) {
            Err(OpenDirError::Missing { .. }) => None,
            staging => Some(staging.map_err(|error| gone(error.errno()))?),
        };
        Ok((root, staging))
    };
    let mut roots = Vec::new();
    for tree in &journal.trees {
        let (root, staging) = open(tree)?;
        roots.push(Root { tree, root, staging });
    }
    Ok(roots)
}

/// The path was resolved when the run was bound, so a link in it leads somewhere else now.
pub(super) fn open_root(path: &OsText) -> Result<Dir, OpenDirError> {
    Dir::open(path.as_path(), FinalLink::Follow)
}

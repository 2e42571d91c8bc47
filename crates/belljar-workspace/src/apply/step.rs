//! Performs and undoes one change of a real tree.
//!
//! Each is a single rename or a change of mode. What it finds is looked at before and after: between a look and
//! a rename another process may have put another file there, and then all is undone.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use belljar_spec::OsText;
use belljar_tree::{Dir, Metadata, OpenDirError, RenameError, RenameMode};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::super::fingerprint::{Fingerprint, Identity};
use super::fault;
use super::journal::{Journal, Rebase, RebaseTo};
use super::staged::{Staged, has_come};

/// Paths are relative to the tree's root, `staged` names are entries of the staging directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Step {
    /// What was staged goes to where nothing is.
    Create {
        path: OsText,
        staged: u32,
        new: Fingerprint,
    },
    /// What was staged and what is there change places.
    Replace {
        path: OsText,
        staged: u32,
        old: Old,
        new: Fingerprint,
    },
    /// What is there goes into the staging directory.
    Remove {
        path: OsText,
        staged: u32,
        old: Old,
    },
    Mode {
        path: OsText,
        of: Identity,
        old: u32,
        new: u32,
    },
}

/// What the tree has to hold for a step to be the one that was meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum Old {
    /// A file or a link with that content.
    Content { seen: Fingerprint },
    /// A directory, empty by then.
    Directory { seen: Identity },
}

impl Old {
    fn is_there(&self, found: &Metadata) -> bool {
        match self {
            Self::Content { seen } => *seen == Fingerprint::of(found),
            Self::Directory { seen } => *seen == Identity::of(found),
        }
    }

    /// It may have been away.
    fn is_back(&self, found: &Metadata) -> bool {
        match self {
            Self::Content { seen } => seen.is_same_content(&Fingerprint::of(found)),
            Self::Directory { seen } => *seen == Identity::of(found),
        }
    }

    /// Once it has been moved.
    fn has_come(&self, staging: &Dir, staged: u32) -> Result<bool, Errno> {
        let found = staging.stat(name(staged))?;
        match self {
            Self::Content { seen } => Ok(seen.is_same_content(&Fingerprint::of(&found))),
            Self::Directory { seen } => {
                Ok(*seen == Identity::of(&found) && staging.is_empty(name(staged))?)
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    /// Another process changed it.
    #[error("another process changed it during the apply")]
    Changed,
    /// What came is not what was staged; it was taken back.
    #[error("the staged copy was changed before it was moved into place")]
    StagedChanged,
    #[error("{doing}")]
    Call {
        doing: &'static str,
        #[source]
        errno: Errno,
    },
}

fn call<E: Into<Errno>>(doing: &'static str) -> impl Fn(E) -> StepError {
    move |error| StepError::Call { doing, errno: error.into() }
}

/// What an attempt to undo came to.
#[derive(Debug)]
pub(crate) enum Undone {
    Yes,
    /// It is not as it was left, and stays so.
    Left {
        why: String,
    },
}

impl Step {
    pub(crate) fn path(&self) -> &OsText {
        match self {
            Self::Create { path, .. }
            | Self::Replace { path, .. }
            | Self::Remove { path, .. }
            | Self::Mode { path, .. } => path,
        }
    }

    /// The name of what it puts into the tree.
    pub(super) fn staged(&self) -> Option<u32> {
        match self {
            Self::Create { staged, .. } | Self::Replace { staged, .. } => Some(*staged),
            Self::Remove { .. } | Self::Mode { .. } => None,
        }
    }

    /// Whether that is what the tree had to hold for this step.
    pub(crate) fn expected(&self, print: &Fingerprint) -> bool {
        match self {
            Self::Replace { old: Old::Content { seen }, .. }
            | Self::Remove { old: Old::Content { seen }, .. } => seen == print,
            Self::Mode { of, .. } => *of == print.identity,
            Self::Create { .. } | Self::Replace { .. } | Self::Remove { .. } => false,
        }
    }

    pub(super) fn perform(
        &self,
        root: &Dir,
        staging: &Dir,
        contents: &[Staged],
    ) -> Result<(), StepError> {
        fault::point();
        if let Self::Mode { path, of, old, new } = self {
            let entry = root.pin(path.as_path()).map_err(call("looking at it failed"))?;
            if Identity::of(entry.metadata()) != *of || entry.metadata().mode() != *old {
                return Err(StepError::Changed);
            }
            return entry.set_mode(*new).map_err(call("changing its mode failed"));
        }
        let (parent, last) = match parent_of(root, self.path()) {
            Err(error) if error.is_missing() => return Err(StepError::Changed),
            parent => parent.map_err(call("looking at it failed"))?,
        };
        let find = || match parent.stat(last) {
            Err(error) if error.is_missing() => Err(StepError::Changed),
            found => found.map_err(call("looking at it failed")),
        };
        match self {
            Self::Create { staged, .. } => {
                match staging.rename(name(*staged), &parent, last, NEW) {
                    Err(RenameError::Exists { .. }) => return Err(StepError::Changed),
                    moved => moved.map_err(call("putting it there failed"))?,
                }
                fault::point();
                if has_come(&parent, last, contents) != Ok(true) {
                    parent
                        .rename(last, staging, name(*staged), NEW)
                        .map_err(call("taking it back failed"))?;
                    return Err(StepError::StagedChanged);
                }
                Ok(())
            }
            Self::Replace { staged, old, .. } => {
                if !old.is_there(&find()?) {
                    return Err(StepError::Changed);
                }
                let exchange =
                    || staging.rename(name(*staged), &parent, last, RenameMode::Exchange);
                match exchange() {
                    Err(RenameError::Missing { .. }) => return Err(StepError::Changed),
                    swapped => swapped.map_err(call("replacing it failed"))?,
                }
                fault::point();
                confirm(old, staging, *staged)?;
                if has_come(&parent, last, contents) != Ok(true) {
                    exchange().map_err(call("taking it back failed"))?;
                    return Err(StepError::StagedChanged);
                }
                Ok(())
            }
            Self::Remove { staged, old, .. } => {
                if !old.is_there(&find()?) {
                    return Err(StepError::Changed);
                }
                match parent.rename(last, staging, name(*staged), NEW) {
                    Err(RenameError::Missing { .. }) => return Err(StepError::Changed),
                    moved => moved.map_err(call("removing it failed"))?,
                }
                fault::point();
                confirm(old, staging, *staged)
            }
            Self::Mode { .. } => Ok(()), // done above
        }
    }

    /// The name of what it takes out of the tree.
    pub(super) fn keeps(&self) -> Option<u32> {
        match self {
            Self::Replace { staged, .. } | Self::Remove { staged, .. } => Some(*staged),
            Self::Create { .. } | Self::Mode { .. } => None,
        }
    }

    /// Whether the tree shows what was there before, where nothing else shows it.
    pub(super) fn is_undone(&self, root: &Dir) -> Result<bool, Errno> {
        let there = root.stat_if_exists(self.path().as_path());
        Ok(match self {
            Self::Create { new, .. } => {
                there?.is_none_or(|there| Identity::of(&there) != new.identity)
            }
            Self::Replace { old, .. } | Self::Remove { old, .. } => {
                there?.is_some_and(|there| old.is_back(&there))
            }
            Self::Mode { path, of, old, new } => {
                matches!(undo_mode(root, path, *of, (*old, *new))?, Undone::Yes)
            }
        })
    }

    /// Puts back what was there, however far the step had come. As often as one likes.
    pub(super) fn undo(
        &self,
        root: &Dir,
        staging: &Dir,
        inside: KnownPrints<'_>,
    ) -> Result<Undone, Errno> {
        fault::point();
        if let Self::Mode { path, of, old, new } = self {
            return undo_mode(root, path, *of, (*old, *new));
        }
        let in_staging = |staged: u32| staging.stat_if_exists(name(staged));
        let (parent, last) = match parent_of(root, self.path()) {
            Err(error) if error.is_missing() => {
                // The directory is gone: there is something to put back only where something was taken.
                let taken = match self {
                    Self::Remove { staged, .. } => in_staging(*staged)?.is_some(),
                    Self::Create { .. } | Self::Mode { .. } => false,
                    Self::Replace { staged, new, .. } => in_staging(*staged)?
                        .is_some_and(|found| Identity::of(&found) != new.identity),
                };
                return Ok(match taken {
                    true => Undone::Left { why: "its directory is not there any more".to_owned() },
                    false => Undone::Yes,
                });
            }
            parent => parent?,
        };
        let there = parent.stat_if_exists(last)?;
        match self {
            Self::Create { staged, new, .. } => {
                let Some(there) = there.filter(|there| Identity::of(there) == new.identity) else {
                    return Ok(Undone::Yes); // it never came here, or is another process's by now
                };
                if !new.is_same_content(&Fingerprint::of(&there))
                    || there.is_dir() && !is_as_staged(&parent, last, inside)?
                {
                    return Ok(Undone::Left { why: "it was changed since".to_owned() });
                }
                parent.rename(last, staging, name(*staged), NEW)?;
            }
            Self::Replace { staged, new, old, .. } => {
                let Some(was) = in_staging(*staged)? else { return Ok(Undone::Yes) };
                if Identity::of(&was) == new.identity {
                    return Ok(Undone::Yes); // not done, or undone
                }
                match there {
                    // Not done, and what was staged is not what it was.
                    Some(there) if old.is_back(&there) => {}
                    Some(there)
                        if new.is_same_content(&Fingerprint::of(&there))
                            && (!there.is_dir() || is_as_staged(&parent, last, inside)?) =>
                    {
                        staging.rename(name(*staged), &parent, last, RenameMode::Exchange)?;
                    }
                    None => staging.rename(name(*staged), &parent, last, NEW)?,
                    Some(_) => {
                        return Ok(Undone::Left { why: "it was changed since".to_owned() });
                    }
                }
            }
            Self::Remove { staged, .. } => {
                if in_staging(*staged)?.is_none() {
                    return Ok(Undone::Yes);
                }
                match staging.rename(name(*staged), &parent, last, NEW) {
                    Err(RenameError::Exists { .. }) => {
                        return Ok(Undone::Left { why: "something else is there now".to_owned() });
                    }
                    moved => moved?,
                }
            }
            Self::Mode { .. } => {} // done above
        }
        Ok(Undone::Yes)
    }
}

/// What was staged inside new directories, by tree and path.
pub(super) struct Inside<'a>(BTreeMap<(usize, &'a Path), Fingerprint>);

/// What of it lies below one path.
pub(super) struct KnownPrints<'a> {
    root: PathBuf,
    prints: HashMap<&'a Path, Fingerprint>,
}

impl<'a> Inside<'a> {
    pub(super) fn of(journal: &'a Journal) -> Self {
        let prints = journal.rebase.iter().filter_map(|Rebase { tree, path, to }| match to {
            RebaseTo::Tree { new: Some(new) } => Some(((*tree, path.as_path()), *new)),
            RebaseTo::Tree { new: None } | RebaseTo::Part { .. } | RebaseTo::Kept { .. } => None,
        });
        Self(prints.collect())
    }

    pub(super) fn below(&self, tree: usize, path: &'a OsText) -> KnownPrints<'a> {
        let root = path.as_path();
        let after = self.0.range((tree, root)..).map(|((at, path), print)| (*at, *path, *print));
        let below = after.take_while(|(at, path, _)| *at == tree && path.starts_with(root));
        let prints = below.skip_while(|(_, path, _)| *path == root);
        let prints = prints.map(|(_, path, print)| (path, print)).collect();
        KnownPrints { root: root.to_owned(), prints }
    }
}

/// Whether a directory holds what was staged in it, untouched, and nothing else.
fn is_as_staged(parent: &Dir, name: &OsStr, known: KnownPrints<'_>) -> Result<bool, Errno> {
    let mut found = 0;
    let mut pending = vec![PathBuf::new()];
    while let Some(path) = pending.pop() {
        let directory = match parent.open_dir(Path::new(name).join(&path)) {
            // Others could not do anything in it, either.
            Err(OpenDirError::System { error: Errno::ACCESS, .. }) => return Ok(true),
            directory => directory?,
        };
        for entry in directory.entries("")? {
            let name = entry?.name;
            let stat = directory.stat(&name)?;
            let path = path.join(name);
            if known.prints.get(known.root.join(&path).as_path()) != Some(&Fingerprint::of(&stat)) {
                return Ok(false);
            }
            found += 1;
            if stat.is_dir() {
                pending.push(path);
            }
        }
    }
    Ok(found == known.prints.len())
}

const NEW: RenameMode = RenameMode::NoReplace;

/// The directory that holds an entry, and its name there.
fn parent_of<'a>(root: &Dir, path: &'a OsText) -> Result<(Dir, &'a OsStr), OpenDirError> {
    let path = path.as_path();
    let no_name = || belljar_tree::PathError::NoName { path: path.to_owned() };
    let name = path.file_name().ok_or_else(no_name)?;
    Ok((root.open_dir(path.parent().unwrap_or(Path::new("")))?, name))
}

pub(super) fn name(staged: u32) -> String {
    staged.to_string()
}

fn confirm(old: &Old, staging: &Dir, staged: u32) -> Result<(), StepError> {
    match old.has_come(staging, staged).map_err(call("looking at what it replaced failed"))? {
        true => Ok(()),
        false => Err(StepError::Changed),
    }
}

fn undo_mode(
    root: &Dir,
    path: &OsText,
    of: Identity,
    (old, new): (u32, u32),
) -> Result<Undone, Errno> {
    let entry = match root.pin(path.as_path()) {
        Err(error) if error.is_missing() => return Ok(Undone::Yes),
        entry => entry?,
    };
    if Identity::of(entry.metadata()) == of && entry.metadata().mode() == new {
        entry.set_mode(old)?;
    }
    Ok(Undone::Yes)
}

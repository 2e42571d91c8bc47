//! One change of a real tree, done and undone.
//!
//! Each is a single rename or a change of mode. What it finds is looked at before and after: between a look and
//! a rename somebody else may have put another file there, and then all is undone.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar_spec::OsText;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, Stat, renameat_with, statat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::super::beneath;
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
    fn is_there(&self, found: &Stat) -> bool {
        match self {
            Self::Content { seen } => *seen == Fingerprint::of(found),
            Self::Directory { seen } => *seen == Identity::of(found),
        }
    }

    /// It may have been away.
    fn is_back(&self, found: &Stat) -> bool {
        match self {
            Self::Content { seen } => seen.is_same_content(&Fingerprint::of(found)),
            Self::Directory { seen } => *seen == Identity::of(found),
        }
    }

    /// Once it has been moved.
    fn has_come(&self, staging: BorrowedFd<'_>, staged: u32) -> Result<bool, Errno> {
        let found = statat(staging, name(staged), AtFlags::SYMLINK_NOFOLLOW)?;
        match self {
            Self::Content { seen } => Ok(seen.is_same_content(&Fingerprint::of(&found))),
            Self::Directory { seen } => {
                Ok(*seen == Identity::of(&found) && is_empty(staging, staged)?)
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    /// Somebody else was at work.
    #[error("it was changed while this was applied")]
    Changed,
    /// What came is not what was staged; it was taken back.
    #[error("what was staged was changed before it was put there")]
    StagedChanged,
    #[error("{doing}")]
    Call {
        doing: &'static str,
        #[source]
        errno: Errno,
    },
}

fn call(doing: &'static str) -> impl Fn(Errno) -> StepError {
    move |errno| StepError::Call { doing, errno }
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
        root: BorrowedFd<'_>,
        staging: BorrowedFd<'_>,
        contents: &[Staged],
    ) -> Result<(), StepError> {
        fault::point();
        let looking = call("looking at it failed");
        if let Self::Mode { path, of, old, new } = self {
            let entry = entry(root, path).map_err(looking)?;
            let found = rustix::fs::fstat(&entry).map_err(call("looking at it failed"))?;
            if Identity::of(&found) != *of || found.st_mode & 0o7777 != *old {
                return Err(StepError::Changed);
            }
            return set_mode(entry.as_fd(), *new).map_err(call("changing its mode failed"));
        }
        let (parent, last) = match beneath::parent(root, self.path().as_path()) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Err(StepError::Changed),
            parent => parent.map_err(&looking)?,
        };
        let find = || match statat(&parent, last, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Err(StepError::Changed),
            found => found.map_err(call("looking at it failed")),
        };
        match self {
            Self::Create { staged, .. } => {
                let moved = renameat_with(staging, name(*staged), &parent, last, NEW);
                match moved {
                    Err(Errno::EXIST) => return Err(StepError::Changed),
                    moved => moved.map_err(call("putting it there failed"))?,
                }
                fault::point();
                if has_come(parent.as_fd(), last, contents) != Ok(true) {
                    renameat_with(&parent, last, staging, name(*staged), NEW)
                        .map_err(call("taking it back failed"))?;
                    return Err(StepError::StagedChanged);
                }
                Ok(())
            }
            Self::Replace { staged, old, .. } => {
                if !old.is_there(&find()?) {
                    return Err(StepError::Changed);
                }
                let both = RenameFlags::EXCHANGE;
                match renameat_with(staging, name(*staged), &parent, last, both) {
                    Err(Errno::NOENT) => return Err(StepError::Changed),
                    swapped => swapped.map_err(call("replacing it failed"))?,
                }
                fault::point();
                confirm(old, staging, *staged)?;
                if has_come(parent.as_fd(), last, contents) != Ok(true) {
                    renameat_with(staging, name(*staged), &parent, last, both)
                        .map_err(call("taking it back failed"))?;
                    return Err(StepError::StagedChanged);
                }
                Ok(())
            }
            Self::Remove { staged, old, .. } => {
                if !old.is_there(&find()?) {
                    return Err(StepError::Changed);
                }
                match renameat_with(&parent, last, staging, name(*staged), NEW) {
                    Err(Errno::NOENT) => return Err(StepError::Changed),
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

    /// Whether the tree shows what was there before, where nothing else can tell.
    pub(super) fn is_undone(&self, root: BorrowedFd<'_>) -> Result<bool, Errno> {
        let there = beneath::look(root, self.path().as_path());
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
        root: BorrowedFd<'_>,
        staging: BorrowedFd<'_>,
        inside: Known<'_>,
    ) -> Result<Undone, Errno> {
        fault::point();
        if let Self::Mode { path, of, old, new } = self {
            return undo_mode(root, path, *of, (*old, *new));
        }
        let in_staging = |staged: u32| match statat(staging, name(staged), NO_FOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            found => found.map(Some),
        };
        let (parent, last) = match beneath::parent(root, self.path().as_path()) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
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
        let there = match statat(&parent, last, NO_FOLLOW) {
            Err(Errno::NOENT) => None,
            found => Some(found?),
        };
        match self {
            Self::Create { staged, new, .. } => {
                let Some(there) = there.filter(|there| Identity::of(there) == new.identity) else {
                    return Ok(Undone::Yes); // it never came here, or is somebody else's by now
                };
                if !new.is_same_content(&Fingerprint::of(&there))
                    || is_directory(&there) && !is_as_staged(parent.as_fd(), last, inside)?
                {
                    return Ok(Undone::Left { why: "it was changed since".to_owned() });
                }
                renameat_with(&parent, last, staging, name(*staged), NEW)?;
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
                            && (!is_directory(&there)
                                || is_as_staged(parent.as_fd(), last, inside)?) =>
                    {
                        let both = RenameFlags::EXCHANGE;
                        renameat_with(staging, name(*staged), &parent, last, both)?;
                    }
                    None => renameat_with(staging, name(*staged), &parent, last, NEW)?,
                    Some(_) => {
                        return Ok(Undone::Left { why: "it was changed since".to_owned() });
                    }
                }
            }
            Self::Remove { staged, .. } => {
                if in_staging(*staged)?.is_none() {
                    return Ok(Undone::Yes);
                }
                match renameat_with(staging, name(*staged), &parent, last, NEW) {
                    Err(Errno::EXIST) => {
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
pub(super) struct Known<'a> {
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

    pub(super) fn below(&self, tree: usize, path: &'a OsText) -> Known<'a> {
        let root = path.as_path();
        let after = self.0.range((tree, root)..).map(|((at, path), print)| (*at, *path, *print));
        let below = after.take_while(|(at, path, _)| *at == tree && path.starts_with(root));
        let prints = below.skip_while(|(_, path, _)| *path == root);
        let prints = prints.map(|(_, path, print)| (path, print)).collect();
        Known { root: root.to_owned(), prints }
    }
}

/// Whether a directory holds what was staged in it, untouched, and nothing else.
fn is_as_staged(parent: BorrowedFd<'_>, name: &OsStr, known: Known<'_>) -> Result<bool, Errno> {
    let mut found = 0;
    let mut pending = vec![PathBuf::new()];
    while let Some(path) = pending.pop() {
        let directory = match beneath::directory(parent, &Path::new(name).join(&path)) {
            Err(Errno::ACCESS) => return Ok(true), // nobody could do anything in it, either
            directory => directory?,
        };
        let mut entries = Dir::read_from(&directory)?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let stat = statat(&directory, name, NO_FOLLOW)?;
            let path = path.join(name);
            if known.prints.get(known.root.join(&path).as_path()) != Some(&Fingerprint::of(&stat)) {
                return Ok(false);
            }
            found += 1;
            if is_directory(&stat) {
                pending.push(path);
            }
        }
    }
    Ok(found == known.prints.len())
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

const NEW: RenameFlags = RenameFlags::NOREPLACE;
const NO_FOLLOW: AtFlags = AtFlags::SYMLINK_NOFOLLOW;

pub(super) fn name(staged: u32) -> String {
    staged.to_string()
}

fn confirm(old: &Old, staging: BorrowedFd<'_>, staged: u32) -> Result<(), StepError> {
    match old.has_come(staging, staged).map_err(call("looking at what it replaced failed"))? {
        true => Ok(()),
        false => Err(StepError::Changed),
    }
}

fn is_empty(at: BorrowedFd<'_>, staged: u32) -> Result<bool, Errno> {
    let mut entries = Dir::new(beneath::directory(at, name(staged).as_ref())?)?;
    while let Some(entry) = entries.read() {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The entry itself, whatever its mode forbids.
fn entry(root: BorrowedFd<'_>, path: &OsText) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if path.as_bytes().is_empty() {
        return rustix::fs::openat(root, ".", flags, Mode::empty());
    }
    let (parent, last) = beneath::parent(root, path.as_path())?;
    rustix::fs::openat(parent, last, flags, Mode::empty())
}

/// A descriptor made with O_PATH has no fchmod; its entry in /proc leads to exactly this inode.
fn set_mode(entry: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    rustix::fs::chmod(format!("/proc/self/fd/{}", entry.as_raw_fd()), Mode::from_raw_mode(mode))
}

fn undo_mode(
    root: BorrowedFd<'_>,
    path: &OsText,
    of: Identity,
    (old, new): (u32, u32),
) -> Result<Undone, Errno> {
    let entry = match entry(root, path) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Undone::Yes),
        entry => entry?,
    };
    let found = rustix::fs::fstat(&entry)?;
    if Identity::of(&found) == of && found.st_mode & 0o7777 == new {
        set_mode(entry.as_fd(), old)?;
    }
    Ok(Undone::Yes)
}

//! Finds, lists and removes the checkpoints of a run.

use std::path::{Path, PathBuf};

use super::pin::pin_alone;
use super::{CHECKPOINTS, CheckpointError};
use belljar_tree::{Dir, FinalLink, remove_all};

/// How the name of one ends that is being made.
pub(super) const DRAFT: &str = "new";
/// And of one that is being removed: a part of it must not be taken for the whole.
const GOING: &str = "old";

/// Where the data of one are.
pub fn path(directory: &Path, iteration: u32) -> PathBuf {
    directory.join(CHECKPOINTS).join(format!("{iteration:06}"))
}

/// All but the newest `keep` go. What cannot be removed, or is being read, stays for the next time.
pub fn prune(directory: &Path, keep: u32) {
    let all = directory.join(CHECKPOINTS);
    let _ = remove_leftovers(&all);
    let complete = complete(directory);
    let going = complete.len().saturating_sub(usize::try_from(keep).unwrap_or(usize::MAX));
    for number in complete.into_iter().take(going) {
        let _ = remove(&path(directory, number));
    }
}

pub(super) fn newest_before(directory: &Path, iteration: u32) -> Option<PathBuf> {
    let earlier = numbers(&directory.join(CHECKPOINTS)).into_iter().filter(|it| *it < iteration);
    earlier.max().map(|number| path(directory, number))
}

/// Those of a run that are whole, the oldest first.
pub(super) fn complete(directory: &Path) -> Vec<u32> {
    let mut complete = numbers(&directory.join(CHECKPOINTS));
    complete.sort_unstable();
    complete
}

/// Whether a run could be gone on with.
pub fn has_any(directory: &Path) -> bool {
    !numbers(&directory.join(CHECKPOINTS)).is_empty()
}

fn numbers(all: &Path) -> Vec<u32> {
    names(all).iter().filter_map(|name| name.to_str()?.parse().ok()).collect()
}

fn names(all: &Path) -> Vec<std::ffi::OsString> {
    let entries = std::fs::read_dir(all).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).collect()
}

/// What a crash left: none of it ever counted.
pub(super) fn remove_leftovers(all: &Path) -> Result<(), CheckpointError> {
    for name in names(all) {
        let path = all.join(name);
        if path.extension().is_some_and(|end| end == DRAFT || end == GOING) {
            let error = |error| CheckpointError::Remove { path: path.clone(), error };
            remove_all(&path).map_err(error)?;
        }
    }
    Ok(())
}

/// What is not there is removed already. What is being read is not removed.
pub(super) fn remove(checkpoint: &Path) -> Result<(), CheckpointError> {
    let Some(alone) = pin_alone(checkpoint)? else { return Ok(()) };
    let going = checkpoint.with_extension(GOING);
    match std::fs::rename(checkpoint, &going) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        moved => {
            moved.map_err(|error| CheckpointError::Take { path: checkpoint.to_owned(), error })?
        }
    }
    drop(alone); // it is not found under its name any more, and its remover has a lock of its own
    remove_all(&going).map_err(|error| CheckpointError::Remove { path: going.clone(), error })
}

/// Everything that its file system holds.
pub(super) fn sync(path: &Path) -> std::io::Result<()> {
    Ok(rustix::fs::syncfs(Dir::open(path, FinalLink::Follow)?)?)
}

//! The trash: trees that are being removed.
//!
//! A removal first moves the tree here, then updates the ledger, then removes the tree. Wherever that was cut
//! short, [`empty`] finishes it. A whole run lies here as `<id>`, a part of one as `<id>-<part>`; where
//! that is taken, a number follows.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use belljar_spec::RunId;
use rustix::io::Errno;

use crate::ballast;
use crate::home::Home;
use crate::ledger::{Ledger, LedgerError};
use belljar_tree::{Access, Dir, FinalLink, RemoveAllError, RenameError, RenameMode, remove_all};

/// What goes when a sandbox is no longer kept; the record stays.
pub const PARTS: &[&str] = &["home", "upper", "base", "checkpoints"];

/// Leftovers of removals that were cut short; more than these are a sign of something else.
const MAX_OF_ONE_NAME: u32 = 1000;

#[derive(Debug, thiserror::Error)]
pub enum TrashError {
    #[error("cannot move {} to the trash", .path.display())]
    Move {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("cannot read the trash {}", .path.display())]
    Read {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Tree(#[from] RemoveAllError),
}

/// Finishes every removal that was cut short, and returns how many. Continues after a failure, and returns the first.
pub fn empty(home: &Home) -> Result<usize, TrashError> {
    let trash = home.trash();
    let failed = |error| TrashError::Read { path: trash.clone(), error };
    let mut finished = 0;
    let mut first_failure = None;
    let mut ledger = None;
    for entry in std::fs::read_dir(&trash).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // The room first: updating the ledger may need some. What is left of it shows what to update.
        let done = ballast::empty_directory(&entry.path())
            .map_err(TrashError::from)
            .and_then(|()| update_ledger(home, &mut ledger, &entry.file_name()))
            .and_then(|()| Ok(remove_all(entry.path())?));
        match done {
            Ok(()) => finished += 1,
            // A later command updates it.
            Err(TrashError::Ledger(error)) if error.is_no_space() => {}
            Err(error) => {
                first_failure.get_or_insert(error);
            }
        }
    }
    first_failure.map_or(Ok(finished), Err)
}

/// The removal may have been cut short before the ledger knew of it.
fn update_ledger(
    home: &Home,
    ledger: &mut Option<Ledger>,
    name: &std::ffi::OsStr,
) -> Result<(), TrashError> {
    let Some((id, rest)) = name.to_str().and_then(|name| name.split_at_checked(16)) else {
        return Ok(());
    };
    let Ok(id) = id.parse::<RunId>() else { return Ok(()) };
    let ledger = match ledger {
        Some(ledger) => ledger,
        None => ledger.insert(Ledger::open(home)?),
    };
    if rest.starts_with('-') {
        // Changes that were discarded leave the rest of the sandbox where it is.
        if std::fs::symlink_metadata(home.run_dir(&id).join("home")).is_err() {
            ledger.set_sandbox_gone(&id)?;
        }
    } else if std::fs::symlink_metadata(home.run_dir(&id)).is_err() {
        ledger.remove(&[id])?;
    }
    Ok(())
}

/// Whole runs that are on their way out: the ledger may not know of it yet.
pub(crate) fn removed(home: &Home) -> BTreeSet<RunId> {
    let entries = std::fs::read_dir(home.trash()).into_iter().flatten().flatten();
    let id = |name: std::ffi::OsString| name.to_str()?.split('.').next()?.parse::<RunId>().ok();
    let ids = entries.filter_map(|entry| id(entry.file_name()));
    ids.filter(|id| std::fs::symlink_metadata(home.run_dir(id)).is_err()).collect()
}

/// Frees the room of what was moved here, updates the ledger, and only then removes the last of it. If the ledger cannot
/// be updated for want of room, a later command does it by what is left here.
pub fn finish(
    home: &Home,
    moved: &[PathBuf],
    mut update: impl FnMut(&mut Ledger) -> Result<(), LedgerError>,
) -> Result<(), TrashError> {
    for path in moved {
        ballast::empty_directory(path)?;
    }
    // Not with the room that is kept for the end of a live run: this can wait.
    match Ledger::open(home).and_then(|mut ledger| update(&mut ledger)) {
        Err(error) if error.is_no_space() && !moved.is_empty() => return Ok(()),
        updated => updated?,
    }
    for path in moved {
        remove_all(path)?;
    }
    Ok(())
}

/// Moves a whole run here. `None`: it had no directory.
pub fn take_run(home: &Home, id: &RunId) -> Result<Option<PathBuf>, TrashError> {
    take(home, home.run_dir(id), id.as_str())
}

/// Moves a part of a run here, if it has it.
pub fn take_part(home: &Home, id: &RunId, part: &str) -> Result<Option<PathBuf>, TrashError> {
    take(home, home.run_dir(id).join(part), &format!("{id}-{part}"))
}

fn take(home: &Home, path: PathBuf, name: &str) -> Result<Option<PathBuf>, TrashError> {
    let failed = |error: Errno| TrashError::Move { path: path.clone(), error: error.into() };
    let trash = home.trash();
    let open = |path: &Path| Dir::open_for(path, FinalLink::Follow, Access::Lookup);
    let (Some(above), Some(moved)) = (path.parent(), path.file_name()) else {
        return Err(failed(Errno::INVAL));
    };
    let above = match open(above) {
        Err(error) if error.is_missing() => return Ok(None),
        above => above.map_err(|error| failed(error.errno()))?,
    };
    let to = open(&trash).map_err(|error| failed(error.errno()))?;
    for count in 0..MAX_OF_ONE_NAME {
        let name = if count == 0 { name.to_owned() } else { format!("{name}.{count}") };
        // Nothing that lies there is replaced: not even an empty directory.
        let renamed = match above.rename(moved, &to, &name, RenameMode::NoReplace) {
            // Not every file system knows the flag. A plain rename replaces an empty directory at most.
            Err(RenameError::Unsupported { .. }) => {
                above.rename(moved, &to, &name, RenameMode::Replace)
            }
            renamed => renamed,
        };
        match renamed {
            Ok(()) => return Ok(Some(trash.join(name))),
            Err(RenameError::Missing { .. }) => return Ok(None),
            Err(RenameError::Exists { .. }) => {}
            Err(error) => return Err(failed(error.errno())),
        }
    }
    Err(failed(Errno::EXIST))
}

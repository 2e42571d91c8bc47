//! Moves control files that a run made out of the operator's tree, into the run's own directory. Only on request:
//! the operator may have made them too.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};

use belljar_spec::{NewControlFile, OsText, RunId};
use belljar_tree::{
    ContentBounds, Dir, FinalLink, Metadata, RenameError, RenameMode, copy_content,
};
use rustix::io::Errno;

use super::fingerprint::changed;
use belljar_record::home::Home;
use belljar_record::run_json::RunRecord;
use belljar_record::store::life::{self, Life};

/// In the run's directory.
const DIRECTORY: &str = "quarantine";

#[derive(Debug, thiserror::Error)]
pub enum QuarantineError {
    #[error("run {run} has not ended; the files that it made are known once it has")]
    NotOver { run: RunId },
    #[error("cannot read the record of run {run}")]
    Record {
        run: RunId,
        #[source]
        error: io::Error,
    },
    #[error("cannot move {path} to the run's directory; it stays where it is")]
    Move {
        path: OsText,
        #[source]
        error: io::Error,
    },
}

/// What became of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quarantined {
    /// By their places in the operator's tree.
    pub moved: Vec<OsText>,
    /// They were moved earlier.
    pub moved_before: Vec<OsText>,
    /// Not there any more, or changed since by another process: left alone.
    pub others: Vec<OsText>,
    /// New control files that the record counts and does not name.
    pub unnamed: u64,
    /// Where they are now.
    pub directory: PathBuf,
}

/// Moves what the run's record calls new. Again does no harm.
pub fn quarantine(home: &Home, run: &RunId) -> Result<Quarantined, QuarantineError> {
    // Before the record: the run may have ended a moment ago, and its end is written in the background.
    if let Life::Live(_) = life::of(home, run) {
        return Err(QuarantineError::NotOver { run: *run });
    }
    let directory = home.run_dir(run);
    let record = RunRecord::read(&directory)
        .map_err(|error| QuarantineError::Record { run: *run, error })?;
    let Some(outcome) = record.outcome else { return Err(QuarantineError::NotOver { run: *run }) };
    let report = outcome.workspace.unwrap_or_default();
    let mut done = Quarantined {
        unnamed: report.new_control_files_more,
        directory: directory.join(DIRECTORY),
        ..Quarantined::default()
    };
    for file in &report.new_control_files {
        let place = OsText::from(file.tree.as_path().join(file.path.as_path()));
        let failed = |error: io::Error| QuarantineError::Move { path: place.clone(), error };
        let target = target(&done.directory, file);
        match take(file, &target).map_err(failed)? {
            MoveOutcome::Moved => done.moved.push(place),
            MoveOutcome::NotThere if target.symlink_metadata().is_ok() => {
                done.moved_before.push(place)
            }
            MoveOutcome::NotThere => done.others.push(place),
        }
    }
    Ok(done)
}

/// By its name inside, so that it can be found and put back.
fn target(directory: &Path, file: &NewControlFile) -> PathBuf {
    let inside = file.target.as_path().join(file.path.as_path());
    // Both come from a plan and from a listing: neither has `..` in it, and a name that had would stay out.
    let names = inside.components().filter(|part| matches!(part, Component::Normal(_)));
    names.fold(directory.to_owned(), |path, name| path.join(name))
}

enum MoveOutcome {
    Moved,
    NotThere,
}

fn take(file: &NewControlFile, target: &Path) -> io::Result<MoveOutcome> {
    let path = file.path.as_path();
    let parent = path.parent().unwrap_or(Path::new(""));
    let opened = Dir::open(file.tree.as_path(), FinalLink::Refuse)
        .and_then(|root| root.open_dir_if_exists(parent));
    let here = match opened {
        Ok(Some(here)) => here,
        Ok(None) => return Ok(MoveOutcome::NotThere),
        Err(error) if error.is_missing() => return Ok(MoveOutcome::NotThere),
        Err(error) => return Err(error.errno().into()),
    };
    let Some(name) = path.file_name() else { return Ok(MoveOutcome::NotThere) };
    let found = match here.stat_if_exists(name).map_err(Errno::from)? {
        Some(found) if found.identity().inode == file.inode && changed(&found) == file.changed => {
            found
        }
        Some(_) | None => return Ok(MoveOutcome::NotThere),
    };
    let (above, new_name) = (target.parent().unwrap_or(target), target.file_name());
    std::fs::create_dir_all(above)?;
    let quarantine = Dir::open(above, FinalLink::Refuse).map_err(Errno::from)?;
    let new_name = new_name.unwrap_or(name);
    match here.rename(name, &quarantine, new_name, RenameMode::Replace) {
        Ok(()) => return Ok(MoveOutcome::Moved),
        // The home is often on another file system.
        Err(RenameError::CrossDevice { .. }) => {}
        Err(error) => return Err(error.errno().into()),
    }
    // Renamed first: what is put there meanwhile belongs to another process, and stays.
    let aside = OsString::from(format!(".belljar-quarantine.{}", file.inode));
    let rename = |from: &OsStr, to: &OsStr| here.rename(from, &here, to, RenameMode::NoReplace);
    rename(name, &aside).map_err(Errno::from)?;
    if here.stat(&aside).map_err(Errno::from)?.identity().inode != file.inode {
        rename(&aside, name).map_err(Errno::from)?;
        return Ok(MoveOutcome::NotThere);
    }
    let copied = match found.is_symlink() {
        true => here.read_link(&aside).map_err(Errno::from).and_then(|link| {
            remove_half_copy(&quarantine, new_name)?;
            Ok(quarantine.symlink(link, new_name)?)
        }),
        false => copy((&here, &aside), (&quarantine, new_name)),
    };
    if let Err(error) = copied {
        let _ = rename(&aside, name); // as it was
        return Err(error.into());
    }
    here.unlink(&aside).map_err(Errno::from)?;
    Ok(MoveOutcome::Moved)
}

fn copy((here, name): (&Dir, &OsStr), (to, new_name): (&Dir, &OsStr)) -> Result<(), Errno> {
    let from = here.open_file(name)?;
    remove_half_copy(to, new_name)?;
    let made = to.create_file(new_name, 0o600)?;
    let size = Metadata::of(&from)?.size();
    copy_content(&from, &made, ContentBounds { size, budget: u64::MAX })?;
    rustix::fs::fsync(made)
}

/// A copy that an earlier attempt left half done is made again.
fn remove_half_copy(to: &Dir, name: &OsStr) -> Result<(), Errno> {
    match to.unlink(name) {
        Err(error) if !error.is_missing() => Err(error.errno()),
        _ => Ok(()),
    }
}

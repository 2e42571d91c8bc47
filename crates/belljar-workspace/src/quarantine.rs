//! Moves control files that a run made out of the operator's tree, into the run's own directory. Only on request:
//! the operator may have made them too.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Component, Path, PathBuf};

use belljar_spec::{NewControlFile, OsText, RunId};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use super::beneath;
use super::fingerprint::changed;
use belljar_record::home::Home;
use belljar_record::run_json::RunRecord;

/// In the run's directory.
const DIRECTORY: &str = "quarantine";

#[derive(Debug, thiserror::Error)]
pub enum QuarantineError {
    #[error("run {run} is not over; what it made is known when it has ended")]
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
    /// Not there any more, or changed since by somebody else: left alone.
    pub others: Vec<OsText>,
    /// New control files that the record counts and does not name.
    pub unnamed: u64,
    /// Where they are now.
    pub directory: PathBuf,
}

/// Moves what the run's record calls new. Again does no harm.
pub fn quarantine(home: &Home, run: &RunId) -> Result<Quarantined, QuarantineError> {
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
            Taken::Moved => done.moved.push(place),
            Taken::NotThere if target.symlink_metadata().is_ok() => done.moved_before.push(place),
            Taken::NotThere => done.others.push(place),
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

enum Taken {
    Moved,
    NotThere,
}

fn take(file: &NewControlFile, target: &Path) -> io::Result<Taken> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(file.tree.as_path(), flags, Mode::empty())
        .and_then(|root| beneath::parent(root.as_fd(), file.path.as_path()).map(|(dir, _)| dir));
    let here = match opened {
        Ok(here) => here,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Taken::NotThere),
        Err(errno) => return Err(errno.into()),
    };
    let Some(name) = file.path.as_path().file_name() else { return Ok(Taken::NotThere) };
    let stat = match statat(&here, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if stat.st_ino == file.inode && changed(&stat) == file.changed => stat,
        Ok(_) | Err(Errno::NOENT) => return Ok(Taken::NotThere),
        Err(errno) => return Err(errno.into()),
    };
    std::fs::create_dir_all(target.parent().unwrap_or(target))?;
    match rustix::fs::renameat(&here, name, CWD, target) {
        Ok(()) => return Ok(Taken::Moved),
        // The home is often on another file system.
        Err(Errno::XDEV) => {}
        Err(errno) => return Err(errno.into()),
    }
    // Out of the way first: what is put there meanwhile is somebody else's, and stays.
    let aside = std::ffi::OsString::from(format!(".belljar-quarantine.{}", file.inode));
    renameat_with(&here, name, &here, &aside, RenameFlags::NOREPLACE)?;
    let moved = statat(&here, &aside, AtFlags::SYMLINK_NOFOLLOW)?;
    if moved.st_ino != file.inode {
        renameat_with(&here, &aside, &here, name, RenameFlags::NOREPLACE)?;
        return Ok(Taken::NotThere);
    }
    let copied = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => {
            let link = rustix::fs::readlinkat(&here, &aside, Vec::new())?;
            replace(target, |target| rustix::fs::symlink(&link, target).map_err(io::Error::from))
        }
        _ => copy(here.as_fd(), &aside, target),
    };
    if let Err(error) = copied {
        let _ = renameat_with(&here, &aside, &here, name, RenameFlags::NOREPLACE); // as it was
        return Err(error);
    }
    unlinkat(&here, &aside, AtFlags::empty())?;
    Ok(Taken::Moved)
}

fn copy(here: BorrowedFd<'_>, name: &OsStr, target: &Path) -> io::Result<()> {
    let mut from = beneath::file_in(here, name)?;
    replace(target, |target| {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = rustix::fs::open(target, flags, Mode::from_raw_mode(0o600))?;
        let mut to = File::from(to);
        io::copy(&mut from, &mut to)?;
        to.sync_all()
    })
}

/// A copy that an earlier try left half done is made anew.
fn replace(target: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    match std::fs::remove_file(target) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    make(target)
}

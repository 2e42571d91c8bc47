//! Writes files atomically and without following links.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use belljar_spec::manifest::FILE_NAME;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::ScaffoldError;

/// Previous manifests in one directory.
const MAX_OLD: usize = 1000;

/// What happens to an existing manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    Refuse,
    /// It becomes `belljar.toml.old`.
    Rename,
}

/// Checks before anything is written.
pub(super) fn check(path: &Path, existing: Existing) -> Result<(), ScaffoldError> {
    match (kind(path)?, existing) {
        (None, _) => Ok(()),
        (Some(_), Existing::Refuse) => Err(ScaffoldError::Exists(path.to_owned())),
        (Some(FileType::RegularFile | FileType::Symlink), Existing::Rename) => Ok(()),
        (Some(_), Existing::Rename) => Err(ScaffoldError::NoFile(path.to_owned())),
    }
}

fn kind(path: &Path) -> Result<Option<FileType>, ScaffoldError> {
    match rustix::fs::statat(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(failed(path, errno.into())),
    }
}

fn failed(path: &Path, error: io::Error) -> ScaffoldError {
    ScaffoldError::Write { path: path.to_owned(), error }
}

/// Writes the manifest of a directory. Returns the new path of the previous one.
pub(super) fn manifest(
    directory: &Path,
    content: &[u8],
    existing: Existing,
) -> Result<Option<PathBuf>, ScaffoldError> {
    let path = directory.join(FILE_NAME);
    let draft = directory.join(format!(".{FILE_NAME}.{}.new", std::process::id()));
    new_file(&draft, content)?;
    let placed = place(&draft, &path, existing);
    if placed.is_err() {
        let _ = std::fs::remove_file(&draft); // the first error is reported
    }
    placed
}

fn place(draft: &Path, path: &Path, existing: Existing) -> Result<Option<PathBuf>, ScaffoldError> {
    let io = |errno: Errno| failed(path, errno.into());
    match rename(draft, path, RenameFlags::NOREPLACE) {
        Ok(()) => return Ok(None),
        Err(Errno::EXIST) if existing == Existing::Rename => {}
        Err(Errno::EXIST) => return Err(ScaffoldError::Exists(path.to_owned())),
        // A file system without RENAME_NOREPLACE still has hard links, which never replace a file either.
        Err(Errno::INVAL | Errno::NOSYS) if existing == Existing::Refuse => {
            return link_new(draft, path);
        }
        Err(Errno::INVAL | Errno::NOSYS) => {}
        Err(errno) => return Err(io(errno)),
    }
    let old = free_name(path)?;
    // There is a manifest at every moment: the old one or the new one.
    match rename(draft, path, RenameFlags::EXCHANGE) {
        Ok(()) => rename_new(draft, &old).map_err(|errno| {
            let _ = rename(draft, path, RenameFlags::EXCHANGE); // the draft is removed by the caller
            failed(&old, errno.into())
        })?,
        Err(Errno::INVAL | Errno::NOSYS) => {
            rename_new(path, &old).map_err(|errno| failed(&old, errno.into()))?;
            rename(draft, path, RenameFlags::empty()).map_err(io)?;
        }
        Err(errno) => return Err(io(errno)),
    }
    Ok(Some(old))
}

/// A free name for the previous manifest.
fn free_name(path: &Path) -> Result<PathBuf, ScaffoldError> {
    let numbered = (2..).map(|number| format!("toml.old{number}"));
    let names = std::iter::once("toml.old".to_owned()).chain(numbered).take(MAX_OLD);
    for name in names {
        let old = path.with_extension(name);
        if kind(&old)?.is_none() {
            return Ok(old);
        }
    }
    Err(failed(&path.with_extension("toml.old"), io::ErrorKind::AlreadyExists.into()))
}

fn rename_new(from: &Path, to: &Path) -> rustix::io::Result<()> {
    match rename(from, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => rename(from, to, RenameFlags::empty()),
        renamed => renamed,
    }
}

fn link_new(draft: &Path, path: &Path) -> Result<Option<PathBuf>, ScaffoldError> {
    match std::fs::hard_link(draft, path) {
        Ok(()) => std::fs::remove_file(draft).map(|()| None).map_err(|error| failed(draft, error)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(ScaffoldError::Exists(path.to_owned()))
        }
        Err(error) => Err(failed(path, error)),
    }
}

fn rename(from: &Path, to: &Path, flags: RenameFlags) -> rustix::io::Result<()> {
    rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, flags)
}

/// Fails if the path exists.
pub(super) fn new_file(path: &Path, content: &[u8]) -> Result<(), ScaffoldError> {
    make(path, content, 0o666)
}

pub(super) fn new_program(path: &Path, content: &[u8]) -> Result<(), ScaffoldError> {
    make(path, content, 0o777)
}

fn make(path: &Path, content: &[u8], mode: u32) -> Result<(), ScaffoldError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(mode)); // less the umask
    let mut file = File::from(file.map_err(|errno| failed(path, errno.into()))?);
    let written = file.write_all(content).and_then(|()| file.sync_all());
    written.map_err(|error| {
        let _ = std::fs::remove_file(path);
        failed(path, error)
    })
}

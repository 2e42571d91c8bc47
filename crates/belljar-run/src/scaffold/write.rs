//! Writes files atomically and without following links.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use belljar_spec::manifest::FILE_NAME;
use belljar_tree::{Dir, EntryKind, FinalLink, HardLinkError, RenameError, RenameMode};
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
    let (directory, name) = Directory::of(path)?;
    match (directory.kind(name)?, existing) {
        (None, _) => Ok(()),
        (Some(_), Existing::Refuse) => Err(ScaffoldError::Exists(path.to_owned())),
        (Some(EntryKind::File | EntryKind::Symlink), Existing::Rename) => Ok(()),
        (Some(_), Existing::Rename) => Err(ScaffoldError::NoFile(path.to_owned())),
    }
}

/// Writes the manifest of a directory. Returns the new path of the previous one.
pub(super) fn manifest(
    directory: &Path,
    content: &[u8],
    existing: Existing,
) -> Result<Option<PathBuf>, ScaffoldError> {
    let directory = Directory::open(directory)?;
    let draft = format!(".{FILE_NAME}.{}.new", std::process::id());
    directory.create(draft.as_ref(), content, 0o666)?;
    let placed = directory.place(&draft, existing);
    if placed.is_err() {
        let _ = directory.dir.unlink(&draft); // the first error is reported
    }
    placed.map(|old| old.map(|old| directory.path.join(old)))
}

/// Fails if the path exists.
pub(super) fn new_file(path: &Path, content: &[u8]) -> Result<(), ScaffoldError> {
    let (directory, name) = Directory::of(path)?;
    directory.create(name, content, 0o666)
}

pub(super) fn new_program(path: &Path, content: &[u8]) -> Result<(), ScaffoldError> {
    let (directory, name) = Directory::of(path)?;
    directory.create(name, content, 0o777)
}

/// The directory that is written to, and its path for messages.
struct Directory<'a> {
    dir: Dir,
    path: &'a Path,
}

impl<'a> Directory<'a> {
    fn open(path: &'a Path) -> Result<Self, ScaffoldError> {
        let opened = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        match Dir::open(opened, FinalLink::Follow) {
            Ok(dir) => Ok(Self { dir, path }),
            Err(error) => Err(failed(path, error.errno())),
        }
    }

    /// The directory above a path, and the name in it.
    fn of(path: &'a Path) -> Result<(Self, &'a OsStr), ScaffoldError> {
        let name = path.file_name().ok_or_else(|| failed(path, Errno::INVAL))?;
        Ok((Self::open(path.parent().unwrap_or(Path::new("")))?, name))
    }

    fn kind(&self, name: &OsStr) -> Result<Option<EntryKind>, ScaffoldError> {
        match self.dir.stat_if_exists(name) {
            Ok(found) => Ok(found.map(|found| found.kind())),
            Err(error) => Err(self.failed(name, error.errno())),
        }
    }

    fn failed(&self, name: impl AsRef<OsStr>, error: Errno) -> ScaffoldError {
        failed(&self.path.join(name.as_ref()), error)
    }

    fn create(&self, name: &OsStr, content: &[u8], mode: u32) -> Result<(), ScaffoldError> {
        // The umask takes from the mode.
        let file = self.dir.create_file(name, mode);
        let mut file = file.map_err(|error| self.failed(name, error.errno()))?;
        let written = file.write_all(content).and_then(|()| file.sync_all());
        written.map_err(|error| {
            let _ = self.dir.unlink(name);
            ScaffoldError::Write { path: self.path.join(name), error }
        })
    }

    /// Gives the draft the manifest's name. Returns the new name of the previous manifest.
    fn place(&self, draft: &str, existing: Existing) -> Result<Option<String>, ScaffoldError> {
        let exists = || ScaffoldError::Exists(self.path.join(FILE_NAME));
        match self.rename(draft, FILE_NAME, RenameMode::NoReplace) {
            Ok(()) => return Ok(None),
            Err(RenameError::Exists { .. }) if existing == Existing::Rename => {}
            Err(RenameError::Exists { .. }) => return Err(exists()),
            // A file system without RENAME_NOREPLACE still has hard links, which never replace a file either.
            Err(RenameError::Unsupported { .. }) if existing == Existing::Refuse => {
                return match self.dir.hard_link(draft, &self.dir, FILE_NAME) {
                    Ok(()) => match self.dir.unlink(draft) {
                        Ok(()) => Ok(None),
                        Err(error) => Err(self.failed(draft, error.errno())),
                    },
                    Err(HardLinkError::Exists { .. }) => Err(exists()),
                    Err(error) => Err(self.failed(FILE_NAME, error.errno())),
                };
            }
            Err(RenameError::Unsupported { .. }) => {}
            Err(error) => return Err(self.failed(FILE_NAME, error.errno())),
        }
        let old = self.free_name()?;
        // There is a manifest at every moment: the old one or the new one.
        match self.rename(draft, FILE_NAME, RenameMode::Exchange) {
            Ok(()) => self.rename_new(draft, &old).map_err(|error| {
                let _ = self.rename(draft, FILE_NAME, RenameMode::Exchange); // the caller removes the draft
                self.failed(&old, error.errno())
            })?,
            Err(RenameError::Unsupported { .. }) => {
                let renamed = self.rename_new(FILE_NAME, &old);
                renamed.map_err(|error| self.failed(&old, error.errno()))?;
                self.rename(draft, FILE_NAME, RenameMode::Replace)
                    .map_err(|error| self.failed(FILE_NAME, error.errno()))?;
            }
            Err(error) => return Err(self.failed(FILE_NAME, error.errno())),
        }
        Ok(Some(old))
    }

    /// A free name for the previous manifest.
    fn free_name(&self) -> Result<String, ScaffoldError> {
        let first = format!("{FILE_NAME}.old");
        let numbered = (2..).map(|number| format!("{first}{number}"));
        for name in std::iter::once(first.clone()).chain(numbered).take(MAX_OLD) {
            if self.kind(name.as_ref())?.is_none() {
                return Ok(name);
            }
        }
        Err(self.failed(first, Errno::EXIST))
    }

    fn rename_new(&self, from: &str, to: &str) -> Result<(), RenameError> {
        match self.rename(from, to, RenameMode::NoReplace) {
            Err(RenameError::Unsupported { .. }) => self.rename(from, to, RenameMode::Replace),
            renamed => renamed,
        }
    }

    fn rename(&self, from: &str, to: &str, mode: RenameMode) -> Result<(), RenameError> {
        self.dir.rename(from, &self.dir, to, mode)
    }
}

fn failed(path: &Path, error: Errno) -> ScaffoldError {
    let error = io::Error::from(error);
    ScaffoldError::Write { path: path.to_owned(), error }
}

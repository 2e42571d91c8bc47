//! Makes files and directories that were not there before.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

use super::Dir;
use crate::error::{CreateDirError, CreateFileError};
use crate::path::BeneathPath;
use crate::resolve::Access;

/// Names that are tried for a directory with a name of its own.
const MAX_NAMES_TRIED: u32 = 64;

impl Dir {
    /// Makes a file where nothing is, open for writing. The umask takes from the mode.
    pub fn create_file(&self, path: impl AsRef<Path>, mode: u32) -> Result<File, CreateFileError> {
        let path = path.as_ref();
        let (parent, name) = self.parent_of::<CreateFileError>(path)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode as _);
        let made = rustix::io::retry_on_intr(|| openat(parent.as_fd(), name, flags, mode));
        match made {
            Ok(file) => Ok(File::from(file)),
            Err(Errno::EXIST) => Err(CreateFileError::Exists { path: path.to_owned() }),
            Err(error) => Err(CreateFileError::System { path: path.to_owned(), error }),
        }
    }

    /// Makes a file without a name in this directory, open for writing. It is gone unless
    /// [`Dir::name_file`] gives it a name, so that a file is never seen half written.
    #[cfg(target_os = "linux")]
    pub fn create_unnamed_file(&self, mode: u32) -> Result<File, CreateFileError> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let made = rustix::io::retry_on_intr(|| {
            openat(self.as_fd(), c".", flags, Mode::from_raw_mode(mode))
        });
        let failed = |error| CreateFileError::System { path: PathBuf::new(), error };
        made.map(File::from).map_err(failed)
    }

    /// Gives an unnamed file its name, where nothing is.
    #[cfg(target_os = "linux")]
    pub fn name_file(&self, file: &File, path: impl AsRef<Path>) -> Result<(), CreateFileError> {
        use std::os::fd::AsRawFd;

        use rustix::fs::{AtFlags, CWD, linkat};
        let path = path.as_ref();
        let (parent, name) = self.parent_of::<CreateFileError>(path)?;
        // `AT_EMPTY_PATH` takes a capability; the file's entry in `/proc` does not.
        let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
        match linkat(CWD, itself, parent.as_fd(), name, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => Err(CreateFileError::Exists { path: path.to_owned() }),
            Err(error) => Err(CreateFileError::System { path: path.to_owned(), error }),
        }
    }

    /// Makes a directory where nothing is. The umask takes from the mode.
    pub fn create_dir(&self, path: impl AsRef<Path>, mode: u32) -> Result<(), CreateDirError> {
        let path = path.as_ref();
        let (parent, name) = self.parent_of::<CreateDirError>(path)?;
        match mkdirat(parent.as_fd(), name, Mode::from_raw_mode(mode as _)) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => Err(CreateDirError::Exists { path: path.to_owned() }),
            Err(error) => Err(CreateDirError::System { path: path.to_owned(), error }),
        }
    }

    /// Makes the directories of a path that are not there, and opens the last.
    pub fn create_dir_all(
        &self,
        path: impl AsRef<Path>,
        mode: u32,
    ) -> Result<Self, CreateDirError> {
        let mode = Mode::from_raw_mode(mode as _);
        let path = BeneathPath::parse(path.as_ref())?;
        let mut at = PathBuf::new();
        let mut reached: Option<Self> = None;
        let mut names = path.names().peekable();
        while let Some(name) = names.next() {
            at.push(name);
            let above = reached.as_ref().unwrap_or(self);
            match mkdirat(above, name, mode) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(CreateDirError::System { path: at, error }),
            }
            let access = if names.peek().is_some() { Access::Lookup } else { Access::List };
            let opened = above.open_dir_for(name, access);
            reached = Some(opened.map_err(|error| error.at(&at))?);
        }
        match reached {
            Some(reached) => Ok(reached),
            None => Ok(self.open_dir("")?),
        }
    }

    /// Makes a directory under a name that cannot be guessed, and opens it.
    pub fn create_unique_dir(
        &self,
        prefix: &str,
        mode: u32,
    ) -> Result<(OsString, Self), CreateDirError> {
        for _ in 0..MAX_NAMES_TRIED {
            let name = unique_name(prefix);
            match self.create_dir(&name, mode) {
                Ok(()) => {
                    let dir = self.open_dir(&name)?;
                    return Ok((name, dir));
                }
                Err(CreateDirError::Exists { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(CreateDirError::Exists { path: PathBuf::from(prefix) })
    }
}

/// Two keyed hashes, whose keys the system's random source made.
fn unique_name(prefix: &str) -> OsString {
    let random = || RandomState::new().hash_one(prefix);
    OsString::from(format!("{prefix}{:016x}{:016x}", random(), random()))
}

/// Random digits, for a name that cannot be guessed.
pub(crate) fn random_digits() -> u64 {
    RandomState::new().hash_one(OsStr::new(""))
}

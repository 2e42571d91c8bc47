//! New content, made ready in a directory of its own inside the tree, so that it takes one rename to put it there.
//!
//! Everything is copied: no inode of the run's ever gets a name in a real tree. Nothing is made but plain files,
//! links and directories, with the nine permission bits at most.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use belljar_spec::OsText;
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Uid, fchmod, fchown, fstat, mkdirat, openat, statat, symlinkat,
};
use rustix::io::Errno;

use super::fault;
use super::staged::Content;
use crate::beneath;
use crate::copy_entry::copy;
use crate::fingerprint::Fingerprint;

/// Whom new files belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// Whoever applies.
    Oneself,
    Of {
        uid: u32,
        gid: u32,
    },
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StageError {
    #[error("the run changed it while it was copied")]
    Changed,
    #[error("cannot copy it")]
    Io(#[from] io::Error),
}

impl From<Errno> for StageError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// A staging directory, or one below it.
pub(super) struct Stage<'a> {
    pub(super) root: BorrowedFd<'a>,
    pub(super) owner: Owner,
}

impl Stage<'_> {
    /// A copy of a run's file, which has to be in the state in which it was looked at, before and after.
    pub(super) fn file(
        &self,
        path: &Path,
        from: &File,
        source: &Fingerprint,
        mode: u32,
    ) -> Result<(Fingerprint, Content), StageError> {
        let unchanged = || Ok::<_, Errno>(Fingerprint::of(&fstat(from)?) == *source);
        if !unchanged()? {
            return Err(StageError::Changed);
        }
        let file = self.new_file(path)?;
        let content = Content::of_file(from, source.size)?;
        copy(from, &file, source.size)?;
        if !unchanged()? {
            return Err(StageError::Changed);
        }
        Ok((self.finish(file, mode)?, content))
    }

    pub(super) fn text(
        &self,
        path: &Path,
        text: &[u8],
        mode: u32,
    ) -> Result<Fingerprint, StageError> {
        let mut file = self.new_file(path)?;
        file.write_all(text)?;
        self.finish(file, mode)
    }

    pub(super) fn link(&self, path: &Path, target: &OsText) -> Result<Fingerprint, StageError> {
        fault::point();
        let (parent, name) = beneath::parent(self.root, path)?;
        symlinkat(target.as_os_str(), &parent, name)?;
        if let Owner::Of { uid, gid } = self.owner {
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            rustix::fs::chownat(&parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(Fingerprint::of(&statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// Open to its owner until it is filled.
    pub(super) fn directory(&self, path: &Path) -> Result<(), StageError> {
        fault::point();
        let (parent, name) = beneath::parent(self.root, path)?;
        mkdirat(&parent, name, Mode::RWXU)?;
        Ok(())
    }

    /// When everything is in it.
    pub(super) fn finish_directory(
        &self,
        path: &Path,
        mode: u32,
    ) -> Result<Fingerprint, StageError> {
        let directory = beneath::directory(self.root, path)?;
        self.give(directory.as_fd())?;
        fchmod(&directory, Mode::from_raw_mode(mode & 0o777))?;
        Ok(Fingerprint::of(&fstat(&directory)?))
    }

    fn new_file(&self, path: &Path) -> Result<File, Errno> {
        fault::point();
        let (parent, name) = beneath::parent(self.root, path)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(openat(&parent, name, flags, Mode::RUSR | Mode::WUSR)?))
    }

    fn finish(&self, file: File, mode: u32) -> Result<Fingerprint, StageError> {
        self.give(file.as_fd())?;
        fchmod(&file, Mode::from_raw_mode(mode & 0o777))?;
        Ok(Fingerprint::of(&fstat(&file)?))
    }

    fn give(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        match self.owner {
            Owner::Oneself => Ok(()),
            Owner::Of { uid, gid } => {
                fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
            }
        }
    }
}

/// A name that nobody else has: it is made of random bytes.
pub(super) fn staging_name() -> io::Result<String> {
    let mut random = [0; 10];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}{digits}", super::STAGING_PREFIX))
}

pub(super) fn make_staging(root: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    fault::point();
    mkdirat(root, name, Mode::RWXU)?;
    fault::point();
    beneath::directory(root, Path::new(name))
}

pub(super) fn numbered(number: u32) -> PathBuf {
    PathBuf::from(super::step::name(number))
}

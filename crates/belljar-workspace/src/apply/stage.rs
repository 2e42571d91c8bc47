//! Stages new content in a separate directory on the tree's file system, so that one rename puts it in place.
//!
//! Everything is copied: no inode of the run's ever gets a name in a real tree. Nothing is made but plain files,
//! links and directories, with the nine permission bits at most.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use belljar_spec::OsText;
use belljar_tree::{ContentBounds, CreateDirError, Dir, Metadata, copy_content};
use rustix::fs::{Gid, Mode, Uid, fchmod, fchown};
use rustix::io::Errno;

use super::fault;
use super::staged::StagedContent;
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
    #[error("the run changed the file while it was copied")]
    Changed,
    #[error("cannot copy the file")]
    Io(#[from] io::Error),
}

impl From<Errno> for StageError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// A staging directory, or one below it.
pub(super) struct Stage<'a> {
    pub(super) root: &'a Dir,
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
    ) -> Result<(Fingerprint, StagedContent), StageError> {
        let unchanged = || Ok::<_, Errno>(fingerprint(from)? == *source);
        if !unchanged()? {
            return Err(StageError::Changed);
        }
        let file = self.new_file(path)?;
        let content = StagedContent::of_file(from, source.size)?;
        let bounds = ContentBounds { size: source.size, budget: u64::MAX };
        copy_content(from, &file, bounds).map_err(Errno::from)?;
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
        let make = || {
            self.root.symlink(target.as_os_str(), path)?;
            if let Owner::Of { uid, gid } = self.owner {
                self.root.set_owner(path, uid, gid)?;
            }
            Ok::<_, Errno>(Fingerprint::of(&self.root.stat(path)?))
        };
        Ok(make()?)
    }

    /// Open to its owner until it is filled.
    pub(super) fn directory(&self, path: &Path) -> Result<(), StageError> {
        fault::point();
        Ok(self.root.create_dir(path, 0o700).map_err(Errno::from)?)
    }

    /// When everything is in it.
    pub(super) fn finish_directory(
        &self,
        path: &Path,
        mode: u32,
    ) -> Result<Fingerprint, StageError> {
        self.finish(self.root.open_dir(path).map_err(Errno::from)?, mode)
    }

    fn new_file(&self, path: &Path) -> Result<File, Errno> {
        fault::point();
        Ok(self.root.create_file(path, 0o600)?)
    }

    /// A new owner takes bits from the mode, so the mode comes last.
    fn finish(&self, made: impl AsFd, mode: u32) -> Result<Fingerprint, StageError> {
        match self.owner {
            Owner::Oneself => {}
            Owner::Of { uid, gid } => {
                fchown(&made, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
            }
        }
        fchmod(&made, Mode::from_raw_mode(mode & 0o777))?;
        Ok(fingerprint(made)?)
    }
}

fn fingerprint(of: impl AsFd) -> Result<Fingerprint, Errno> {
    Ok(Fingerprint::of(&Metadata::of(of)?))
}

/// A unique name: it is made of random bytes.
pub(super) fn staging_name() -> io::Result<String> {
    let mut random = [0; 10];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}{digits}", super::STAGING_PREFIX))
}

pub(super) fn make_staging(root: &Dir, name: &str) -> Result<Dir, CreateDirError> {
    fault::point();
    root.create_dir(name, 0o700)?;
    fault::point();
    Ok(root.open_dir(name)?)
}

pub(super) fn numbered(number: u32) -> PathBuf {
    PathBuf::from(super::step::name(number))
}

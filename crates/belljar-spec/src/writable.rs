//! Trees that a run could write. Their contents may come from a run, links above all.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::layered::Moment;
use crate::text::OsText;

/// Which directory it is, whatever its name and mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryIdentity {
    pub device: u64,
    pub inode: u64,
    /// When the inode was made, where the file system reports it: inode numbers are reused.
    #[serde(alias = "born", skip_serializing_if = "Option::is_none", default)]
    pub created: Option<Moment>,
}

impl DirectoryIdentity {
    /// If both creation times are known the device does not count: a file system without
    /// a block device gets another device number after a boot.
    pub fn is_same(&self, other: &Self) -> bool {
        let is_same_place = match (self.created, other.created) {
            (Some(one), Some(other)) => one == other,
            _ => self.device == other.device,
        };
        self.inode == other.inode && is_same_place
    }
}

/// A tree that a run could write, now or earlier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritableTree {
    /// Without links, when the run was started.
    pub path: OsText,
    /// Nothing where the directory was not there to be asked.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub identity: Option<DirectoryIdentity>,
}

impl WritableTree {
    /// A tree that is known by its path alone.
    pub fn by_path(path: PathBuf) -> Self {
        Self { path: path.into(), identity: None }
    }

    pub fn as_path(&self) -> &Path {
        self.path.as_path()
    }

    /// Whether this is the top of the tree, by its path or by what it is.
    pub fn is_at(&self, path: &Path, identity: Option<&DirectoryIdentity>) -> bool {
        let is_known = |(one, other): (&DirectoryIdentity, &DirectoryIdentity)| one.is_same(other);
        self.as_path() == path || self.identity.as_ref().zip(identity).is_some_and(is_known)
    }
}

//! Why something could not be opened, made or listed.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::common_methods;
use crate::metadata::EntryKind;
use crate::path::PathError;

/// A directory could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenDirError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("{path:?} does not exist")]
    Missing { path: PathBuf },
    #[error("{path:?} is a symbolic link, which is not followed")]
    Link { path: PathBuf },
    #[error("{path:?} is not a directory")]
    NotDirectory { path: PathBuf },
    #[error("{path:?} is a mount point, which is not entered")]
    Mount { path: PathBuf },
    #[error("cannot open directory {path:?}")]
    System {
        path: PathBuf,
        #[source]
        error: Errno,
    },
}

impl OpenDirError {
    pub fn errno(&self) -> Errno {
        match self {
            Self::Path(_) => Errno::INVAL,
            Self::Missing { .. } => Errno::NOENT,
            Self::Link { .. } => Errno::LOOP,
            Self::NotDirectory { .. } => Errno::NOTDIR,
            Self::Mount { .. } => Errno::XDEV,
            Self::System { error, .. } => *error,
        }
    }

    /// The same with another path in it: that from the root, where only a name was opened.
    pub(crate) fn at(self, path: &Path) -> Self {
        let path = path.to_owned();
        match self {
            Self::Path(error) => Self::Path(error),
            Self::Missing { .. } => Self::Missing { path },
            Self::Link { .. } => Self::Link { path },
            Self::NotDirectory { .. } => Self::NotDirectory { path },
            Self::Mount { .. } => Self::Mount { path },
            Self::System { error, .. } => Self::System { path, error },
        }
    }

    /// No directory is there: nothing, or something else, or something else above it.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::Link { .. } | Self::NotDirectory { .. })
    }
}

/// A file could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenFileError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Parent(#[from] OpenDirError),
    #[error("{path:?} does not exist")]
    Missing { path: PathBuf },
    #[error("{path:?} is {}, not a regular file", .kind.name())]
    NotRegular { path: PathBuf, kind: EntryKind },
    #[error("{path:?} is a mount point, which is not entered")]
    Mount { path: PathBuf },
    #[error("{path:?} is leased by another process, which did not give it back yet")]
    Leased { path: PathBuf },
    #[error("cannot open file {path:?}")]
    System {
        path: PathBuf,
        #[source]
        error: Errno,
    },
}

impl OpenFileError {
    pub fn errno(&self) -> Errno {
        match self {
            Self::Path(_) => Errno::INVAL,
            Self::Parent(error) => error.errno(),
            Self::Missing { .. } => Errno::NOENT,
            Self::NotRegular { kind: EntryKind::Symlink, .. } => Errno::LOOP,
            Self::NotRegular { kind: EntryKind::Directory, .. } => Errno::ISDIR,
            Self::NotRegular { .. } => Errno::INVAL,
            Self::Mount { .. } => Errno::XDEV,
            Self::Leased { .. } => Errno::WOULDBLOCK,
            Self::System { error, .. } => *error,
        }
    }

    /// Nothing is there, or something above it is not a directory.
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Parent(error) => error.is_missing(),
            Self::Missing { .. } => true,
            _ => false,
        }
    }
}

/// A file could not be read whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadFileError {
    #[error(transparent)]
    Open(#[from] OpenFileError),
    #[error("{path:?} has more than {most} bytes, the most that is read")]
    TooLarge { path: PathBuf, most: u64 },
    #[error("cannot read {path:?}")]
    Read {
        path: PathBuf,
        #[source]
        error: Errno,
    },
}

impl ReadFileError {
    pub fn errno(&self) -> Errno {
        match self {
            Self::Open(error) => error.errno(),
            Self::TooLarge { .. } => Errno::FBIG,
            Self::Read { error, .. } => *error,
        }
    }

    /// Nothing is there, or something above it is not a directory.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Open(error) if error.is_missing())
    }
}

/// A new file could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateFileError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Parent(#[from] OpenDirError),
    #[error("{path:?} exists already")]
    Exists { path: PathBuf },
    #[error("cannot create file {path:?}")]
    System {
        path: PathBuf,
        #[source]
        error: Errno,
    },
}

impl CreateFileError {
    pub fn errno(&self) -> Errno {
        match self {
            Self::Path(_) => Errno::INVAL,
            Self::Parent(error) => error.errno(),
            Self::Exists { .. } => Errno::EXIST,
            Self::System { error, .. } => *error,
        }
    }
}

/// A directory could not be made, or what was made could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateDirError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Open(#[from] OpenDirError),
    #[error("{path:?} exists already")]
    Exists { path: PathBuf },
    #[error("cannot create directory {path:?}")]
    System {
        path: PathBuf,
        #[source]
        error: Errno,
    },
}

impl CreateDirError {
    pub fn errno(&self) -> Errno {
        match self {
            Self::Path(_) => Errno::INVAL,
            Self::Open(error) => error.errno(),
            Self::Exists { .. } => Errno::EXIST,
            Self::System { error, .. } => *error,
        }
    }
}

/// A directory could not be listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    #[error(transparent)]
    Open(#[from] OpenDirError),
    #[error("cannot list directory {path:?}")]
    Read {
        path: PathBuf,
        #[source]
        error: Errno,
    },
}

impl ListError {
    pub fn errno(&self) -> Errno {
        match self {
            Self::Open(error) => error.errno(),
            Self::Read { error, .. } => *error,
        }
    }
}

/// What was written may not be on disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    #[error(transparent)]
    Open(#[from] OpenDirError),
    #[error("cannot sync directory {path:?}")]
    System {
        path: PathBuf,
        #[source]
        error: Errno,
    },
}

impl SyncError {
    pub fn errno(&self) -> Errno {
        match self {
            Self::Open(error) => error.errno(),
            Self::System { error, .. } => *error,
        }
    }
}

common_methods!(
    OpenDirError,
    OpenFileError,
    ReadFileError,
    CreateFileError,
    CreateDirError,
    ListError,
    SyncError,
);

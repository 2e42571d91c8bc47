//! Why a name could not be looked at, made, moved or removed.

use std::path::PathBuf;

use rustix::io::Errno;

use super::common_methods;
use super::open::OpenDirError;
use crate::path::PathError;

/// An entry could not be looked at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StatError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Parent(#[from] OpenDirError),
    #[error("{path:?} does not exist")]
    Missing { path: PathBuf },
    #[error("cannot stat {path:?}")]
    System {
        path: PathBuf,
        #[source]
        error: Errno,
    },
}

/// A link's target could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadLinkError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Parent(#[from] OpenDirError),
    #[error("{path:?} does not exist")]
    Missing { path: PathBuf },
    #[error("{path:?} is not a symbolic link")]
    NotLink { path: PathBuf },
    #[error("cannot read link {path:?}")]
    System {
        path: PathBuf,
        #[source]
        error: Errno,
    },
}

/// A symbolic link could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SymlinkError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Parent(#[from] OpenDirError),
    #[error("{path:?} exists already")]
    Exists { path: PathBuf },
    #[error("cannot create link {path:?}")]
    System {
        path: PathBuf,
        #[source]
        error: Errno,
    },
}

/// A second name could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HardLinkError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Parent(#[from] OpenDirError),
    #[error("{from:?} does not exist")]
    Missing { from: PathBuf },
    #[error("{to:?} exists already")]
    Exists { to: PathBuf },
    #[error("{from:?} has as many names as a file can have")]
    TooManyNames { from: PathBuf },
    #[error("{from:?} and {to:?} are on different file systems")]
    CrossDevice { from: PathBuf, to: PathBuf },
    #[error("cannot link {from:?} to {to:?}")]
    System {
        from: PathBuf,
        to: PathBuf,
        #[source]
        error: Errno,
    },
}

/// An entry could not be moved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenameError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Parent(#[from] OpenDirError),
    #[error("{from:?} does not exist, or for an exchange {to:?} does not")]
    Missing { from: PathBuf, to: PathBuf },
    #[error("{to:?} exists already")]
    Exists { to: PathBuf },
    #[error("{from:?} and {to:?} are on different file systems")]
    CrossDevice { from: PathBuf, to: PathBuf },
    #[error("the file system of {to:?} knows no such rename")]
    Unsupported { to: PathBuf },
    #[error("cannot rename {from:?} to {to:?}")]
    System {
        from: PathBuf,
        to: PathBuf,
        #[source]
        error: Errno,
    },
}

/// A name could not be removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnlinkError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Parent(#[from] OpenDirError),
    #[error("{path:?} does not exist")]
    Missing { path: PathBuf },
    #[error("{path:?} is a directory")]
    IsDirectory { path: PathBuf },
    #[error("cannot remove {path:?}")]
    System {
        path: PathBuf,
        #[source]
        error: Errno,
    },
}

/// A directory could not be removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoveDirError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Parent(#[from] OpenDirError),
    #[error("{path:?} does not exist")]
    Missing { path: PathBuf },
    #[error("{path:?} is not a directory")]
    NotDirectory { path: PathBuf },
    #[error("directory {path:?} is not empty")]
    NotEmpty { path: PathBuf },
    #[error("{path:?} is a mount point")]
    Mount { path: PathBuf },
    #[error("cannot remove directory {path:?}")]
    System {
        path: PathBuf,
        #[source]
        error: Errno,
    },
}

/// Mode, owner or times could not be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetAttributeError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Parent(#[from] OpenDirError),
    #[error("{path:?} does not exist")]
    Missing { path: PathBuf },
    #[error("{path:?} is a symbolic link, which has no mode of its own")]
    Link { path: PathBuf },
    #[error("cannot set the {attribute} of {path:?}")]
    System {
        path: PathBuf,
        attribute: Attribute,
        #[source]
        error: Errno,
    },
}

/// What was to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    Mode,
    Owner,
    Times,
}

impl std::fmt::Display for Attribute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Mode => "mode",
            Self::Owner => "owner",
            Self::Times => "times",
        })
    }
}

/// The error numbers of each enum: a path that is refused by its text, the way to it, and the rest.
macro_rules! numbers {
    ($($error:ident { $($pattern:pat => $errno:ident),* $(,)? })+) => {$(
        impl $error {
            pub fn errno(&self) -> Errno {
                match self {
                    Self::Path(_) => Errno::INVAL,
                    Self::Parent(error) => error.errno(),
                    $($pattern => Errno::$errno,)*
                    Self::System { error, .. } => *error,
                }
            }
        }
    )+};
}

numbers! {
    StatError { Self::Missing { .. } => NOENT }
    ReadLinkError { Self::Missing { .. } => NOENT, Self::NotLink { .. } => INVAL }
    SymlinkError { Self::Exists { .. } => EXIST }
    HardLinkError {
        Self::Missing { .. } => NOENT,
        Self::Exists { .. } => EXIST,
        Self::TooManyNames { .. } => MLINK,
        Self::CrossDevice { .. } => XDEV,
    }
    RenameError {
        Self::Missing { .. } => NOENT,
        Self::Exists { .. } => EXIST,
        Self::CrossDevice { .. } => XDEV,
        Self::Unsupported { .. } => NOTSUP,
    }
    UnlinkError { Self::Missing { .. } => NOENT, Self::IsDirectory { .. } => ISDIR }
    RemoveDirError {
        Self::Missing { .. } => NOENT,
        Self::NotDirectory { .. } => NOTDIR,
        Self::NotEmpty { .. } => NOTEMPTY,
        Self::Mount { .. } => BUSY,
    }
    SetAttributeError { Self::Missing { .. } => NOENT, Self::Link { .. } => LOOP }
}

/// Those whose entry has to be there.
macro_rules! can_miss {
    ($($error:ident),+ $(,)?) => {$(
        impl $error {
            /// Nothing is there, or something above it is not a directory.
            pub fn is_missing(&self) -> bool {
                match self {
                    Self::Parent(error) => error.is_missing(),
                    Self::Missing { .. } => true,
                    _ => false,
                }
            }
        }
    )+};
}

can_miss!(
    StatError,
    ReadLinkError,
    HardLinkError,
    RenameError,
    UnlinkError,
    RemoveDirError,
    SetAttributeError
);
common_methods!(
    StatError,
    ReadLinkError,
    SymlinkError,
    HardLinkError,
    RenameError,
    UnlinkError,
    RemoveDirError,
    SetAttributeError,
);

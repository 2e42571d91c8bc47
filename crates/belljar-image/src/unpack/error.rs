//! Why a layer could not be unpacked.

use std::io;

use belljar_tree::{
    CreateDirError, CreateFileError, HardLinkError, OpenDirError, RemoveAllError,
    SetAttributeError, StatError, SymlinkError, UnlinkError,
};
use rustix::io::Errno;

use crate::digest::Digest;
use crate::tar::TarError;

/// A layer was not unpacked.
#[derive(Debug, thiserror::Error)]
#[error("{}{problem}", .entry.as_ref().map_or(String::new(), |entry| format!("entry \"{entry}\": ")))]
pub struct UnpackError {
    /// The entry of the archive, with what a terminal would obey escaped.
    pub entry: Option<String>,
    #[source]
    pub problem: UnpackProblem,
}

impl UnpackError {
    pub(super) fn at(path: &[u8], problem: UnpackProblem) -> Self {
        Self { entry: Some(super::shown(path)), problem }
    }
}

impl From<UnpackProblem> for UnpackError {
    fn from(problem: UnpackProblem) -> Self {
        Self { entry: None, problem }
    }
}

/// What is wrong with an entry, or with the place it is to go to.
#[derive(Debug, thiserror::Error)]
pub enum UnpackProblem {
    #[error(transparent)]
    Tar(TarError),
    #[error(
        "the layer has more than {most} {what}; the limit protects this machine from hostile images"
    )]
    Limit { what: &'static str, most: u64 },
    #[error("the layer's content has the digest {found}, and its image says {expected}")]
    DiffId { expected: Digest, found: Digest },
    #[error("the path has a NUL byte")]
    Nul,
    #[error("the path has a \"..\" in it, which could lead out of the image")]
    ParentComponent,
    #[error("the path has a name of more than 255 bytes")]
    LongName,
    #[error("the name is reserved for whiteouts and names nothing that can be hidden")]
    WhiteoutName,
    #[error("the image's root is not a directory")]
    RootNotDirectory,
    #[error("the path leads through something that is not a directory of this layer")]
    ParentNotDirectory,
    #[error(
        "it is a hard link to \"{target}\", which is no file of this layer that is already there"
    )]
    LinkTarget { target: String },
    #[error("it is of the kind {:?}, which no file of an image has", char::from(*.letter))]
    Kind { letter: u8 },
    #[error("the owner {id} is no user id")]
    Owner { id: u64 },
    #[error("cannot {action}")]
    System {
        action: &'static str,
        #[source]
        error: io::Error,
    },
}

impl UnpackProblem {
    pub(super) fn system(action: &'static str) -> impl Fn(Errno) -> Self {
        move |error| Self::System { action, error: error.into() }
    }
}

macro_rules! from_tree {
    ($($error:ident: $action:literal),+ $(,)?) => {$(
        impl From<$error> for UnpackProblem {
            fn from(error: $error) -> Self {
                Self::System { action: $action, error: error.into() }
            }
        }
    )+};
}

from_tree! {
    CreateDirError: "make the directory",
    CreateFileError: "make the file",
    HardLinkError: "make the hard link",
    RemoveAllError: "replace an earlier entry of the same name",
    SetAttributeError: "set owner, mode or times",
    StatError: "look at an earlier entry",
    SymlinkError: "make the symbolic link",
    UnlinkError: "replace an earlier entry of the same name",
}

impl From<OpenDirError> for UnpackProblem {
    fn from(error: OpenDirError) -> Self {
        match error {
            OpenDirError::Link { .. } | OpenDirError::NotDirectory { .. } => {
                Self::ParentNotDirectory
            }
            error => Self::System { action: "open the directory", error: error.into() },
        }
    }
}

//! Why the store cannot be used.

use std::io;
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::manifest::DocumentError;

/// The store itself failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {action} {}", .path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error(
        "{} is not a directory that only you can enter; run: chmod 700 {0}, as its owner",
        .path.display()
    )]
    NotPrivate { path: PathBuf },
    #[error("{} was written by a newer version of Belljar; use that one", .path.display())]
    Newer { path: PathBuf },
    #[error("{} is damaged; remove it, and load or pull the images again", .path.display())]
    Index { path: PathBuf },
    #[error("the store has no blob {digest}, which an image needs; load or pull the image again")]
    MissingBlob { digest: Digest },
    #[error("the stored blob {digest} is damaged; remove the image, and load or pull it again")]
    DamagedBlob { digest: Digest },
    #[error("the stored document {digest} is of no use")]
    Document {
        digest: Digest,
        #[source]
        error: DocumentError,
    },
}

impl StoreError {
    pub(crate) fn io(action: &'static str, path: &Path, error: impl Into<io::Error>) -> Self {
        Self::Io { action, path: path.to_owned(), error: error.into() }
    }
}

//! Stored blobs, by digest.

use std::fs::File;
use std::path::PathBuf;

use super::{Store, StoreError};
use crate::digest::Digest;
use crate::manifest::{ConfigDocument, Document, MAX_JSON, Manifest};

pub(super) fn blob_path(digest: Digest) -> PathBuf {
    PathBuf::from("blobs/sha256").join(digest.hex())
}

impl Store {
    /// The size of a blob that is there.
    pub(super) fn blob_size(&self, digest: Digest) -> Result<Option<u64>, StoreError> {
        let path = blob_path(digest);
        let found = self.root.stat_if_exists(&path);
        let found = found
            .map_err(|error| StoreError::io("look at", &self.path.join(&path), error.errno()))?;
        Ok(found.filter(|found| found.is_file()).map(|found| found.size()))
    }

    pub(crate) fn open_blob(&self, digest: Digest) -> Result<File, StoreError> {
        let path = blob_path(digest);
        match self.root.open_file(&path) {
            Err(error) if error.is_missing() => Err(StoreError::MissingBlob { digest }),
            file => {
                file.map_err(|error| StoreError::io("open", &self.path.join(&path), error.errno()))
            }
        }
    }

    /// A manifest or configuration, checked against its digest.
    pub(crate) fn read_document(&self, digest: Digest) -> Result<Vec<u8>, StoreError> {
        let path = blob_path(digest);
        let text = match self.root.read_file(&path, MAX_JSON) {
            Err(error) if error.is_missing() => return Err(StoreError::MissingBlob { digest }),
            text => {
                text.map_err(|error| StoreError::io("read", &self.path.join(&path), error.errno()))?
            }
        };
        match Digest::of(&text) == digest {
            true => Ok(text),
            false => Err(StoreError::DamagedBlob { digest }),
        }
    }

    pub(crate) fn read_manifest(&self, digest: Digest) -> Result<Manifest, StoreError> {
        let text = self.read_document(digest)?;
        match Document::parse(&text) {
            Ok(Document::Manifest(manifest)) => Ok(manifest),
            Ok(Document::Index(_)) => Err(StoreError::DamagedBlob { digest }),
            Err(error) => Err(StoreError::Document { digest, error }),
        }
    }

    pub(crate) fn read_config(&self, digest: Digest) -> Result<ConfigDocument, StoreError> {
        let text = self.read_document(digest)?;
        ConfigDocument::parse(&text).map_err(|error| StoreError::Document { digest, error })
    }
}

//! Unpacked layers.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use belljar_tree::{Dir, RenameError, RenameMode};
use serde::{Deserialize, Serialize};

use super::lock::LockMode;
use super::query::{Image, LayerFacts};
use super::{PRIVATE, Store, StoreError};
use crate::digest::{Digest, Hasher};
use crate::unpack::{ExpectedLayer, UnpackError, UnpackOptions, UnpackReport, unpack_layer};

pub(super) const LAYERS: &str = "layers";
const TREE: &str = "tree";
const RECORD: &str = "layer.json";
const VERSION: u32 = 1;
const MAX_RECORD: u64 = 64 << 10;

/// `layer.json`: what was unpacked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LayerRecord {
    version: u32,
    pub(super) diff_id: Digest,
    pub(super) chain_id: Digest,
    pub(super) report: UnpackReport,
}

/// A layer could not be unpacked, or what was unpacked could not be stored.
#[derive(Debug, thiserror::Error)]
pub enum UnpackImageError {
    #[error("cannot unpack the layer {digest}")]
    Layer {
        digest: Digest,
        #[source]
        error: Box<UnpackError>,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How far the unpacking of an image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnpackProgress {
    /// Layers that are done, of those that were not there before.
    pub done: usize,
    pub of: usize,
}

/// The digest that stands for a layer with all below it, for each layer.
pub(crate) fn chain_ids(diff_ids: &[Digest]) -> Vec<Digest> {
    let mut chain: Vec<Digest> = Vec::with_capacity(diff_ids.len());
    for diff_id in diff_ids {
        chain.push(match chain.last() {
            None => *diff_id,
            Some(below) => {
                let mut hasher = Hasher::default();
                hasher.update(format!("{below} {diff_id}").as_bytes());
                hasher.finish()
            }
        });
    }
    chain
}

pub(super) fn layer_path(variant: &str, chain_id: Digest) -> PathBuf {
    [LAYERS, variant, &chain_id.hex()].iter().collect()
}

impl Store {
    /// A layer that is there.
    pub(super) fn layer(
        &self,
        variant: &str,
        chain_id: Digest,
    ) -> Result<Option<LayerRecord>, StoreError> {
        self.layer_record(&layer_path(variant, chain_id))
    }

    /// Of a directory below the store.
    pub(super) fn layer_record(&self, layer: &Path) -> Result<Option<LayerRecord>, StoreError> {
        let path = layer.join(RECORD);
        let text = match self.root.read_file(&path, MAX_RECORD) {
            Err(error) if error.is_missing() => return Ok(None),
            text => {
                text.map_err(|error| StoreError::io("read", &self.path.join(&path), error.errno()))?
            }
        };
        // One of another version is unpacked again.
        Ok(serde_json::from_slice(&text)
            .ok()
            .filter(|record: &LayerRecord| record.version == VERSION))
    }

    pub(super) fn layer_tree(&self, variant: &str, chain_id: Digest) -> Result<Dir, StoreError> {
        let path = layer_path(variant, chain_id).join(TREE);
        let dir = self.root.open_dir(&path);
        dir.map_err(|error| StoreError::io("open", &self.path.join(&path), error.errno()))
    }

    pub(super) fn layer_tree_path(&self, variant: &str, chain_id: Digest) -> PathBuf {
        self.path.join(layer_path(variant, chain_id)).join(TREE)
    }

    /// Unpacks the layers that are not there yet. The caller holds the image.
    pub(super) fn unpack_missing(
        &self,
        image: &Image,
        options: &UnpackOptions,
        progress: &mut dyn FnMut(UnpackProgress),
    ) -> Result<(), UnpackImageError> {
        let variant = options.variant();
        let mut there = Vec::new();
        for layer in &image.layers {
            there.push(self.layer(&variant, layer.chain_id)?);
        }
        let of = there.iter().filter(|there| there.is_none()).count();
        if of == 0 {
            return Ok(());
        }
        let work = self.work_dir()?;
        let mut lower: Vec<Dir> = Vec::new();
        let mut made = Vec::new();
        for (layer, there) in image.layers.iter().zip(there) {
            let (tree, record) = match there {
                Some(record) => (self.layer_tree(&variant, layer.chain_id)?, record),
                None => {
                    // The same empty layer twice in a row has two chain ids, so the name is new.
                    let name = PathBuf::from(layer.chain_id.hex());
                    let unpacked = self.unpack_one(&work.dir, &name, layer, &lower, options)?;
                    made.push((name, layer.chain_id));
                    progress(UnpackProgress { done: made.len(), of });
                    unpacked
                }
            };
            // Nothing below is seen any more.
            if record.report.hides_all_below {
                lower.clear();
            }
            lower.push(tree);
        }
        // Once for all files of all layers.
        rustix::fs::syncfs(work.dir.as_fd())
            .map_err(|error| StoreError::io("sync", &work.path, error))?;
        let guard = self.lock(LockMode::Exclusive)?;
        self.make_variant(&variant)?;
        for (name, chain_id) in &made {
            let to = layer_path(&variant, *chain_id);
            match work.dir.rename(name, &self.root, &to, RenameMode::NoReplace) {
                Ok(()) => {}
                Err(RenameError::Exists { .. }) => self.replace_stale(&work.dir, name, &to)?,
                Err(error) => {
                    return Err(StoreError::io("make", &self.path.join(&to), error.errno()).into());
                }
            }
        }
        let sync = self.root.sync(Path::new(LAYERS).join(&variant));
        sync.map_err(|error| StoreError::io("sync", &self.path.join(LAYERS), error.errno()))?;
        drop(guard);
        Ok(())
    }

    /// What is there is the same layer by another process, or one of another version. That one may be in use
    /// under its old name, so it is moved aside and removed with the work directory.
    fn replace_stale(&self, work: &Dir, name: &Path, to: &Path) -> Result<(), StoreError> {
        if self.layer_record(to)?.is_some() {
            return Ok(());
        }
        let exchanged = work.rename(name, &self.root, to, RenameMode::Exchange);
        exchanged.map_err(|error| StoreError::io("replace", &self.path.join(to), error.errno()))
    }

    fn unpack_one(
        &self,
        work: &Dir,
        name: &Path,
        layer: &LayerFacts,
        lower: &[Dir],
        options: &UnpackOptions,
    ) -> Result<(Dir, LayerRecord), UnpackImageError> {
        let shown = self.path.join("tmp");
        let failed = |error: rustix::io::Errno| StoreError::io("make a layer in", &shown, error);
        work.create_dir(name, PRIVATE).map_err(|error| failed(error.errno()))?;
        let dir = work.open_dir(name).map_err(|error| failed(error.errno()))?;
        dir.create_dir(TREE, PRIVATE).map_err(|error| failed(error.errno()))?;
        let tree = dir.open_dir(TREE).map_err(|error| failed(error.errno()))?;
        let blob = self.open_blob(layer.blob)?;
        let expected = ExpectedLayer { diff_id: layer.diff_id };
        let report = unpack_layer(blob, &tree, lower, expected, options).map_err(|error| {
            UnpackImageError::Layer { digest: layer.blob, error: Box::new(error) }
        })?;
        let record = LayerRecord {
            version: VERSION,
            diff_id: layer.diff_id,
            chain_id: layer.chain_id,
            report,
        };
        let text = serde_json::to_vec_pretty(&record)
            .map_err(|error| StoreError::io("write", &shown, error))?;
        let mut file = dir.create_file(RECORD, 0o600).map_err(|error| failed(error.errno()))?;
        file.write_all(&text).map_err(|error| StoreError::io("write", &shown, error))?;
        Ok((tree, record))
    }

    fn make_variant(&self, variant: &str) -> Result<(), StoreError> {
        let path = Path::new(LAYERS).join(variant);
        match self.root.create_dir(&path, PRIVATE) {
            Ok(()) | Err(belljar_tree::CreateDirError::Exists { .. }) => Ok(()),
            Err(error) => Err(StoreError::io("make", &self.path.join(&path), error.errno())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_ids_are_those_of_the_specification() {
        let ids = [Digest::of(b"a"), Digest::of(b"b")];
        let chain = chain_ids(&ids);
        assert_eq!(chain[0], ids[0]);
        assert_eq!(chain[1], Digest::of(format!("{} {}", ids[0], ids[1]).as_bytes()));
        assert!(chain_ids(&[]).is_empty());
    }
}

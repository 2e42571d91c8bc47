//! What a store has: lists of images, and facts about one.

use std::collections::BTreeSet;

use super::index::{ImageIndex, ImageRecord};
use super::layers::chain_ids;
use super::lock::{LockMode, StoreLock};
use super::{Store, StoreError};
use crate::digest::Digest;
use crate::manifest::ImageConfig;
use crate::platform::Platform;
use crate::reference::ImageName;

/// An image of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Complete names, with registry and tag or digest.
    pub names: Vec<String>,
    pub manifest: Digest,
    /// The index that it was fetched by, where that names images for several platforms.
    pub source: Option<Digest>,
    /// The configuration, whose digest engines call the image's id.
    pub config_digest: Digest,
    pub platform: Platform,
    pub config: ImageConfig,
    /// Bottom first.
    pub layers: Vec<LayerFacts>,
    /// Seconds since 1970.
    pub added: u64,
}

impl Image {
    /// What `NAME@DIGEST` has to say to get this image from its registry.
    pub fn digest(&self) -> Digest {
        self.source.unwrap_or(self.manifest)
    }
}

/// A layer of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerFacts {
    /// As it is stored, compressed or not.
    pub blob: Digest,
    pub blob_bytes: u64,
    /// Of the uncompressed archive.
    pub diff_id: Digest,
    /// Of this layer with all below it.
    pub chain_id: Digest,
}

/// A line of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSummary {
    pub names: Vec<String>,
    pub manifest: Digest,
    pub source: Option<Digest>,
    pub added: u64,
    /// Nothing where the image's documents are damaged.
    pub platform: Option<Platform>,
    pub created: Option<String>,
    /// Of its blobs; some may be shared with other images.
    pub blob_bytes: u64,
    /// Of its unpacked layers, in whatever form they are there.
    pub unpacked_bytes: u64,
}

impl Store {
    /// All images, the last one first.
    pub fn list(&self) -> Result<Vec<ImageSummary>, StoreError> {
        let guard = self.lock(LockMode::Shared)?;
        let index = self.read_index(&guard)?;
        let variants = self.variants()?;
        let mut list = Vec::new();
        for record in &index.images {
            let mut summary = ImageSummary {
                names: record.names.clone(),
                manifest: record.manifest,
                source: record.source,
                added: record.added,
                platform: None,
                created: None,
                blob_bytes: 0,
                unpacked_bytes: 0,
            };
            if let Ok(image) = self.image(record) {
                let blobs: BTreeSet<Digest> = image.layers.iter().map(|layer| layer.blob).collect();
                for blob in blobs.into_iter().chain([image.manifest, image.config_digest]) {
                    summary.blob_bytes += self.blob_size(blob)?.unwrap_or(0);
                }
                for layer in &image.layers {
                    for variant in &variants {
                        let found = self.layer(variant, layer.chain_id)?;
                        summary.unpacked_bytes += found.map_or(0, |layer| layer.report.bytes);
                    }
                }
                summary.platform = Some(image.platform);
                summary.created = image.config.created;
            }
            list.push(summary);
        }
        list.sort_by_key(|summary| std::cmp::Reverse(summary.added));
        Ok(list)
    }

    /// The facts about an image; nothing if it is not there.
    pub fn inspect(&self, name: &ImageName) -> Result<Option<Image>, StoreError> {
        let guard = self.lock(LockMode::Shared)?;
        let index = self.read_index(&guard)?;
        match self.find(&guard, &index, name) {
            Some(record) => self.image(record).map(Some),
            None => Ok(None),
        }
    }

    /// By name or digest; an id can also be the digest of a configuration, as docker has it.
    pub(super) fn find<'a>(
        &self,
        _lock: &StoreLock,
        index: &'a ImageIndex,
        name: &ImageName,
    ) -> Option<&'a ImageRecord> {
        if let Some(found) = index.find(name) {
            return Some(found);
        }
        let ImageName::Id(id) = name else { return None };
        let id: Digest = id.parse().ok()?;
        let has_id = |record: &&ImageRecord| {
            self.read_manifest(record.manifest).is_ok_and(|manifest| manifest.config.digest == id)
        };
        index.images.iter().find(has_id)
    }

    pub(super) fn image(&self, record: &ImageRecord) -> Result<Image, StoreError> {
        let manifest = self.read_manifest(record.manifest)?;
        let config = self.read_config(manifest.config.digest)?;
        config
            .check_layers(manifest.layers.len())
            .map_err(|error| StoreError::Document { digest: record.manifest, error })?;
        let chain = chain_ids(&config.diff_ids);
        let layers = manifest.layers.iter().zip(config.diff_ids.iter().zip(&chain));
        let layers = layers.map(|(layer, (diff_id, chain_id))| LayerFacts {
            blob: layer.digest,
            blob_bytes: layer.size,
            diff_id: *diff_id,
            chain_id: *chain_id,
        });
        Ok(Image {
            names: record.names.clone(),
            manifest: record.manifest,
            source: record.source,
            config_digest: manifest.config.digest,
            platform: config.platform,
            config: config.config,
            layers: layers.collect(),
            added: record.added,
        })
    }
}

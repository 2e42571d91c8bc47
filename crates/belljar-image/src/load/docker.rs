//! `manifest.json` of `docker save` and `podman save`.

use std::io::Read;

use serde::Deserialize;

use super::archive::ArchiveFiles;
use super::{LoadError, LoadOptions, LoadedImage, Staged};
use crate::compression::Compression;
use crate::digest::Digest;
use crate::ingest::{Content, ingest};
use crate::manifest::{
    Descriptor, MAX_LAYERS, Manifest, OCI_CONFIG, OCI_LAYER, OCI_LAYER_GZIP, OCI_LAYER_ZSTD,
    OCI_MANIFEST, parse_json,
};
use crate::store::{BlobError, Incoming};

const MANIFEST: &str = "manifest.json";
/// Images of one archive.
const MAX_IMAGES: usize = 1000;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SavedImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Vec<String>,
}

pub(super) fn from_archive(
    files: &ArchiveFiles,
    incoming: &mut Incoming<'_>,
    options: &LoadOptions,
) -> Result<Staged, LoadError> {
    if !files.has(MANIFEST) {
        return Err(LoadError::NotImage);
    }
    let text = files.read(MANIFEST, incoming)?;
    let saved: Vec<SavedImage> =
        parse_json(&text).map_err(|error| LoadError::Document { file: MANIFEST, error })?;
    if saved.len() > MAX_IMAGES {
        return Err(LoadError::Limit { what: "images", most: MAX_IMAGES as u64 });
    }
    let mut staged = Staged { images: Vec::new(), blobs: Vec::new() };
    for image in saved {
        let top = manifest_of(&image, files, incoming)?;
        let mut content = StagedContent;
        let ingested = ingest(&mut content, incoming, &top, &options.platform, options.limits)?;
        let tags = image.repo_tags.unwrap_or_default();
        staged.images.push(LoadedImage::named(&ingested, &tags, &options.name));
        staged.blobs.extend(ingested.blobs);
    }
    Ok(staged)
}

/// The manifest that the image would have in a registry, made of what the archive holds.
fn manifest_of(
    image: &SavedImage,
    files: &ArchiveFiles,
    incoming: &mut Incoming<'_>,
) -> Result<Descriptor, LoadError> {
    if image.layers.len() > MAX_LAYERS {
        return Err(LoadError::Limit { what: "layers", most: MAX_LAYERS as u64 });
    }
    let (digest, size) = files.find(&image.config)?;
    let config = Descriptor::new(OCI_CONFIG, digest, size);
    let mut layers = Vec::new();
    for path in &image.layers {
        let (digest, size) = files.find(path)?;
        let mut head = [0; 4];
        let mut file = incoming.open(digest)?;
        let read = file.read(&mut head).map_err(BlobError::Read)?;
        let media_type = match Compression::of(&head[..read]) {
            Compression::None => OCI_LAYER,
            Compression::Gzip => OCI_LAYER_GZIP,
            Compression::Zstd => OCI_LAYER_ZSTD,
        };
        layers.push(Descriptor::new(media_type, digest, size));
    }
    let media_type = Some(OCI_MANIFEST.to_owned());
    let manifest = Manifest { schema_version: 2, media_type, config, layers };
    let text = serde_json::to_vec(&manifest).map_err(|error| BlobError::Read(error.into()))?;
    let digest: Digest = incoming.add_bytes(&text)?;
    Ok(Descriptor::new(OCI_MANIFEST, digest, text.len() as u64))
}

/// Everything is staged already.
pub(super) struct StagedContent;

impl Content for StagedContent {
    type Error = LoadError;

    fn document(
        &mut self,
        incoming: &mut Incoming<'_>,
        descriptor: &Descriptor,
    ) -> Result<Vec<u8>, LoadError> {
        self.blobs(incoming, std::slice::from_ref(descriptor))?;
        Ok(crate::ingest::read_staged(incoming, descriptor.digest)?)
    }

    fn blobs(
        &mut self,
        incoming: &mut Incoming<'_>,
        descriptors: &[Descriptor],
    ) -> Result<(), LoadError> {
        for descriptor in descriptors {
            let digest = descriptor.digest;
            if !incoming.has(digest)? {
                return Err(LoadError::MissingBlob { digest });
            }
            let found = incoming.staged_size(digest);
            if let Some(found) = found.filter(|found| *found != descriptor.size) {
                let error = BlobError::Size { expected: descriptor.size, found };
                return Err(LoadError::Blob { digest, error });
            }
        }
        Ok(())
    }
}

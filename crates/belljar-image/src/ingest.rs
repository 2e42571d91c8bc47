//! Takes an image from wherever its content is: resolves the platform, checks the documents, brings in what the
//! store does not have.

use std::io;

use crate::digest::Digest;
use crate::manifest::{
    ConfigDocument, Descriptor, Document, DocumentError, Index, MAX_JSON, Manifest,
};
use crate::platform::Platform;
use crate::store::{BlobError, Incoming, StoreError};

/// Indexes that may stand in indexes.
const MAX_DEPTH: usize = 3;

/// How large an image may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Of all its blobs, as they are stored.
    pub blob_bytes: u64,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self { blob_bytes: 64 << 30 }
    }
}

/// Where blobs come from.
pub(crate) trait Content {
    type Error: From<StoreError> + From<BlobError> + From<IngestError>;

    /// A manifest, index or configuration, whose digest has not been checked yet.
    fn document(
        &mut self,
        incoming: &mut Incoming<'_>,
        descriptor: &Descriptor,
    ) -> Result<Vec<u8>, Self::Error>;

    /// Stages all of these that are not there yet, each checked.
    fn blobs(
        &mut self,
        incoming: &mut Incoming<'_>,
        descriptors: &[Descriptor],
    ) -> Result<(), Self::Error>;
}

/// An image's documents do not make an image that can be used here.
#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    #[error("the document {digest} of the image is of no use")]
    Document {
        digest: Digest,
        #[source]
        error: DocumentError,
    },
    #[error("the image is for {}, and {wanted} is needed", list(.offered))]
    Platform { wanted: Box<Platform>, offered: Vec<Platform> },
    #[error("the document {digest} has more than {most} bytes")]
    DocumentSize { digest: Digest, most: u64 },
    #[error("the document {expected} has the digest {found}")]
    DocumentDigest { expected: Digest, found: Digest },
    #[error("indexes refer to indexes more than {MAX_DEPTH} levels deep")]
    Depth,
    #[error("the image has {found} bytes, more than the limit of {most}")]
    Size { found: u64, most: u64 },
}

fn list(platforms: &[Platform]) -> String {
    let shown: Vec<String> = platforms.iter().take(20).map(Platform::to_string).collect();
    match shown.is_empty() {
        true => "no platform that it names".to_owned(),
        false => shown.join(", "),
    }
}

/// An image whose content is staged or stored.
#[derive(Clone, Debug)]
pub(crate) struct Ingested {
    pub(crate) manifest: Digest,
    /// The index that led to it.
    pub(crate) source: Option<Digest>,
    /// Every blob of the image.
    pub(crate) blobs: Vec<Digest>,
}

/// Brings in the image that a descriptor leads to.
pub(crate) fn ingest<C: Content>(
    content: &mut C,
    incoming: &mut Incoming<'_>,
    top: &Descriptor,
    platform: &Platform,
    limits: ImageLimits,
) -> Result<Ingested, C::Error> {
    let mut descriptor = top.clone();
    let mut documents = Vec::new();
    for _ in 0..=MAX_DEPTH {
        let text = document(content, incoming, &descriptor)?;
        documents.push(descriptor.digest);
        let parsed = Document::parse(&text)
            .map_err(|error| IngestError::Document { digest: descriptor.digest, error })?;
        match parsed {
            Document::Index(index) => descriptor = choose(&index, platform)?,
            Document::Manifest(manifest) => {
                check_size(&manifest, limits)?;
                bring(content, incoming, &descriptor, &manifest, platform)?;
                let mut blobs = documents.clone();
                blobs.push(manifest.config.digest);
                blobs.extend(manifest.layers.iter().map(|layer| layer.digest));
                let source = (documents.len() > 1).then_some(top.digest);
                return Ok(Ingested { manifest: descriptor.digest, source, blobs });
            }
        }
    }
    Err(IngestError::Depth.into())
}

/// Stages the document, and checks it: the digest is all that connects it with what was asked for.
fn document<C: Content>(
    content: &mut C,
    incoming: &mut Incoming<'_>,
    descriptor: &Descriptor,
) -> Result<Vec<u8>, C::Error> {
    let digest = descriptor.digest;
    if descriptor.size > MAX_JSON {
        return Err(IngestError::DocumentSize { digest, most: MAX_JSON }.into());
    }
    let text = content.document(incoming, descriptor)?;
    let found = Digest::of(&text);
    if found != digest {
        return Err(IngestError::DocumentDigest { expected: digest, found }.into());
    }
    if !incoming.has(digest)? {
        incoming.add_bytes(&text)?;
    }
    Ok(text)
}

fn check_size(manifest: &Manifest, limits: ImageLimits) -> Result<(), IngestError> {
    let sizes = manifest.layers.iter().map(|layer| layer.size);
    let found = sizes.fold(manifest.config.size, u64::saturating_add);
    match found <= limits.blob_bytes {
        true => Ok(()),
        false => Err(IngestError::Size { found, most: limits.blob_bytes }),
    }
}

fn bring<C: Content>(
    content: &mut C,
    incoming: &mut Incoming<'_>,
    descriptor: &Descriptor,
    manifest: &Manifest,
    platform: &Platform,
) -> Result<(), C::Error> {
    let text = document(content, incoming, &manifest.config)?;
    let digest = manifest.config.digest;
    let config =
        ConfigDocument::parse(&text).map_err(|error| IngestError::Document { digest, error })?;
    config
        .check_layers(manifest.layers.len())
        .map_err(|error| IngestError::Document { digest: descriptor.digest, error })?;
    if !config.platform.is_unknown() && !platform.accepts(&config.platform) {
        let (wanted, offered) = (Box::new(platform.clone()), vec![config.platform]);
        return Err(IngestError::Platform { wanted, offered }.into());
    }
    content.blobs(incoming, &manifest.layers)
}

/// The first image that fits; an exact variant comes before one that is not named.
fn choose(index: &Index, wanted: &Platform) -> Result<Descriptor, IngestError> {
    let images = || index.manifests.iter().filter(|one| one.is_image() || one.is_index());
    let exact = images().find(|one| one.platform.as_ref() == Some(wanted));
    let fitting = || {
        images().find(|one| one.platform.as_ref().is_some_and(|offered| wanted.accepts(offered)))
    };
    // One image without a platform is taken; its configuration is checked all the same.
    let only = || match images().collect::<Vec<_>>()[..] {
        [only] if only.platform.as_ref().is_none_or(Platform::is_unknown) => Some(only),
        _ => None,
    };
    exact.or_else(fitting).or_else(only).cloned().ok_or_else(|| IngestError::Platform {
        wanted: Box::new(wanted.clone()),
        offered: images().filter_map(|one| one.platform.clone()).collect(),
    })
}

/// For content that is in the store or staged already.
pub(crate) fn read_staged(incoming: &Incoming<'_>, digest: Digest) -> Result<Vec<u8>, BlobError> {
    let file = incoming.open(digest)?;
    let mut text = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, MAX_JSON + 1), &mut text)
        .map_err(BlobError::Read)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::OCI_MANIFEST;

    fn offered(platforms: &[Option<&str>]) -> Index {
        let manifests = platforms.iter().enumerate().map(|(number, platform)| Descriptor {
            platform: platform.map(|text| text.parse().unwrap()),
            ..Descriptor::new(OCI_MANIFEST, Digest::of(&[number as u8]), 1)
        });
        Index { schema_version: 2, media_type: None, manifests: manifests.collect() }
    }

    #[test]
    fn the_machines_platform_is_chosen() {
        let wanted: Platform = "linux/arm64/v8".parse().unwrap();
        let chosen = |platforms: &[Option<&str>]| {
            let found = choose(&offered(platforms), &wanted).ok()?;
            (0..platforms.len()).find(|number| found.digest == Digest::of(&[*number as u8]))
        };
        assert_eq!(chosen(&[Some("linux/amd64"), Some("linux/arm64")]), Some(1));
        assert_eq!(chosen(&[Some("linux/arm64"), Some("linux/arm64/v8")]), Some(1));
        assert_eq!(chosen(&[Some("linux/amd64"), Some("windows/arm64")]), None);
        assert_eq!(chosen(&[None]), Some(0));
        assert_eq!(chosen(&[None, None]), None);
        let error = choose(&offered(&[Some("linux/amd64")]), &wanted).unwrap_err().to_string();
        assert_eq!(error, "the image is for linux/amd64, and linux/arm64/v8 is needed");
    }
}

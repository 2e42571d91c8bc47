//! Manifests, indexes and configurations of images, as OCI and docker write them.
//!
//! Only what is used is read, and everything that is read is hostile: sizes and numbers are checked by the
//! caller, texts are shown escaped.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::platform::Platform;

pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const OCI_LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub(crate) const OCI_LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub(crate) const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// The largest manifest, index or configuration. Registries take 4 MiB.
pub(crate) const MAX_JSON: u64 = 4 << 20;
/// The kernel stacks 500; engines stop at 125.
pub(crate) const MAX_LAYERS: usize = 400;
/// Manifests of one index.
pub(crate) const MAX_MANIFESTS: usize = 1000;

/// A reference to a blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
}

impl Descriptor {
    pub(crate) fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        let media_type = media_type.to_owned();
        Self { media_type, digest, size, platform: None, annotations: BTreeMap::new() }
    }

    pub(crate) fn is_index(&self) -> bool {
        matches!(self.media_type.as_str(), OCI_INDEX | DOCKER_INDEX)
    }

    /// What is there besides images: attestations, signatures.
    pub(crate) fn is_image(&self) -> bool {
        let is_attachment = self.annotations.contains_key("vnd.docker.reference.type");
        matches!(self.media_type.as_str(), OCI_MANIFEST | DOCKER_MANIFEST) && !is_attachment
    }
}

/// One image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    pub(crate) schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) media_type: Option<String>,
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// Several images under one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Index {
    pub(crate) schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) media_type: Option<String>,
    pub(crate) manifests: Vec<Descriptor>,
}

/// Why a document of an image is of no use.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error("it is not valid JSON of its kind, at line {line}, column {column}")]
    Shape { line: usize, column: usize },
    #[error("it has more than {most} {what}")]
    TooMany { what: &'static str, most: usize },
    #[error("it is neither a manifest nor an index")]
    Unknown,
    #[error("it has {layers} layers, and its configuration has digests for {diff_ids}")]
    LayerCount { layers: usize, diff_ids: usize },
    #[error("its layer {0} is not a file system layer; Belljar runs container images only")]
    NotLayer(String),
}

/// A manifest or an index, told apart by content: media types are left out by some.
#[derive(Clone, Debug)]
pub(crate) enum Document {
    Manifest(Manifest),
    Index(Index),
}

impl Document {
    pub(crate) fn parse(text: &[u8]) -> Result<Self, DocumentError> {
        #[derive(Deserialize)]
        struct Shape {
            #[serde(default)]
            manifests: Option<serde::de::IgnoredAny>,
            #[serde(default)]
            layers: Option<serde::de::IgnoredAny>,
        }
        let shape: Shape = parse_json(text)?;
        // A document that is both would be one image to us and another to someone else.
        match (shape.manifests, shape.layers) {
            (Some(_), None) => {
                let index: Index = parse_json(text)?;
                most("manifests", index.manifests.len(), MAX_MANIFESTS)?;
                Ok(Self::Index(index))
            }
            (None, Some(_)) => {
                let manifest: Manifest = parse_json(text)?;
                most("layers", manifest.layers.len(), MAX_LAYERS)?;
                if let Some(odd) = manifest.layers.iter().find(|layer| !is_layer(&layer.media_type))
                {
                    let shown = belljar_spec::text::escape(odd.media_type.as_bytes());
                    return Err(DocumentError::NotLayer(shown));
                }
                Ok(Self::Manifest(manifest))
            }
            _ => Err(DocumentError::Unknown),
        }
    }
}

fn most(what: &'static str, found: usize, most: usize) -> Result<(), DocumentError> {
    match found <= most {
        true => Ok(()),
        false => Err(DocumentError::TooMany { what, most }),
    }
}

fn is_layer(media_type: &str) -> bool {
    let base = media_type.split('+').next().unwrap_or_default();
    matches!(
        base,
        "application/vnd.oci.image.layer.v1.tar"
            | "application/vnd.oci.image.layer.nondistributable.v1.tar"
            | "application/vnd.docker.image.rootfs.diff.tar"
            | "application/vnd.docker.image.rootfs.diff.tar.gzip"
            | "application/vnd.docker.image.rootfs.diff.tar.zstd"
            | "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
            | "application/vnd.docker.image.rootfs.foreign.diff.tar"
    )
}

pub(crate) fn parse_json<'de, T: Deserialize<'de>>(text: &'de [u8]) -> Result<T, DocumentError> {
    serde_json::from_slice(text)
        .map_err(|error| DocumentError::Shape { line: error.line(), column: error.column() })
}

/// What an image says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// `NAME=VALUE`, in the image's order.
    pub env: Vec<String>,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    /// Empty if the image has none.
    pub working_dir: String,
    /// `USER[:GROUP]`, names or numbers; empty if the image has none.
    pub user: String,
    pub volumes: Vec<String>,
    pub exposed_ports: Vec<String>,
    pub labels: BTreeMap<String, String>,
    pub stop_signal: Option<String>,
    /// When it was made, as it says.
    pub created: Option<String>,
}

/// An image's configuration, with what is only used here.
#[derive(Clone, Debug)]
pub(crate) struct ConfigDocument {
    pub(crate) config: ImageConfig,
    pub(crate) platform: Platform,
    pub(crate) diff_ids: Vec<Digest>,
}

impl ConfigDocument {
    pub(crate) fn parse(text: &[u8]) -> Result<Self, DocumentError> {
        let raw: RawConfig = parse_json(text)?;
        most("layers", raw.rootfs.diff_ids.len(), MAX_LAYERS)?;
        let inner = raw.config.unwrap_or_default();
        let keys = |map: Option<BTreeMap<String, serde::de::IgnoredAny>>| -> Vec<String> {
            map.unwrap_or_default().into_keys().collect()
        };
        Ok(Self {
            config: ImageConfig {
                env: inner.env.unwrap_or_default(),
                entrypoint: inner.entrypoint.unwrap_or_default(),
                cmd: inner.cmd.unwrap_or_default(),
                working_dir: inner.working_dir.unwrap_or_default(),
                user: inner.user.unwrap_or_default(),
                volumes: keys(inner.volumes),
                exposed_ports: keys(inner.exposed_ports),
                labels: inner.labels.unwrap_or_default(),
                stop_signal: inner.stop_signal.filter(|signal| !signal.is_empty()),
                created: raw.created,
            },
            platform: Platform {
                os: raw.os.unwrap_or_default(),
                architecture: raw.architecture.unwrap_or_default(),
                variant: raw.variant.filter(|variant| !variant.is_empty()),
            },
            diff_ids: raw.rootfs.diff_ids,
        })
    }

    /// Each layer must have a digest to be checked against.
    pub(crate) fn check_layers(&self, layers: usize) -> Result<(), DocumentError> {
        match self.diff_ids.len() == layers {
            true => Ok(()),
            false => Err(DocumentError::LayerCount { layers, diff_ids: self.diff_ids.len() }),
        }
    }
}

#[derive(Deserialize)]
struct RawConfig {
    os: Option<String>,
    architecture: Option<String>,
    variant: Option<String>,
    created: Option<String>,
    config: Option<RawInner>,
    rootfs: RawRootfs,
}

#[derive(Deserialize)]
struct RawRootfs {
    #[serde(default)]
    diff_ids: Vec<Digest>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawInner {
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    volumes: Option<BTreeMap<String, serde::de::IgnoredAny>>,
    exposed_ports: Option<BTreeMap<String, serde::de::IgnoredAny>>,
    labels: Option<BTreeMap<String, String>>,
    stop_signal: Option<String>,
}

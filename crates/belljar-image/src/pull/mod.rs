//! Pulls images from registries over the OCI distribution protocol.
//!
//! Every byte is checked against the digest that led to it, while it streams by. A broken connection is resumed
//! with a range request, as long as something comes. Credentials are sent to the registry, and to the token
//! service that it names, over TLS; plain HTTP is spoken with registries on this machine's loopback only.
//!
//! One thread, with a runtime of its own, which ends with the pull.

mod auth;
mod blob;
mod challenge;
mod registry;
mod resolve;
mod retry;
mod transport;

use std::io;

use crate::credentials::{CredentialLookup, CredentialSources, look_up_credentials};
use crate::digest::{BadDigest, Digest};
use crate::ingest::{Content, ImageLimits, IngestError, ingest};
use crate::load::LoadedImage;
use crate::manifest::Descriptor;
use crate::platform::Platform;
use crate::reference::Reference;
use crate::store::{BlobError, HoldError, Incoming, NewImage, Store, StoreError, UnpackTime};
use registry::Registry;
pub use transport::TransportError;

/// How an image is pulled.
#[derive(Clone, Debug)]
pub struct PullOptions {
    pub platform: Platform,
    pub limits: ImageLimits,
    pub credentials: CredentialSources,
    pub unpack: UnpackTime,
}

/// How far a pull is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullProgress {
    /// Of the layers that are fetched; those that are here already are not counted.
    pub bytes: u64,
    pub of: u64,
}

/// An image was not pulled, and nothing of it is in the store.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error(
        "cannot reach {host}; check the network, or bring the image in with: belljar image load FILE"
    )]
    Transport {
        host: String,
        #[source]
        error: TransportError,
    },
    #[error("{host} refuses access to {name}{}; log in with docker login or podman login, or check the name",
        .trouble.as_ref().map_or(String::new(), |trouble| format!(" (no credentials were used: {trouble})")))]
    Denied { host: String, name: String, trouble: Option<String> },
    #[error("{host} does not have {name}; check its name and tag")]
    Missing { host: String, name: String },
    #[error("{host} answers {status} for {what}{message}")]
    Status { host: String, what: String, status: u16, message: String },
    #[error("what {host} sends for {what} makes no sense: {why}")]
    Answer { host: String, what: String, why: String },
    #[error(
        "the connection to {host} broke {attempts} times without progress while {digest} was fetched"
    )]
    Broken {
        host: String,
        digest: Digest,
        attempts: u32,
        #[source]
        error: TransportError,
    },
    #[error("cannot take the blob {digest}")]
    Blob {
        digest: Digest,
        #[source]
        error: Box<BlobError>,
    },
    #[error("only sha256 digests can be pulled")]
    Algorithm(#[from] BadDigest),
    #[error("{host} sends another manifest than {expected}: its digest is {found}")]
    ManifestDigest { host: String, expected: Digest, found: Digest },
    #[error(transparent)]
    Ingest(#[from] IngestError),
    #[error("cannot take a document of the image")]
    Document(#[from] BlobError),
    #[error(transparent)]
    Unpack(#[from] HoldError),
    #[error("cannot start the network part of the pull")]
    Runtime(#[source] io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// Pulls an image, whether it is here or not. What is here already is not fetched again.
    pub fn pull(
        &self,
        reference: &Reference,
        options: &PullOptions,
        progress: &mut dyn FnMut(PullProgress),
    ) -> Result<LoadedImage, PullError> {
        let CredentialLookup { credentials, trouble } =
            look_up_credentials(reference, &options.credentials);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(PullError::Runtime)?;
        let mut incoming = Incoming::begin(self)?;
        let mut content = RegistryContent {
            runtime: &runtime,
            registry: Registry::new(reference, credentials, trouble),
            first: None,
            progress,
        };
        let top = content.manifest(reference)?;
        let (platform, limits) = (&options.platform, options.limits);
        let ingested = ingest(&mut content, &mut incoming, &top, platform, limits)?;
        let image = NewImage {
            manifest: ingested.manifest,
            source: ingested.source,
            names: vec![reference.clone()],
        };
        let images = std::slice::from_ref(&image);
        let moved = self.take_in(incoming, &ingested.blobs, images, options.unpack)?;
        Ok(LoadedImage {
            manifest: image.manifest,
            source: image.source,
            names: image.names,
            moved: moved.into_iter().flatten().collect(),
            bad_names: Vec::new(),
        })
    }
}

struct RegistryContent<'a> {
    runtime: &'a tokio::runtime::Runtime,
    registry: Registry,
    /// The manifest or index that the name led to, which is asked for once more as a document.
    first: Option<(Digest, Vec<u8>)>,
    progress: &'a mut dyn FnMut(PullProgress),
}

impl RegistryContent<'_> {
    /// What the name leads to.
    fn manifest(&mut self, reference: &Reference) -> Result<Descriptor, PullError> {
        let (text, media_type) =
            self.runtime.block_on(self.registry.manifest(reference.version()))?;
        let digest = Digest::of(&text);
        if let Some(expected) = reference.digest() {
            let expected: Digest = expected.parse()?;
            if expected != digest {
                let host = self.registry.host().to_owned();
                return Err(PullError::ManifestDigest { host, expected, found: digest });
            }
        }
        let descriptor = Descriptor::new(&media_type, digest, text.len() as u64);
        self.first = Some((digest, text));
        Ok(descriptor)
    }
}

impl Content for RegistryContent<'_> {
    type Error = PullError;

    fn document(
        &mut self,
        incoming: &mut Incoming<'_>,
        descriptor: &Descriptor,
    ) -> Result<Vec<u8>, PullError> {
        if let Some((digest, text)) = &self.first
            && *digest == descriptor.digest
        {
            return Ok(text.clone());
        }
        if incoming.has(descriptor.digest)? {
            return Ok(crate::ingest::read_staged(incoming, descriptor.digest)?);
        }
        self.runtime.block_on(self.registry.document(descriptor))
    }

    fn blobs(
        &mut self,
        incoming: &mut Incoming<'_>,
        descriptors: &[Descriptor],
    ) -> Result<(), PullError> {
        let mut missing: Vec<&Descriptor> = Vec::new();
        for descriptor in descriptors {
            let is_listed = missing.iter().any(|other| other.digest == descriptor.digest);
            if !is_listed && !incoming.has(descriptor.digest)? {
                missing.push(descriptor);
            }
        }
        let fetched = blob::fetch_all(&self.registry, incoming, &missing, &mut *self.progress);
        self.runtime.block_on(fetched)
    }
}

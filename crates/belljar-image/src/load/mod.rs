//! Loads images from archives of `docker save` and `podman save`, and from OCI layouts, without a network.

mod archive;
mod docker;
mod layout;

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use belljar_tree::{Dir, FinalLink};

use crate::compression::Decompressor;
use crate::digest::Digest;
use crate::ingest::{ImageLimits, IngestError};
use crate::manifest::DocumentError;
use crate::platform::Platform;
use crate::reference::{BadReference, Reference};
use crate::store::{BlobError, Incoming, NewImage, Store, StoreError};
use crate::tar::TarError;

const BUFFER: usize = 1 << 20;

/// Where an image is loaded from.
pub enum LoadSource<'a> {
    /// An archive, or a directory with an OCI layout.
    Path(&'a Path),
    /// An archive, from standard input or from an engine.
    Stream(&'a mut dyn Read),
}

impl std::fmt::Debug for LoadSource<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(path) => f.debug_tuple("Path").field(path).finish(),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}

/// How an archive is loaded.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Which image of several is taken.
    pub platform: Platform,
    pub limits: ImageLimits,
    /// The name of an image that has none in the archive.
    pub name: DefaultName,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            platform: Platform::of_this_machine(),
            limits: ImageLimits::default(),
            name: DefaultName::None,
        }
    }
}

/// The name of an image that has none of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DefaultName {
    /// It can be used by its digest only, and `prune` removes it.
    None,
    Name(Reference),
}

/// An image that was loaded or pulled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedImage {
    pub manifest: Digest,
    /// The index that names it along with those of other platforms.
    pub source: Option<Digest>,
    pub names: Vec<Reference>,
    /// Names in the archive that are none, escaped. They are left out.
    pub bad_names: Vec<String>,
}

/// An archive was not loaded, and nothing of it is in the store.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot open {}", .path.display())]
    Open {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("cannot read the archive")]
    Archive(#[from] TarError),
    #[error(
        "this is no image: the archive has neither index.json nor manifest.json; write one with docker save or skopeo"
    )]
    NotImage,
    #[error("the archive names no image")]
    Empty,
    #[error(
        "the archive has more than {most} {what}; the limit protects this machine from hostile images"
    )]
    Limit { what: &'static str, most: u64 },
    #[error("the archive's {file} is of no use")]
    Document {
        file: &'static str,
        #[source]
        error: DocumentError,
    },
    #[error("the archive has no file \"{path}\", which its image needs")]
    MissingFile { path: String },
    #[error("the archive does not have the blob {digest}, which its image needs")]
    MissingBlob { digest: Digest },
    #[error("cannot take the blob {digest}")]
    Blob {
        digest: Digest,
        #[source]
        error: BlobError,
    },
    #[error(transparent)]
    Ingest(#[from] IngestError),
    #[error("cannot take a file of the archive")]
    File(#[from] BlobError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// Loads all images of an archive or layout; of several for different platforms the one that is wanted.
    /// Layers are unpacked when an image is held for the first time.
    pub fn load(
        &self,
        source: LoadSource<'_>,
        options: &LoadOptions,
    ) -> Result<Vec<LoadedImage>, LoadError> {
        match source {
            LoadSource::Path(path) if path.is_dir() => {
                let opened = Dir::open(path, FinalLink::Follow);
                let dir = opened.map_err(|error| LoadError::Open {
                    path: path.to_owned(),
                    error: error.errno().into(),
                })?;
                let mut incoming = Incoming::begin(self)?;
                let loaded = layout::from_dir(&dir, &mut incoming, options)?;
                finish(incoming, loaded)
            }
            LoadSource::Path(path) => {
                let failed = |error| LoadError::Open { path: path.to_owned(), error };
                let mut file = File::open(path).map_err(failed)?;
                self.load_stream(&mut file, options)
            }
            LoadSource::Stream(stream) => self.load_stream(stream, options),
        }
    }

    fn load_stream(
        &self,
        stream: &mut dyn Read,
        options: &LoadOptions,
    ) -> Result<Vec<LoadedImage>, LoadError> {
        let mut incoming = Incoming::begin(self)?;
        let input = BufReader::with_capacity(BUFFER, stream);
        let decoder = Decompressor::new(input).map_err(TarError::Read)?;
        let mut input = BufReader::with_capacity(BUFFER, decoder);
        let files = archive::stage(&mut input, &mut incoming, options.limits)?;
        let loaded = match files.has("index.json") {
            true => layout::from_archive(&files, &mut incoming, options)?,
            false => docker::from_archive(&files, &mut incoming, options)?,
        };
        finish(incoming, loaded)
    }
}

/// Images that are staged, with the blobs that they need.
struct Staged {
    images: Vec<LoadedImage>,
    blobs: Vec<Digest>,
}

fn finish(incoming: Incoming<'_>, staged: Staged) -> Result<Vec<LoadedImage>, LoadError> {
    if staged.images.is_empty() {
        return Err(LoadError::Empty);
    }
    let new: Vec<NewImage> = staged
        .images
        .iter()
        .map(|image| NewImage {
            manifest: image.manifest,
            source: image.source,
            names: image.names.clone(),
        })
        .collect();
    incoming.commit(&staged.blobs, &new)?;
    Ok(staged.images)
}

/// Names from an archive: those that are none are told, not used.
fn parse_names(texts: &[String], default: &DefaultName) -> (Vec<Reference>, Vec<String>) {
    let (mut names, mut bad) = (Vec::new(), Vec::new());
    for text in texts {
        let parsed: Result<Reference, BadReference> = Reference::parse(text);
        match parsed {
            Ok(name) if !names.contains(&name) => names.push(name),
            Ok(_) => {}
            Err(_) => bad.push(belljar_spec::text::escape(text.as_bytes())),
        }
    }
    if let (true, DefaultName::Name(name)) = (names.is_empty(), default) {
        names.push(name.clone());
    }
    (names, bad)
}

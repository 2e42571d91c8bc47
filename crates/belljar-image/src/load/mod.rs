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
use crate::ingest::{ImageLimits, IngestError, Ingested};
use crate::manifest::DocumentError;
use crate::platform::Platform;
use crate::reference::{BadReference, Reference};
use crate::store::{
    BlobError, HoldError, Incoming, MovedName, NewImage, Store, StoreError, UnpackTime,
};
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
    pub unpack: UnpackTime,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            platform: Platform::of_this_machine(),
            limits: ImageLimits::default(),
            name: DefaultName::None,
            unpack: UnpackTime::Later,
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
    /// Those that were another image's before.
    pub moved: Vec<MovedName>,
    /// Names in the archive that are none, or have the digest of something else, escaped. They are left out.
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
    #[error("an image of the archive cannot be used, so nothing of it was loaded")]
    Unpack(#[from] HoldError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// Loads all images of an archive or layout; of several for different platforms the one that is wanted.
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
                self.finish(incoming, loaded, options.unpack)
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
        self.finish(incoming, loaded, options.unpack)
    }

    fn finish(
        &self,
        incoming: Incoming<'_>,
        staged: Staged,
        unpack: UnpackTime,
    ) -> Result<Vec<LoadedImage>, LoadError> {
        let Staged { mut images, blobs } = staged;
        if images.is_empty() {
            return Err(LoadError::Empty);
        }
        let new: Vec<NewImage> = images
            .iter()
            .map(|image| NewImage {
                manifest: image.manifest,
                source: image.source,
                names: image.names.clone(),
            })
            .collect();
        let moved = self.take_in(incoming, &blobs, &new, unpack)?;
        for (image, moved) in images.iter_mut().zip(moved) {
            image.moved = moved;
        }
        Ok(images)
    }
}

/// Images that are staged, with the blobs that they need.
struct Staged {
    images: Vec<LoadedImage>,
    blobs: Vec<Digest>,
}

impl LoadedImage {
    /// An image with the names that an archive gives it, or else the default one. What is no name of this image is
    /// told, not used.
    fn named(image: &Ingested, texts: &[String], default: &DefaultName) -> Self {
        let (mut names, mut bad_names) = (Vec::new(), Vec::new());
        let mut take = |name: Result<Reference, BadReference>, text: &str| match name {
            Ok(name) if names.contains(&name) => {}
            Ok(name) if is_of(&name, image) => names.push(name),
            Ok(_) | Err(_) => bad_names.push(belljar_spec::text::escape(text.as_bytes())),
        };
        texts.iter().for_each(|text| take(Reference::parse(text), text));
        if let (true, DefaultName::Name(name)) = (names.is_empty(), default) {
            match is_of(name, image) {
                true => names.push(name.clone()),
                false => bad_names.push(name.to_string()),
            }
        }
        let Ingested { manifest, source, .. } = *image;
        Self { manifest, source, names, moved: Vec::new(), bad_names }
    }
}

/// A digest in a name says which content it means.
fn is_of(name: &Reference, image: &Ingested) -> bool {
    let digest: Option<Result<Digest, _>> = name.digest().map(str::parse);
    match digest {
        None => true,
        Some(Ok(digest)) => digest == image.manifest || Some(digest) == image.source,
        Some(Err(_)) => false,
    }
}

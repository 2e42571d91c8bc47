//! Belljar's own store of images, in the home: what the jail starts from.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use belljar_backend::engine::Engine;
use belljar_backend::own_images::{self, parse_name};
pub use belljar_backend::{ImageError, PullProgress};
use belljar_image::{DefaultName, LoadError, LoadOptions, UnpackOptions, UnpackTime};
pub use belljar_image::{
    ExportError, Image, ImageConfig, ImageName, ImageSummary, LayerFacts, LoadSource, LoadedImage,
    PruneReport, PruneScope, Reference, RemoveError, Removed, Store, StoreError,
};
use belljar_record::home::Home;
use belljar_spec::BackendName;
use belljar_spec::text::escape;

/// A command on images could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum OwnImageError {
    #[error("{}", .0.why)]
    Image(ImageError),
    #[error("cannot load the image")]
    Load(#[from] LoadError),
    #[error(transparent)]
    Remove(#[from] RemoveError),
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot write {}", .path.display())]
    Write {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("\"{0}\" names no engine; write it as docker:NAME or podman:NAME")]
    NoEngine(String),
    #[error("the {backend} engine cannot be used: {why}")]
    Engine { backend: BackendName, why: String, fix: String },
    #[error(
        "\"{0}\" is an id, which no registry knows; name the image by NAME, NAME:TAG or NAME@DIGEST"
    )]
    PullById(String),
}

impl From<ImageError> for OwnImageError {
    fn from(error: ImageError) -> Self {
        Self::Image(error)
    }
}

impl OwnImageError {
    /// What to do next, where the message does not say it.
    pub fn fix(&self) -> Option<&str> {
        match self {
            Self::Image(ImageError { fix, .. }) | Self::Engine { fix, .. } => Some(fix),
            _ => None,
        }
    }
}

/// Opens the home's store; it is made if it is not there.
pub fn open(home: &Home) -> Result<Store, OwnImageError> {
    Ok(own_images::open(&home.images())?)
}

pub fn name(text: &str) -> Result<ImageName, OwnImageError> {
    Ok(parse_name(text)?)
}

/// Loads all images of an archive or layout, and unpacks them. `name` is for one that has no name of its own.
pub fn load(
    store: &Store,
    source: LoadSource<'_>,
    name: Option<&str>,
) -> Result<Vec<LoadedImage>, OwnImageError> {
    let name = match name.map(Reference::parse) {
        None => DefaultName::None,
        Some(Ok(name)) => DefaultName::Name(name),
        Some(Err(error)) => {
            let fix = "write it as NAME or NAME:TAG".to_owned();
            return Err(ImageError { why: error.to_string(), fix }.into());
        }
    };
    // At once, so that a hostile layer is refused now and the first run need not wait.
    let unpack = UnpackTime::BeforeNames(UnpackOptions::for_sandbox());
    Ok(store.load(source, &LoadOptions { name, unpack, ..LoadOptions::default() })?)
}

/// Pulls an image, and unpacks it.
pub fn pull(
    store: &Store,
    text: &str,
    watcher: &dyn PullProgress,
) -> Result<LoadedImage, OwnImageError> {
    let reference = match name(text)? {
        ImageName::Reference(reference) => reference,
        ImageName::Id(id) => return Err(OwnImageError::PullById(id)),
    };
    Ok(own_images::pull(store, &reference, watcher)?)
}

/// Takes an image over from an engine: `docker:NAME` or `podman:NAME`.
pub fn import(store: &Store, text: &str) -> Result<Vec<LoadedImage>, OwnImageError> {
    let unknown = || OwnImageError::NoEngine(escape(text.as_bytes()));
    let (engine, image) = text.split_once(':').ok_or_else(unknown)?;
    let backend = BackendName::engines().find(|name| name.name() == engine).ok_or_else(unknown)?;
    name(image)?;
    let engine = Engine::find(backend).map_err(|unavailable| OwnImageError::Engine {
        backend,
        why: unavailable.why,
        fix: unavailable.fix,
    })?;
    let mut archive = engine.save_image(image)?;
    load(store, LoadSource::Stream(&mut *archive), None)
}

/// Writes an image as an archive to a new file. On an error there is none.
pub fn export(store: &Store, name: &ImageName, to: &Path) -> Result<(), OwnImageError> {
    let failed = |error| OwnImageError::Write { path: to.to_owned(), error };
    let mut file = File::create_new(to).map_err(failed)?;
    let written = export_to(store, name, &mut file);
    if written.is_err() {
        let _ = std::fs::remove_file(to); // it was made just now, and is unfinished
    }
    written
}

pub fn export_to(
    store: &Store,
    name: &ImageName,
    output: &mut dyn Write,
) -> Result<(), OwnImageError> {
    Ok(store.export(name, output)?)
}

//! OCI layouts: `index.json` and `blobs/sha256/`, in a directory or an archive.

use std::io::BufReader;
use std::path::Path;

use belljar_tree::Dir;

use super::archive::ArchiveFiles;
use super::docker::StagedContent;
use super::{BUFFER, LoadError, LoadOptions, LoadedImage, Staged};
use crate::ingest::{Content, ingest, read_staged};
use crate::manifest::{Descriptor, Index, MAX_JSON, MAX_MANIFESTS, parse_json};
use crate::platform::Platform;
use crate::store::{BlobError, Expected, Incoming};

const INDEX: &str = "index.json";
/// Where docker writes the whole name.
const CONTAINERD_NAME: &str = "io.containerd.image.name";
/// A tag or a whole name, whichever the program that wrote it thought of.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

pub(super) fn from_archive(
    files: &ArchiveFiles,
    incoming: &mut Incoming<'_>,
    options: &LoadOptions,
) -> Result<Staged, LoadError> {
    let text = files.read(INDEX, incoming)?;
    take_all(&text, &mut StagedContent, incoming, options)
}

pub(super) fn from_dir(
    dir: &Dir,
    incoming: &mut Incoming<'_>,
    options: &LoadOptions,
) -> Result<Staged, LoadError> {
    let text = match dir.read_file(INDEX, MAX_JSON) {
        Err(error) if error.is_missing() => return Err(LoadError::NotImage),
        text => text
            .map_err(|error| LoadError::Open { path: INDEX.into(), error: error.errno().into() })?,
    };
    take_all(&text, &mut DirContent { dir }, incoming, options)
}

fn take_all<C: Content<Error = LoadError>>(
    text: &[u8],
    content: &mut C,
    incoming: &mut Incoming<'_>,
    options: &LoadOptions,
) -> Result<Staged, LoadError> {
    let index: Index =
        parse_json(text).map_err(|error| LoadError::Document { file: INDEX, error })?;
    if index.manifests.len() > MAX_MANIFESTS {
        return Err(LoadError::Limit { what: "manifests", most: MAX_MANIFESTS as u64 });
    }
    let mut staged = Staged { images: Vec::new(), blobs: Vec::new() };
    let mut others: Vec<Platform> = Vec::new();
    for descriptor in &index.manifests {
        if !descriptor.is_index() && !descriptor.is_image() {
            continue;
        }
        // An index that lists the platforms of one image side by side.
        let other = descriptor.platform.as_ref();
        if let Some(other) = other.filter(|other| !options.platform.accepts(other)) {
            others.push(other.clone());
            continue;
        }
        let ingested = ingest(content, incoming, descriptor, &options.platform, options.limits)?;
        let names = names_of(descriptor);
        staged.images.push(LoadedImage::named(&ingested, &names, &options.name));
        staged.blobs.extend(ingested.blobs);
    }
    if staged.images.is_empty() && !others.is_empty() {
        let wanted = Box::new(options.platform.clone());
        return Err(crate::ingest::IngestError::Platform { wanted, offered: others }.into());
    }
    Ok(staged)
}

/// A name that is only a tag says nothing about the repository.
fn names_of(descriptor: &Descriptor) -> Vec<String> {
    let annotation = |key: &str| descriptor.annotations.get(key).cloned();
    let whole = annotation(CONTAINERD_NAME);
    let reference = annotation(REF_NAME).filter(|name| name.contains(['/', ':']));
    whole.or(reference).into_iter().collect()
}

/// A directory that anybody may have written.
struct DirContent<'a> {
    dir: &'a Dir,
}

impl DirContent<'_> {
    fn stage(&self, incoming: &mut Incoming<'_>, descriptor: &Descriptor) -> Result<(), LoadError> {
        let digest = descriptor.digest;
        if incoming.has(digest)? {
            return Ok(());
        }
        let path = Path::new("blobs/sha256").join(digest.hex());
        let file = match self.dir.open_file(&path) {
            Err(error) if error.is_missing() => return Err(LoadError::MissingBlob { digest }),
            file => file.map_err(|error| LoadError::Open { path, error: error.errno().into() })?,
        };
        let expected = Expected::Exactly { digest, size: descriptor.size };
        let mut input = BufReader::with_capacity(BUFFER, file);
        let added = incoming.add(&mut input, expected);
        added.map_err(|error| LoadError::Blob { digest, error })?;
        Ok(())
    }
}

impl Content for DirContent<'_> {
    type Error = LoadError;

    fn document(
        &mut self,
        incoming: &mut Incoming<'_>,
        descriptor: &Descriptor,
    ) -> Result<Vec<u8>, LoadError> {
        self.stage(incoming, descriptor)?;
        let text: Result<Vec<u8>, BlobError> = read_staged(incoming, descriptor.digest);
        Ok(text?)
    }

    fn blobs(
        &mut self,
        incoming: &mut Incoming<'_>,
        descriptors: &[Descriptor],
    ) -> Result<(), LoadError> {
        descriptors.iter().try_for_each(|descriptor| self.stage(incoming, descriptor))
    }
}

//! Exports an image as an OCI layout in a tar archive, which `docker load` and `podman load` take, too.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use crate::digest::Digest;
use crate::manifest::{Descriptor, Index, OCI_INDEX, OCI_MANIFEST};
use crate::reference::ImageName;
use crate::store::{Image, Store, StoreError};
use crate::tar::TarWriter;

const LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;

/// An image was not exported; the archive is unfinished.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("there is no image \"{name}\" here; run: belljar image list")]
    Missing { name: String },
    #[error("cannot write the archive")]
    Write(#[source] io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What engines that know no OCI layout read.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct SavedImage {
    config: String,
    repo_tags: Vec<String>,
    layers: Vec<String>,
}

impl Store {
    /// Writes the image with its names. The same image makes the same bytes.
    pub fn export(&self, name: &ImageName, output: &mut dyn Write) -> Result<(), ExportError> {
        // Kept until the end, whoever prunes meanwhile.
        let (image, _kept) =
            self.keep(name)?.ok_or_else(|| ExportError::Missing { name: name.to_string() })?;
        let manifest = self.read_manifest(image.manifest)?;
        let mut archive = TarWriter::new(output);
        for directory in ["blobs/", "blobs/sha256/"] {
            archive.directory(directory).map_err(ExportError::Write)?;
        }
        let mut written: Vec<Digest> = Vec::new();
        let layers = image.layers.iter().map(|layer| layer.blob);
        for digest in [image.manifest, image.config_digest].into_iter().chain(layers) {
            if written.contains(&digest) {
                continue;
            }
            self.export_blob(digest, &mut archive)?;
            written.push(digest);
        }
        let size = self.read_document(image.manifest)?.len() as u64;
        let media_type = manifest.media_type.clone().unwrap_or_else(|| OCI_MANIFEST.to_owned());
        let index = index_of(&image, &media_type, size);
        let saved = vec![saved_of(&image)];
        for (path, text) in [
            ("index.json", serde_json::to_vec(&index)),
            ("manifest.json", serde_json::to_vec(&saved)),
            ("oci-layout", Ok(LAYOUT.to_vec())),
        ] {
            let text = text.map_err(|error| ExportError::Write(error.into()))?;
            let written = archive.file(path, text.len() as u64, &mut &text[..]);
            written.map_err(ExportError::Write)?;
        }
        archive.finish().map_err(ExportError::Write)?;
        Ok(())
    }

    fn export_blob<W: Write>(
        &self,
        digest: Digest,
        archive: &mut TarWriter<W>,
    ) -> Result<(), ExportError> {
        let mut file = self.open_blob(digest)?;
        let size = file.metadata().map_err(ExportError::Write)?.len();
        let path = format!("blobs/sha256/{}", digest.hex());
        archive.file(&path, size, &mut file).map_err(ExportError::Write)
    }
}

/// Once for each name, as docker writes it.
fn index_of(image: &Image, media_type: &str, size: u64) -> Index {
    let plain = || Descriptor {
        platform: Some(image.platform.clone()).filter(|platform| !platform.is_unknown()),
        ..Descriptor::new(media_type, image.manifest, size)
    };
    let named = |name: &String| {
        let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
        let annotations = BTreeMap::from([
            ("io.containerd.image.name".to_owned(), name.clone()),
            ("org.opencontainers.image.ref.name".to_owned(), tag.to_owned()),
        ]);
        Descriptor { annotations, ..plain() }
    };
    let mut manifests: Vec<Descriptor> =
        image.names.iter().filter(|name| !name.contains('@')).map(named).collect();
    if manifests.is_empty() {
        manifests.push(plain());
    }
    Index { schema_version: 2, media_type: Some(OCI_INDEX.to_owned()), manifests }
}

fn saved_of(image: &Image) -> SavedImage {
    let path = |digest: Digest| format!("blobs/sha256/{}", digest.hex());
    SavedImage {
        config: path(image.config_digest),
        repo_tags: image.names.iter().filter(|name| !name.contains('@')).cloned().collect(),
        layers: image.layers.iter().map(|layer| path(layer.blob)).collect(),
    }
}

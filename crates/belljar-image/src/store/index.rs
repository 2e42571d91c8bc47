//! The index: which images there are, and by which names.

use std::io::Write;

use belljar_tree::RenameMode;
use serde::{Deserialize, Serialize};

use super::lock::StoreLock;
use super::take_in::MovedName;
use super::{Store, StoreError};
use crate::digest::Digest;
use crate::reference::{ImageName, Reference};

const INDEX: &str = "index.json";
const DRAFT: &str = "index.json.new";
const VERSION: u32 = 1;
/// Hundreds of thousands of names fit.
const MAX_BYTES: u64 = 64 << 20;

/// All images of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ImageIndex {
    version: u32,
    pub(super) images: Vec<ImageRecord>,
}

/// One image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ImageRecord {
    pub(super) manifest: Digest,
    /// What the image was fetched by, where that names images for several platforms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<Digest>,
    /// Complete ones, with registry and tag or digest. None: the image had only names that others have now.
    pub(super) names: Vec<String>,
    /// Seconds since 1970.
    pub(super) added: u64,
}

impl ImageIndex {
    /// The image that a name means. A short name means first what was built here, as podman has it.
    pub(super) fn find(&self, name: &ImageName) -> Option<&ImageRecord> {
        match name {
            ImageName::Id(id) => {
                let digest: Digest = id.parse().ok()?;
                self.by_digest(digest)
            }
            ImageName::Reference(reference) => {
                if let Some(digest) = reference.digest() {
                    return self.by_digest(digest.parse().ok()?);
                }
                let local = reference.is_short().then(|| reference.local().canonical());
                local
                    .and_then(|name| self.by_name(&name))
                    .or_else(|| self.by_name(&reference.canonical()))
            }
        }
    }

    /// A digest names content, whatever else the content is called.
    fn by_digest(&self, digest: Digest) -> Option<&ImageRecord> {
        let mut images = self.images.iter();
        images.find(|image| image.manifest == digest || image.source == Some(digest))
    }

    pub(super) fn by_name(&self, name: &str) -> Option<&ImageRecord> {
        self.images.iter().find(|image| image.names.iter().any(|other| other == name))
    }

    /// Adds an image, and takes its names from the images that had them: those are the result.
    pub(super) fn add(
        &mut self,
        manifest: Digest,
        source: Option<Digest>,
        names: &[Reference],
    ) -> Vec<MovedName> {
        let names: Vec<String> = names.iter().map(Reference::canonical).collect();
        let mut moved = Vec::new();
        for image in &mut self.images {
            if image.manifest != manifest {
                let taken = image.names.iter().filter(|name| names.contains(name)).cloned();
                moved.extend(taken.map(|name| MovedName { name, from: image.manifest }));
            }
            image.names.retain(|name| !names.contains(name));
        }
        let same = self.images.iter_mut().find(|image| image.manifest == manifest);
        match same {
            Some(image) => {
                image.names.extend(names);
                image.source = source.or(image.source);
            }
            None => {
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                let added = now.map_or(0, |since| since.as_secs());
                self.images.push(ImageRecord { manifest, source, names, added });
            }
        }
        moved
    }
}

impl Store {
    /// Under either lock.
    pub(super) fn read_index(&self, _lock: &StoreLock) -> Result<ImageIndex, StoreError> {
        let path = self.path.join(INDEX);
        let text = match self.root.read_file(INDEX, MAX_BYTES) {
            Err(error) if error.is_missing() => {
                return Ok(ImageIndex { version: VERSION, images: Vec::new() });
            }
            text => text.map_err(|error| StoreError::io("read", &path, error.errno()))?,
        };
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let damaged = |_| StoreError::Index { path: path.clone() };
        let version: Version = serde_json::from_slice(&text).map_err(damaged)?;
        if version.version > VERSION {
            return Err(StoreError::Newer { path });
        }
        serde_json::from_slice(&text).map_err(damaged)
    }

    /// By rename, so that no process reads half of it. Under the exclusive lock.
    pub(super) fn write_index(
        &self,
        _lock: &StoreLock,
        index: &ImageIndex,
    ) -> Result<(), StoreError> {
        let path = self.path.join(INDEX);
        let failed = |error: std::io::Error| StoreError::io("write", &path, error);
        let mut text = serde_json::to_vec_pretty(index).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        // One that is there was left by a killed process.
        self.root.remove_all(DRAFT).map_err(|error| failed(error.into()))?;
        let mut draft =
            self.root.create_file(DRAFT, 0o600).map_err(|error| failed(error.into()))?;
        draft.write_all(&text).map_err(failed)?;
        draft.sync_all().map_err(failed)?;
        self.root
            .rename(DRAFT, &self.root, INDEX, RenameMode::Replace)
            .map_err(|error| failed(error.into()))?;
        self.root.sync("").map_err(|error| failed(std::io::Error::from(error.errno())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_the_last_image_that_got_it() {
        let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
        let reference = |text: &str| Reference::parse(text).unwrap();
        let mut index = ImageIndex::default();
        index.add(one, None, &[reference("debian:12"), reference("debian")]);
        index.add(two, Some(Digest::of(b"i")), &[reference("docker.io/library/debian:latest")]);
        let found =
            |text: &str| index.find(&ImageName::parse(text).unwrap()).map(|image| image.manifest);
        assert_eq!(found("debian:12"), Some(one));
        assert_eq!(found("debian"), Some(two));
        assert_eq!(found("debian:13"), None);
        assert_eq!(found(&one.to_string()), Some(one));
        assert_eq!(found(&format!("other@{}", Digest::of(b"i"))), Some(two));
        index.add(one, None, &[reference("localhost/debian:latest")]);
        let found = index.find(&ImageName::parse("debian").unwrap());
        assert_eq!(found.unwrap().manifest, one, "built here");
    }
}
